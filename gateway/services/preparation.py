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
from gateway.checking import Checker
from gateway.conversation.assembly import assemble
from gateway.conversation.truncation import drop_oldest_turns
from gateway.conversation.unsealing import unseal
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

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from gateway.conversation.assembly import Context
    from gateway.generation import Prompt
    from gateway.harmony.rendering import Renderer
    from gateway.protocol.context import ContextItem
    from gateway.protocol.requests import CreateResponse
    from gateway.protocol.rules import OutputRules
    from gateway.sealing import Sealer
    from gateway.services.models import Model, Models
    from gateway.services.parents import Parent, Parents
    from gateway.services.threads import Threads
    from gateway.tenancy import Principal, TenantId

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
    """What prompts are rendered by, and where."""

    renderer: Renderer
    threads: Threads


@dataclass(frozen=True, slots=True)
class Secrets:
    """`cache_salt` keeps tenants' cached prefixes apart, `sealer` opens their reasoning."""

    cache_salt: bytes
    sealer: Sealer


@dataclass(frozen=True, slots=True)
class _Draft:
    """All that a specification is made from, read and looked up.

    `created_at` is in unix seconds. `durable`: its log is to be kept in the database.
    """

    principal: Principal
    request: CreateResponse
    durable: bool
    model: Model
    parent: Parent
    stored: Mapping[str, ContextItem]
    uuid: UUID
    created_at: int

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

    async def prepare(
        self,
        principal: Principal,
        request: CreateResponse,
        *,
        body_bytes: int,
        durable: bool,
        local: Mapping[str, Parent],
    ) -> RunSpecification:
        """The specification of a new response; `body_bytes` tells how much work that is.

        `durable`: any replica may have to go on with it. `local` are responses that it may continue
        without their being stored (`Parents.of`).

        Raises `RequestError` for whatever the caller has to mend (unknown model, logprobs that
        nobody can tell, broken chain, unpaired calls, a schema or a grammar that is none, reasoning
        that was sealed elsewhere, a prompt that is too long), `StoreUnavailable`.
        """
        model = self._models.get(request.model)
        if request.wants_logprobs:
            self._models.require_logprobs(model)
        created_at = int(time.time())
        parent = await self._parents.of(
            principal.tenant_id, request, created_at=created_at, local=local
        )
        stored = await self._parents.named_items(principal.tenant_id, request)
        draft = _Draft(
            principal, request, durable, model, parent, stored, ids.new_uuid(), created_at
        )
        return await self._threads.run(
            partial(self._specify, draft), size_bytes=draft.size_bytes(body_bytes)
        )

    def _specify(self, draft: _Draft) -> RunSpecification:
        """Compile, assemble and render: no I/O, so that it can be done in a thread."""
        request, model, parent = draft.request, draft.model, draft.parent
        policy = draft.principal.policy
        head = self._head(draft)
        rules = rules_of(head.echo)
        checker = Checker(rules)
        checker.compile()
        prompt, added = self._fit(draft, self._assembled(draft), self._options(draft, rules))
        sampling = terms.sampling(request, room=model.context_length - len(prompt.ids))
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
        return assemble(
            draft.parent.items,
            new,
            stored=draft.stored,
            unsealed=unseal(
                new,
                self._secrets.sealer,
                tenant=draft.principal.tenant_id,
                model=draft.model.id,
            ),
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
        prompt = self._render(items, options)
        added = _rendered(context, prompt)
        room = length - len(prompt.ids)
        wanted = min(request.max_output_tokens or 1, length // 2)
        if request.truncation == "auto" and room < wanted:
            kept = drop_oldest_turns(items, _costs(prompt, len(items)), wanted - room)
            prompt = self._render([items[i] for i in kept], options)
            room = length - len(prompt.ids)
        if room < 1:
            raise ContextLengthExceeded(
                f"Your input exceeds the context window of this model: it takes {len(prompt.ids)} "
                f"of {length} tokens, and the output needs some, too. Please adjust your input and "
                "try again."
            )
        return prompt, added

    def _cache_salt(self, tenant_id: TenantId) -> str:
        """Keeps one tenant's cached prefixes from another's timing (CVE-2025-46570)."""
        digest = hmac.digest(self._secrets.cache_salt, tenant_id.bytes, hashlib.sha256)
        return digest.hex()


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
