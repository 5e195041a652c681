"""A valid request → all that a run needs: history, prompt, bounds. Nothing is generated here."""

from __future__ import annotations

import hashlib
import hmac
import time
from array import array
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from gateway import ids
from gateway.checking import Checker
from gateway.conversation.assembly import assemble
from gateway.conversation.truncation import drop_oldest_turns
from gateway.conversation.unsealing import opened, unseal, with_last_opened
from gateway.errors import ContextLengthExceeded
from gateway.generation import PREAMBLE
from gateway.harmony.rendering import RenderOptions
from gateway.protocol.callables import declared, named
from gateway.protocol.echo import echo
from gateway.protocol.responses import ResponseHead
from gateway.protocol.rules import rules_of
from gateway.runs.specification import RunSpecification
from gateway.sealing import Binding
from gateway.services import terms
from gateway.services.compactor import SummaryPlan, is_triggered, summary_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from gateway.conversation.assembly import Context
    from gateway.generation import Prompt
    from gateway.harmony.rendering import Renderer
    from gateway.protocol.context import ContextItem
    from gateway.protocol.requests import CreateResponse
    from gateway.protocol.rules import OutputRules
    from gateway.sealing import Sealer
    from gateway.services.compactor import Compactor, Made
    from gateway.services.models import Model, Models
    from gateway.services.parents import Parent, Parents
    from gateway.services.threads import Threads
    from gateway.tenancy import Principal, TenantId

T = TypeVar("T")

REPEATED_ITEM_BYTES = 100
"""An item that has ids costs about as much as so many bytes that have to be tokenised."""
COMPILED_BYTES = 1 << 20
"""A schema or a grammar, however small, may take as long to compile as so many bytes."""


@dataclass(frozen=True, slots=True)
class PreparationLimits:
    """How a request is thought about.

    `answer_share` is the part of the output that a reasoning budget leaves to the answer.
    """

    answer_share: float


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """What the operator decides of every prompt's system message."""

    identity: str
    knowledge_cutoff: str
    with_date: bool
    commentary_without_tools: bool


@dataclass(frozen=True, slots=True)
class Rendering:
    """What prompts are rendered by, where, and by what they are made short."""

    renderer: Renderer
    threads: Threads
    compactor: Compactor


@dataclass(frozen=True, slots=True)
class Secrets:
    """`cache_salt` keeps tenants' cached prefixes apart, `sealer` opens their reasoning."""

    cache_salt: bytes
    sealer: Sealer


@dataclass(frozen=True, slots=True)
class _Draft:
    """All that a specification is made from, read and looked up.

    `created_at` is in unix seconds. `durable`: its log is to be kept in the database. `remembered`:
    what it inherits is to be known afterwards. `made` is the summary that its context ends with.
    """

    principal: Principal
    request: CreateResponse
    durable: bool
    model: Model
    parent: Parent
    stored: Mapping[str, ContextItem]
    uuid: UUID
    created_at: int
    remembered: bool = False
    made: Made | None = None

    def size_bytes(self, body_bytes: int) -> int:
        """How much there is to compile, to assemble and to render."""
        looked_up = (*self.parent.items, *self.stored.values())
        size_bytes = body_bytes + sum(
            REPEATED_ITEM_BYTES if item.ids is not None else len(item.json) for item in looked_up
        )
        return size_bytes + (COMPILED_BYTES if terms.is_compiled(self.request) else 0)


class Preparation:
    """Turns requests into run specifications."""

    def __init__(
        self,
        *,
        parents: Parents,
        models: Models,
        rendering: Rendering,
        limits: PreparationLimits,
        system_message: SystemMessage,
        secrets: Secrets,
    ) -> None:
        self._parents = parents
        self._models = models
        self._render = rendering.renderer.render
        self._threads = rendering.threads
        self._limits = limits
        self._system_message = system_message
        self._secrets = secrets
        self._compactor = rendering.compactor

    async def prepare(
        self,
        principal: Principal,
        request: CreateResponse,
        *,
        body_bytes: int,
        durable: bool,
        local: Mapping[str, Parent],
        remembered: bool = False,
    ) -> RunSpecification:
        """The specification of a new response; `body_bytes` tells how much work that is.

        `durable`: any replica may have to go on with it. `local` are responses that it may continue
        without their being stored (`Parents.of`). `remembered`: others may continue this one in the
        same way.

        Raises `RequestError` for whatever the caller has to mend (unknown model, logprobs that
        nobody can tell, broken chain, unpaired calls, a schema or a grammar that is none, reasoning
        that was sealed elsewhere, a prompt that is too long), `StoreUnavailable`, and where the
        context is to be compacted `UpstreamError` and `SummaryFailed`.
        """
        draft = await self._draft(
            principal, request, durable=durable, local=local, remembered=remembered
        )
        draft = await self._compacted(draft, body_bytes)
        try:
            return await self._in_thread(self._specify, draft, body_bytes)
        except BaseException:
            if draft.made is not None:
                await self._compactor.book(draft.made)
            raise

    async def summary(
        self, principal: Principal, request: CreateResponse, *, body_bytes: int
    ) -> SummaryPlan:
        """How to summarise what the request continues and brings; raises what `prepare` does."""
        draft = await self._draft(principal, request)
        return await self._in_thread(self._summary, draft, body_bytes)

    async def count(self, principal: Principal, request: CreateResponse, *, body_bytes: int) -> int:
        """How many tokens the prompt of the request has, also of one that is too long to be run.

        Raises `RequestError` and `StoreUnavailable` as `prepare` does.
        """
        draft = await self._draft(principal, request)
        return await self._in_thread(self._count, draft, body_bytes)

    async def _in_thread(self, work: Callable[[_Draft], T], draft: _Draft, body_bytes: int) -> T:
        return await self._threads.run(
            partial(work, draft), size_bytes=draft.size_bytes(body_bytes)
        )

    async def _draft(
        self,
        principal: Principal,
        request: CreateResponse,
        *,
        durable: bool = False,
        local: Mapping[str, Parent] = MappingProxyType({}),
        remembered: bool = False,
    ) -> _Draft:
        model = self._models.get(request.model)
        if request.wants_logprobs:
            self._models.require_logprobs(model)
        created_at = int(time.time())
        parent = await self._parents.of(
            principal.tenant_id, request, created_at=created_at, local=local
        )
        stored = await self._parents.named_items(principal.tenant_id, request)
        return _Draft(
            principal,
            request,
            durable,
            model,
            parent,
            stored,
            ids.new_uuid(),
            created_at,
            remembered,
        )

    async def _compacted(self, draft: _Draft, body_bytes: int) -> _Draft:
        """The draft, with a summary if one is asked for or due."""
        if not (draft.request.context_management or is_triggered(draft.request)):
            return draft
        plan = await self._in_thread(self._due_summary, draft, body_bytes)
        if plan is None:
            return draft
        return replace(draft, made=await self._compactor.make(plan.specification))

    def _due_summary(self, draft: _Draft) -> SummaryPlan | None:
        if not is_triggered(draft.request):
            context, rules = self._assembled(draft), rules_of(self._head(draft).echo)
            prompt = self._render(context.items, self._options(draft, rules))
            is_due = self._compactor.is_due(
                draft.request, context.items, prompt, context_length=draft.model.context_length
            )
            if not is_due:
                return None
        return self._summary(draft)

    def _summary(self, draft: _Draft) -> SummaryPlan:
        request = self._compactor.request_for(draft.request)
        asking = replace(draft, request=request, uuid=ids.new_uuid(), durable=False)
        # The last item is the one that asks.
        plan = SummaryPlan(self._specify(asking), self._assembled(asking).items[:-1])
        self._compactor.check(plan, context_length=draft.model.context_length)
        return plan

    def _count(self, draft: _Draft) -> int:
        rules = rules_of(self._head(draft).echo)
        Checker(rules).compile()
        prompt, _ = self._fit(draft, self._assembled(draft), self._options(draft, rules))
        return len(prompt.ids)

    def _specify(self, draft: _Draft) -> RunSpecification:
        """Compile, assemble and render: no I/O, so that it can be done in a thread."""
        request, model, parent = draft.request, draft.model, draft.parent
        policy = draft.principal.policy
        head = self._head(draft)
        rules = rules_of(head.echo)
        checker = Checker(rules)
        checker.compile()
        prompt, own = self._fit(draft, self._assembled(draft), self._options(draft, rules))
        _check_room(prompt, model)
        added = (*parent.unstored, *own)
        sampling = terms.sampling(request, room=model.context_length - len(prompt.ids))
        if is_triggered(request):
            sampling = replace(sampling, max_tokens=0)
        return RunSpecification(
            principal=draft.principal,
            head=head,
            model=model.id,
            prompt_ids=prompt.ids,
            added=added,
            sampling=sampling,
            cache_salt=self._cache_salt(draft.principal.tenant_id),
            store=request.store,
            parent=parent.uuid,
            conversation=parent.conversation,
            root_created_at=parent.root_created_at,
            rules=rules,
            checker=checker,
            reasoning_budget=terms.reasoning_budget(
                request,
                policy,
                max_tokens=sampling.max_tokens,
                answer_share=self._limits.answer_share,
            ),
            priority=terms.PRIORITIES[terms.service_tier(request, policy)],
            durable=draft.durable,
            streamed=request.stream,
            inputs=len(added),
            inherited=parent.stored if draft.remembered else None,
            compacted=draft.made and draft.made.compacted,
        )

    def _head(self, draft: _Draft) -> ResponseHead:
        request, model, principal = draft.request, draft.model, draft.principal
        binding = None
        if request.wants_encrypted_reasoning:
            binding = Binding(principal.tenant_id, model.id, self._secrets.sealer.key_id)
        repeated = echo(
            request,
            model=model.id,
            default_effort=model.reasoning_effort,
            service_tier=terms.service_tier(request, principal.policy),
            summaries=principal.policy.reasoning_summary != "off",
        )
        return ResponseHead(draft.uuid, draft.created_at, request.background, repeated, binding)

    def _assembled(self, draft: _Draft) -> Context:
        new = draft.request.input
        sealer, tenant = self._secrets.sealer, draft.principal.tenant_id
        return assemble(
            with_last_opened(draft.parent.items, sealer, tenant=tenant),
            new,
            stored={
                name: opened(item, sealer, tenant=tenant) for name, item in draft.stored.items()
            },
            unsealed=unseal(new, sealer, tenant=tenant, model=draft.model.id),
            response=draft.uuid,
        )

    def _options(self, draft: _Draft, rules: OutputRules) -> RenderOptions:
        request, system = draft.request, self._system_message
        date = datetime.fromtimestamp(draft.parent.root_created_at, UTC).date().isoformat()
        tools = request.offered_tools
        return RenderOptions(
            instructions=request.instructions,
            tools=declared(tools),
            tool_paths=tuple(f"tools{tool.path}" for tool in named(tools)),
            effort=request.effort_or(draft.model.reasoning_effort),
            current_date=date if system.with_date else None,
            model_identity=system.identity,
            knowledge_cutoff=system.knowledge_cutoff,
            commentary_without_tools=system.commentary_without_tools,
            answer=rules.answer,
        )

    def _fit(
        self, draft: _Draft, context: Context, options: RenderOptions
    ) -> tuple[Prompt, tuple[ContextItem, ...]]:
        """The prompt, and the request's own items with their ids.

        With `truncation: auto` the oldest turns make room for it and for the output asked for.
        """
        request, length = draft.request, draft.model.context_length
        items = context.items
        if draft.made is not None:
            items = (*items, summary_in(draft.made.compacted))
        prompt = self._render(items, options)
        added = _rendered(context, prompt)
        room = length - len(prompt.ids)
        wanted = min(request.max_output_tokens or 1, length // 2)
        if request.truncation == "auto" and room < wanted:
            kept = drop_oldest_turns(items, _costs(prompt, len(items)), wanted - room)
            prompt = self._render([items[i] for i in kept], options)
        return prompt, added

    def _cache_salt(self, tenant_id: TenantId) -> str:
        """Keeps one tenant's cached prefixes from another's timing (CVE-2025-46570)."""
        digest = hmac.digest(self._secrets.cache_salt, tenant_id.bytes, hashlib.sha256)
        return digest.hex()


def _check_room(prompt: Prompt, model: Model) -> None:
    """Raises `ContextLengthExceeded`."""
    length = model.context_length
    if len(prompt.ids) >= length:
        raise ContextLengthExceeded(
            f"Your input exceeds the context window of this model: it takes {len(prompt.ids)} "
            f"of {length} tokens, and the output needs some, too. Please adjust your input and "
            "try again."
        )


def _rendered(context: Context, prompt: Prompt) -> tuple[ContextItem, ...]:
    """The items that the request brought, with the ids that they have in the whole prompt."""
    shown = {
        span.source: array("I", prompt.ids[span.start : span.end])
        for span in prompt.spans
        if span.source >= context.inherited
    }
    return tuple(
        item.with_ids(shown[index]) if index in shown else item
        for index, item in enumerate(context.added, context.inherited)
    )


def _costs(prompt: Prompt, count: int) -> list[int]:
    costs = [0] * count
    for span in prompt.spans:
        if span.source != PREAMBLE:
            costs[span.source] += span.end - span.start
    return costs
