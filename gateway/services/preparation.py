"""A valid request → all that a run needs: history, prompt, bounds. Nothing is generated here."""

from __future__ import annotations

import hashlib
import hmac
import time
from array import array
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from gateway import ids
from gateway.conversation.assembly import assemble, referenced_ids
from gateway.conversation.truncation import drop_oldest_turns
from gateway.errors import ContextLengthExceeded, InvalidRequest, PreviousResponseNotFound
from gateway.generation import PREAMBLE, Sampling
from gateway.harmony.rendering import RenderOptions
from gateway.protocol.echo import echo
from gateway.protocol.responses import ResponseHead
from gateway.runs.specification import RunSpecification
from gateway.store import messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from gateway.conversation.assembly import Context
    from gateway.generation import Prompt
    from gateway.harmony.rendering import Renderer
    from gateway.protocol.context import ContextItem
    from gateway.protocol.requests import CreateResponse
    from gateway.services.models import Model, Models
    from gateway.services.threads import Threads
    from gateway.store.engine import Database
    from gateway.tenancy import Principal, TenantId

REPEATED_ITEM_BYTES = 100
"""An item that has ids costs about as much as so many bytes that have to be tokenised."""
_RUNNING = frozenset({"queued", "in_progress"})


@dataclass(frozen=True, slots=True)
class PreparationLimits:
    """Bounds on what a request may bring with it."""

    history_depth_max: int
    history_items_max: int


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """What the operator decides of every prompt's system message."""

    identity: str
    knowledge_cutoff: str
    with_date: bool
    commentary_without_tools: bool


@dataclass(frozen=True, slots=True)
class Rendering:
    """What prompts are rendered by, and where."""

    renderer: Renderer
    threads: Threads


@dataclass(frozen=True, slots=True)
class _Parent:
    """What a response continues: nothing, or a stored response and all before it.

    `root_created_at` (unix seconds) pins the date in the prompt, so that a conversation that goes
    on after midnight still finds its cached prefix.
    """

    uuid: UUID | None
    items: Sequence[ContextItem]
    root_created_at: int


@dataclass(frozen=True, slots=True)
class _Draft:
    """All that a specification is made from, read and looked up.

    `created_at` is in unix seconds. `durable`: its log is to be kept in the database.
    """

    principal: Principal
    request: CreateResponse
    durable: bool
    model: Model
    parent: _Parent
    stored: Mapping[str, ContextItem]
    uuid: UUID
    created_at: int

    def size_bytes(self, body_bytes: int) -> int:
        """How much there is to assemble and to render."""
        looked_up = (*self.parent.items, *self.stored.values())
        return body_bytes + sum(
            REPEATED_ITEM_BYTES if item.ids is not None else len(item.json) for item in looked_up
        )


class Preparation:
    """Turns requests into run specifications."""

    def __init__(
        self,
        *,
        database: Database,
        models: Models,
        rendering: Rendering,
        limits: PreparationLimits,
        system_message: SystemMessage,
        cache_salt_secret: bytes,
    ) -> None:
        self._database = database
        self._models = models
        self._render = rendering.renderer.render
        self._threads = rendering.threads
        self._limits = limits
        self._system_message = system_message
        self._cache_salt_secret = cache_salt_secret

    async def prepare(
        self, principal: Principal, request: CreateResponse, *, body_bytes: int, durable: bool
    ) -> RunSpecification:
        """The specification of a new response; `body_bytes` tells how much work that is.

        `durable`: any replica may have to go on with it.

        Raises `RequestError` for whatever the caller has to mend (unknown model, broken chain,
        unpaired calls, a prompt that is too long), `StoreUnavailable`.
        """
        model = self._models.get(request.model)
        created_at = int(time.time())
        parent = await self._parent(principal.tenant_id, request, created_at)
        stored = await self._stored_items(principal.tenant_id, request)
        draft = _Draft(
            principal, request, durable, model, parent, stored, ids.new_uuid(), created_at
        )
        return await self._threads.run(
            partial(self._specify, draft), size_bytes=draft.size_bytes(body_bytes)
        )

    def _specify(self, draft: _Draft) -> RunSpecification:
        """Assemble and render: no I/O, so that it can be done in a thread."""
        request, model, parent = draft.request, draft.model, draft.parent
        context = assemble(parent.items, request.input, stored=draft.stored, response=draft.uuid)
        options = self._options(request, model, parent.root_created_at)
        prompt, added = self._fit(request, model, context, options)
        return RunSpecification(
            principal=draft.principal,
            head=ResponseHead(
                draft.uuid,
                draft.created_at,
                request.background,
                echo(request, model=model.id, default_effort=model.reasoning_effort),
            ),
            model=model.id,
            prompt_ids=prompt.ids,
            added=added,
            sampling=_sampling(request, model, len(prompt.ids)),
            cache_salt=self._cache_salt(draft.principal.tenant_id),
            store=request.store,
            parent=parent.uuid,
            root_created_at=parent.root_created_at,
            tools=_callable(request),
            durable=draft.durable,
            streamed=request.stream,
            inputs=len(added),
        )

    async def _parent(
        self, tenant_id: TenantId, request: CreateResponse, created_at: int
    ) -> _Parent:
        previous = request.previous_response_id
        if previous is None:
            return _Parent(None, (), created_at)
        uuid = ids.parse_response_id(previous)
        history = uuid and await messages.history(
            self._database,
            tenant_id,
            uuid,
            depth_max=self._limits.history_depth_max,
            items_max=self._limits.history_items_max,
        )
        if not history:
            raise PreviousResponseNotFound(previous)
        if history.status in _RUNNING:
            raise InvalidRequest(
                f"Previous response with id '{previous}' is still in progress. Wait until it has "
                "ended, then continue it.",
                code="invalid_value",
                param="previous_response_id",
            )
        return _Parent(uuid, history.items, int(history.root_created_at.timestamp()))

    async def _stored_items(
        self, tenant_id: TenantId, request: CreateResponse
    ) -> dict[str, ContextItem]:
        wanted = referenced_ids(request.input)
        return await messages.find_items(self._database, tenant_id, wanted) if wanted else {}

    def _options(
        self, request: CreateResponse, model: Model, root_created_at: int
    ) -> RenderOptions:
        system = self._system_message
        date = datetime.fromtimestamp(root_created_at, UTC).date().isoformat()
        return RenderOptions(
            instructions=request.instructions,
            tools=request.offered_tools,
            effort=request.effort_or(model.reasoning_effort),
            current_date=date if system.with_date else None,
            model_identity=system.identity,
            knowledge_cutoff=system.knowledge_cutoff,
            commentary_without_tools=system.commentary_without_tools,
        )

    def _fit(
        self, request: CreateResponse, model: Model, context: Context, options: RenderOptions
    ) -> tuple[Prompt, tuple[ContextItem, ...]]:
        """The prompt, and the request's own items with their ids.

        With `truncation: auto` the oldest turns make room for it and for the output asked for.
        """
        items: Sequence[ContextItem] = context.items
        prompt = self._render(items, options)
        positions = list(range(len(items)))
        room = model.context_length - len(prompt.ids)
        wanted = min(request.max_output_tokens or 1, model.context_length // 2)
        if request.truncation == "auto" and room < wanted:
            positions = drop_oldest_turns(items, _costs(prompt, len(items)), wanted - room)
            prompt = self._render([items[i] for i in positions], options)
            room = model.context_length - len(prompt.ids)
        if room < 1:
            raise ContextLengthExceeded(
                f"Your input exceeds the context window of this model: it takes {len(prompt.ids)} "
                f"of {model.context_length} tokens, and the output needs some, too. Please adjust "
                "your input and try again."
            )
        rendered = {
            positions[span.source]: array("I", prompt.ids[span.start : span.end])
            for span in prompt.spans
            if span.source != PREAMBLE and positions[span.source] >= context.inherited
        }
        added = tuple(
            item.with_ids(rendered[index]) if index in rendered else item
            for index, item in enumerate(context.items)
            if index >= context.inherited
        )
        return prompt, added

    def _cache_salt(self, tenant_id: TenantId) -> str:
        """Keeps one tenant's cached prefixes from another's timing (CVE-2025-46570)."""
        digest = hmac.digest(self._cache_salt_secret, tenant_id.bytes, hashlib.sha256)
        return digest.hex()


def _callable(request: CreateResponse) -> frozenset[str] | None:
    if request.tool_choice == "none":
        return None
    return frozenset(tool.name for tool in request.tools)


def _costs(prompt: Prompt, count: int) -> list[int]:
    costs = [0] * count
    for span in prompt.spans:
        if span.source != PREAMBLE:
            costs[span.source] += span.end - span.start
    return costs


def _sampling(request: CreateResponse, model: Model, prompt_tokens: int) -> Sampling:
    room = model.context_length - prompt_tokens
    return Sampling(
        max_tokens=min(request.max_output_tokens or room, room),
        temperature=request.temperature,
        top_p=request.top_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
    )
