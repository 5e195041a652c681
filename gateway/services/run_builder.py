"""From a create command to the specification of its run, with a summary where one is due.

Looks up what the request continues, and decides in which thread the work of `services.run_spec` is
done.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from gateway import ids
from gateway.errors import PermissionDenied
from gateway.protocol.items import Message
from gateway.services.compactor import SummaryPlan, is_triggered
from gateway.services.history_source import History
from gateway.services.run_spec import RunInput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from gateway.engine.run_spec import RunSpec
    from gateway.protocol.context_item import ConversationPlace
    from gateway.protocol.responses.create import CreateResponse
    from gateway.protocol.responses.requests import RequestKey
    from gateway.services.compactor import Compactor, Made
    from gateway.services.executor import ThreadExecutor
    from gateway.services.history_source import HistorySource
    from gateway.services.models import Models
    from gateway.services.run_spec import SpecBuilder
    from gateway.tenancy import Principal

    Check = Callable[[ConversationPlace | None], Awaitable[None]]
    """Raises what would be raised when a response is accepted that continues the conversation."""


@dataclass(frozen=True, slots=True)
class CreateCommand:
    """One request to create a response.

    `body_bytes` is how long it was as JSON; `requested_at` when it came, in seconds of
    `time.perf_counter`. `local` are responses that it may continue without their being stored.
    `remembered`: if this one is not stored either, others may continue it in the same way
    (`Generation.continued`). Without `generate` the context is checked and prepared for whoever
    continues it, and no model is asked anything.
    """

    principal: Principal
    request: CreateResponse
    key: RequestKey | None
    body_bytes: int
    requested_at: float
    local: Mapping[str, History] = field(default_factory=dict)
    remembered: bool = False
    generate: bool = True

    @property
    def is_durable(self) -> bool:
        """The response must outlive its client, and this process."""
        request, policy = self.request, self.principal.policy
        is_kept = self.key is not None or policy.on_disconnect == "continue"
        return self.generate and (request.background or (request.store and is_kept))

    @property
    def is_remembered(self) -> bool:
        """What it inherits is to be known afterwards."""
        return self.remembered and not self.request.store


T = TypeVar("T")

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class BuiltRun(NamedTuple):
    """`summary` was made for it: to be booked if nothing comes of it (`RunBuilder.booking`)."""

    spec: RunSpec
    summary: Made | None = None


class RunBuilder:
    """Turns create commands into run specifications."""

    def __init__(
        self,
        *,
        history_source: HistorySource,
        models: Models,
        specs: SpecBuilder,
        compactor: Compactor,
        executor: ThreadExecutor,
    ) -> None:
        self._history_source = history_source
        self._models = models
        self._specs = specs
        self._compactor = compactor
        self._executor = executor

    async def build(self, command: CreateCommand, check: Check) -> BuiltRun:
        """The specification of a new response. `check` is asked before a summary is made for it.

        Raises `RequestError` for whatever the caller has to mend (unknown model, logprobs that
        nobody can tell, broken chain, unpaired calls, a schema or a grammar that is none, reasoning
        that was sealed elsewhere, a prompt that is too long), `StoreUnavailable`, and where the
        context is to be compacted `UpstreamError`, `SummaryFailed` and what `check` raises.
        """
        request = command.request
        given = await self._input(
            command.principal, request, command.body_bytes, local=command.local
        )
        given = replace(
            given,
            durable=command.is_durable,
            remembered=command.is_remembered,
            silent=not command.generate,
        )
        is_compacted = request.context_management or (
            not given.is_opening and is_triggered(request)
        )
        work = self._planned if is_compacted and not given.silent else self._specs.spec
        planned: RunSpec | SummaryPlan = await self._run(work, given)
        if not isinstance(planned, SummaryPlan):
            return BuiltRun(planned)
        await check(given.history.conversation)
        made = await self._compactor.make(planned.spec)
        async with self.booking(made):
            compacted = replace(given, compacted=made.compacted)
            return BuiltRun(await self._run(self._specs.spec, compacted), made)

    @asynccontextmanager
    async def booking(self, summary: Made) -> AsyncIterator[None]:
        """Books the summary when the block is left by an exception: then nothing comes of it."""
        try:
            yield
        except BaseException:
            await self._compactor.book(summary)
            raise

    async def summary(
        self, principal: Principal, request: CreateResponse, *, body_bytes: int
    ) -> SummaryPlan:
        """How to summarise what the request continues and brings; raises what `build` does."""
        given = await self._input(principal, request, body_bytes, with_json=True)
        return await self._run(self._summary, given)

    async def count(self, principal: Principal, request: CreateResponse, *, body_bytes: int) -> int:
        """How many tokens the prompt of the request has, also of one that is too long to be run.

        Raises `RequestError` and `StoreUnavailable` as `build` does.
        """
        given = await self._input(principal, request, body_bytes)
        return await self._run(self._specs.count, given)

    async def _input(
        self,
        principal: Principal,
        request: CreateResponse,
        body_bytes: int,
        *,
        local: Mapping[str, History] = NOTHING,
        with_json: bool = False,
    ) -> RunInput:
        model = self._models.get(request.model)
        if request.wants_logprobs:
            self._models.require_logprobs(model)
        if request.wants_messages:
            _require_messages(principal)
        created_at, stored = int(time.time()), NOTHING
        is_opening = opens(request)
        if is_opening:
            history = History(None, (), created_at)
        else:
            tenant_id = principal.tenant_id
            history = await self._history_source.of(
                tenant_id,
                request,
                created_at=created_at,
                local=local,
                with_json=with_json or not self._specs.knows_stored_ids(model),
            )
            stored = await self._history_source.named_items(tenant_id, request)
        return RunInput(
            principal=principal,
            request=request,
            body_bytes=body_bytes,
            model=model,
            history=history,
            stored=stored,
            uuid=ids.new_uuid(),
            created_at=created_at,
            is_opening=is_opening,
        )

    async def _run(self, work: Callable[[RunInput], T], given: RunInput) -> T:
        return await self._executor.run(
            partial(work, given), size_bytes=self._specs.work_bytes(given)
        )

    def _planned(self, given: RunInput) -> RunSpec | SummaryPlan:
        """The specification, or the plan of the summary that has to be made before it."""
        request = given.request
        if is_triggered(request):
            return self._summary(given)
        written = self._specs.write(given)
        is_due = self._compactor.is_due(
            request, written.items, written.prompt, context_length=given.model.context_length
        )
        return self._summary(given) if is_due else self._specs.spec(given, written)

    def _summary(self, given: RunInput) -> SummaryPlan:
        asking = replace(
            given,
            request=self._compactor.request_for(given.request),
            uuid=ids.new_uuid(),
            durable=False,
            remembered=False,
            is_opening=False,
        )
        written = self._specs.write(asking, item_by_item=True)
        # The last item is the one that asks.
        plan = SummaryPlan(self._specs.spec(asking, written), written.items[:-1])
        self._compactor.check(plan, context_length=given.model.context_length)
        return plan


def opens(request: CreateResponse) -> bool:
    """Whether it continues nothing, and brings nothing but messages without ids."""
    if request.previous_response_id is not None or request.conversation is not None:
        return False
    for item in request.input:
        if item.id is not None or not isinstance(item, Message):
            return False
    return bool(request.input)


def _require_messages(principal: Principal) -> None:
    """Raises `PermissionDenied` for a tenant that may not see the messages of its responses."""
    if principal.policy.response_messages != "allowed":
        raise PermissionDenied(
            "The Harmony messages and token ids of a response are not shown to this API key. Leave "
            "'enable_response_messages' and the token ids in 'include' out, or ask the operator to "
            f"run: harmony-gateway tenants set {principal.tenant_name} --response-messages allowed",
            code="response_messages_not_allowed",
            param="enable_response_messages",
        )
