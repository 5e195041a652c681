"""The run of a stored response, rebuilt: its prompt was erased at its end.

Items with ids are repeated id for id; the rest is rendered anew from the parameters in the
response. Other parameters have their defaults, and the system message follows today's settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from gateway.engine.run_spec import head_of
from gateway.protocol.brought_tools import BRINGING, brought_before
from gateway.protocol.hosted_tools import FAMILIES
from gateway.protocol.request_errors import validated
from gateway.protocol.responses.create_request import CreateResponse
from gateway.services.retrieval import not_found
from gateway.services.runs.history_source import DEPTH_MAX, ITEMS_MAX, History
from gateway.services.runs.spec_builder import CreateCommand, RunInput
from gateway.services.runs.tool_grants import Granted
from gateway.store import messages
from gateway.tenancy import Principal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.engine.run_spec import RunSpec
    from gateway.protocol.context_item import ContextItem
    from gateway.protocol.responses.response_object import ResponseHead
    from gateway.services.models import Model, Models
    from gateway.services.runs.run_builder import PromptExecutor
    from gateway.services.runs.spec_builder import SpecBuilder
    from gateway.store.postgres.database import Database
    from gateway.store.responses import StoredResponse
    from gateway.tenancy import TenantId

REPEATED: Final = (
    "model", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "truncation",
    "max_output_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed",
    "top_k", "min_p", "stop",
)  # fmt: skip
REASONING: Final = ("summary", "max_tokens")


class Rebuilder:
    def __init__(
        self, database: Database, models: Models, specs: SpecBuilder, executor: PromptExecutor
    ) -> None:
        self._database = database
        self._models = models
        self._specs = specs
        self._executor = executor

    async def rebuild(self, tenant_id: TenantId, stored: StoredResponse) -> RunSpec:
        """Return a spec that stores nothing; its prompt may differ from the original.

        Raises what `RunBuilder.build` raises, `ModelNotFound`, and `PreviousResponseNotFound` if
        something of the context was deleted.
        """
        head = head_of(stored)
        principal = Principal(tenant_id, "", stored.key_id)
        model = self._models.get(stored.model, principal.policy, task="generate")
        items = await self._context(tenant_id, stored)
        brought = brought_before([item for item in items if item.kind in BRINGING])
        request = request_of(head, model).model_copy(update={"brought": brought})
        run_input = RunInput(
            CreateCommand(principal, request, None, len(stored.request), requested_at=0.0),
            model,
            History(stored.parent, items, int(stored.root_created_at.timestamp())),
            {},
            stored.uuid,
            head.created_at,
            granted=Granted(head.grants),
        )
        return await self._executor.run(self._spec, run_input)

    def _spec(self, run_input: RunInput) -> RunSpec:
        # All of the context is history here.
        return self._specs.spec(run_input, self._specs.write(run_input, item_by_item=True))

    async def _context(self, tenant_id: TenantId, stored: StoredResponse) -> Sequence[ContextItem]:
        # Leave out the last response's output, but not the summary that was made for its prompt.
        chain = await messages.history(
            self._database, tenant_id, stored.uuid, depth_max=DEPTH_MAX, items_max=ITEMS_MAX
        )
        if chain is None:
            raise not_found(ids.response_id(stored.uuid))
        outputs = await messages.count_output(self._database, tenant_id, stored.uuid)
        end = len(chain.items) - outputs
        summary = [item for item in chain.items[end : end + 1] if item.kind == "compaction"]
        return [*chain.items[:end], *summary]


def request_of(head: ResponseHead, model: Model) -> CreateResponse:
    """Return the request, without input. A default effort counts as not requested."""
    echo = head.echo
    fields: dict[str, Any] = {name: echo[name] for name in REPEATED if echo.get(name) is not None}
    reasoning = {name: echo["reasoning"].get(name) for name in REASONING}
    if (effort := echo["reasoning"]["effort"]) != model.reasoning_effort:
        reasoning["effort"] = effort
    fields["reasoning"] = {name: value for name, value in reasoning.items() if value is not None}
    return validated(CreateResponse, {**fields, "store": False}, frozenset(FAMILIES.values()))
