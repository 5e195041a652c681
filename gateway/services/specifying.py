"""Drafts → specifications: compile, assemble, render. No I/O: all of it can be done in a thread."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from itertools import takewhile
from typing import TYPE_CHECKING, cast

from gateway.constraints.schema_cache import SchemaCache
from gateway.constraints.validation import Checker
from gateway.conversation.assembly import assemble, opening
from gateway.conversation.truncation import drop_oldest_turns
from gateway.conversation.unsealing import opened, unseal, with_last_opened
from gateway.errors import ContextLengthExceeded, InvalidRequest
from gateway.generation import PREAMBLE
from gateway.models.format import RenderOptions, Repeated
from gateway.models.history import (
    INSTRUCTING_ROLES,
    is_answer,
    leading_instructions,
)
from gateway.models.item_texts import message_text
from gateway.protocol.callables import named
from gateway.protocol.calls import call_fields
from gateway.protocol.items import Compaction, CompactionTrigger, ItemReference, Message
from gateway.protocol.responses import HarmonyMessages
from gateway.runs.specification import RunSpecification
from gateway.sealing import Binding
from gateway.services import terms
from gateway.services.compactor import is_triggered, summary_in
from gateway.services.frames import Frames
from gateway.store.packed import PackedItems

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from uuid import UUID

    from gateway.constraints.rules import OutputRules
    from gateway.conversation.assembly import Context
    from gateway.generation import Prompt
    from gateway.log import Compacted
    from gateway.models.format import FormatOf, ModelFormat
    from gateway.protocol.context import ContextItem
    from gateway.protocol.items import InputItem
    from gateway.protocol.requests import CreateResponse
    from gateway.protocol.responses import ResponseHead
    from gateway.sealing import Sealer
    from gateway.services.frames import Frame
    from gateway.services.models import Model
    from gateway.services.parents import Parent
    from gateway.tenancy import Principal, TenantId

REPEATED_ITEM_BYTES = 30
"""An item that has ids costs about as much as so many bytes that have to be tokenised."""
ANSWER_SHARE = 16
"""Where a request does not say how long its answer may be, old turns make room for the window's
length divided by this."""
SALTS_MAX = 4_096
"""Tenants whose salt is kept; that of another is computed anew."""
DAY_S = 86_400
DATES_MAX = 64
COMPILED_BYTES = 1 << 20
"""A schema or a grammar, however small, may take as long to compile as so many bytes."""


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """What the operator decides of every prompt's system message."""

    identity: str
    knowledge_cutoff: str
    with_date: bool
    commentary_without_tools: bool


@dataclass(frozen=True, slots=True)
class Secrets:
    """`cache_salt` keeps tenants' cached prefixes apart, `sealer` opens their reasoning."""

    cache_salt: bytes
    sealer: Sealer


@dataclass(frozen=True, slots=True)
class Draft:
    """All that a specification is made from, read and looked up.

    `body_bytes` is how long the request was as JSON, `created_at` is in unix seconds. `durable`:
    its log is to be kept in the database. `remembered`: what it inherits is to be known afterwards.
    `silent`: the model is not asked. `compacted` is the summary that its context ends with. `frame`
    is that of many requests, this one among them, if there is one. `is_opening`: it continues
    nothing, and all that it brings are messages without ids. `is_told`: what the model is told
    before the conversation is kept, tokenised.
    """

    principal: Principal
    request: CreateResponse
    body_bytes: int
    model: Model
    parent: Parent
    stored: Mapping[str, ContextItem]
    uuid: UUID
    created_at: int
    durable: bool = False
    remembered: bool = False
    silent: bool = False
    compacted: Compacted | None = None
    frame: Frame | None = None
    is_opening: bool = False
    is_told: bool = False

    @property
    def is_plain(self) -> bool:
        """There is nothing in it that takes long, but for its texts: it is a few messages, in a
        request like many others.
        """
        frame = self.frame
        return frame is not None and frame.is_compiled and self.is_opening and not frame.is_sealed

    @property
    def size_bytes(self) -> int:
        """How much there is to compile, to assemble and to render."""
        size_bytes = self.body_bytes
        if self.frame is not None and self.is_told:
            size_bytes = max(0, size_bytes - self.frame.json_bytes)
        if self.parent.items:
            size_bytes += _size_bytes(self.parent.items)
        if self.stored:
            size_bytes += _size_bytes(tuple(self.stored.values()))
        is_compiled = self.frame is not None and self.frame.is_compiled
        if not is_compiled and terms.is_compiled(self.request):
            size_bytes += COMPILED_BYTES
        return size_bytes

    @property
    def is_mute(self) -> bool:
        """The model says nothing."""
        return self.silent or (not self.is_opening and is_triggered(self.request))


@dataclass(frozen=True, slots=True)
class Written:
    """A draft, assembled and rendered: the `prompt` of `items` has nothing left out.

    `items` are those of the context and, behind them, the summary that it ends with. `is_repeated`:
    of the history, which was repeated as it is, there are none.
    """

    frame: Frame
    checker: Checker
    context: Context
    items: tuple[ContextItem, ...]
    options: RenderOptions
    prompt: Prompt
    is_repeated: bool = False


class Specifier:
    """Makes specifications. Its methods raise `RequestError` for what the caller has to mend."""

    def __init__(
        self,
        format_of: FormatOf,
        *,
        system_message: SystemMessage,
        secrets: Secrets,
        answer_share: float,
    ) -> None:
        """`answer_share` is the part of the output that a reasoning budget leaves to the answer."""
        self._format_of = format_of
        self._system_message = system_message
        self._secrets = secrets
        self._answer_share = answer_share
        self._cache_salt = lru_cache(SALTS_MAX)(self._new_cache_salt)
        self._kept = SchemaCache()
        self._frames = Frames()
        self.kept_frame = self._frames.kept

    def write(self, draft: Draft, *, item_by_item: bool = False) -> Written:
        """The whole prompt. A schema or a grammar that cannot be checked is refused here, too.

        `item_by_item`: its items are to be known.
        """
        frame = draft.frame or self._new_frame(draft)
        checker = frame.checker or self._checker(draft, frame.rules)
        format_ = self._format_of(draft.model.id)
        repeated = None if item_by_item else _repeated(draft, format_)
        context = self._assembled(draft, with_history=repeated is None)
        options, items = self._options(draft, frame), context.items
        if draft.compacted is not None:
            items = (*items, summary_in(draft.compacted))
        prompt = format_.render(items, options, repeated)
        is_repeated = repeated is not None
        return Written(frame, checker, context, items, options, prompt, is_repeated)

    def is_told(self, draft: Draft) -> bool:
        """Whether what the model is told before the conversation is kept, tokenised.

        Of instructions in a history, or in items that are only named, nothing is known.
        """
        if draft.frame is None or draft.parent.items or draft.stored:
            return False
        leading = takewhile(_is_instruction, draft.request.input)
        texts = [message_text(cast("Message", item)) for item in leading]
        format_ = self._format_of(draft.model.id)
        return format_.has_told(self._options(draft, draft.frame), texts)

    def knows_stored_ids(self, model: Model) -> bool:
        """Whether the ids of stored items are those of this model's format: others take the JSON of
        a history to continue it.
        """
        return self._format_of(model.id).framing.stores_ids

    def count(self, draft: Draft) -> int:
        """How many tokens the prompt has, also one that is too long to be run."""
        return len(self._fitting(draft, self.write(draft)).ids)

    def specify(self, draft: Draft, written: Written | None = None) -> RunSpecification:
        """The specification; `written` is what `write` made of the same draft before."""
        written = written or self.write(draft)
        request, model, parent = draft.request, draft.model, draft.parent
        policy = draft.principal.policy
        prompt, is_mute = self._fitting(draft, written), draft.is_mute
        format_ = self._format_of(model.id)
        if not is_mute:
            _check_room(prompt, model)
        added: tuple[ContextItem, ...] = ()
        if request.store or draft.durable or draft.remembered:
            # Nobody asks again for what is not kept, and a run may take minutes.
            new = _rendered(written.context, written.prompt if format_.framing.stores_ids else None)
            added = (*parent.unstored, *new)
        room, sampling = model.context_length - len(prompt.ids), written.frame.sampling
        if sampling is None or sampling.max_tokens > room:
            sampling = terms.sampling(request, room=room)
        if is_mute:
            sampling = replace(sampling, max_tokens=0)
        return RunSpecification(
            principal=draft.principal,
            head=self._head(draft, written.frame, prompt),
            model=model.id,
            prompt_ids=prompt.ids,
            added=added,
            sampling=sampling,
            cache_salt=self._cache_salt(draft.principal.tenant_id),
            store=request.store,
            parent=parent.uuid,
            conversation=parent.conversation,
            root_created_at=parent.root_created_at,
            rules=written.frame.rules,
            checker=written.checker,
            reasoning_budget=terms.reasoning_budget(
                request,
                policy,
                max_tokens=sampling.max_tokens,
                answer_share=self._answer_share,
                framing_tokens=format_.framing_tokens,
            ),
            priority=written.frame.priority,
            durable=draft.durable,
            streamed=request.stream,
            inputs=len(added),
            inherited=parent.stored if draft.remembered else None,
            compacted=draft.compacted,
        )

    def _head(self, draft: Draft, frame: Frame, prompt: Prompt) -> ResponseHead:
        binding = None
        if frame.is_sealed:
            tenant, key = draft.principal.tenant_id, self._secrets.sealer.key_id
            binding = Binding(tenant, draft.model.id, key)
        request = draft.request
        head = frame.head(draft.uuid, draft.created_at, request, binding)
        if not request.wants_messages:
            return head
        shown = self._format_of(draft.model.id).messages(prompt, with_ids=request.wants_input_ids)
        return replace(head, messages=HarmonyMessages(shown, request.wants_output_ids))

    def _new_frame(self, draft: Draft) -> Frame:
        """Where output has to be checked against something, that is compiled for it."""
        policy, check = draft.principal.policy, partial(self._checker, draft)
        return self._frames.made(draft.request, draft.model, policy, check)

    def _checker(self, draft: Draft, rules: OutputRules) -> Checker:
        checker = Checker(
            rules,
            call_fields,
            kept=self._kept,
            scope=draft.principal.tenant_id.bytes,
            paths={tool.name: f"tools{tool.path}" for tool in named(draft.request.offered_tools)},
        )
        checker.compile()
        return checker

    def _assembled(self, draft: Draft, *, with_history: bool) -> Context:
        new, parent = draft.request.input, draft.parent
        if draft.is_opening:
            return opening(cast("tuple[Message, ...]", new), draft.uuid)
        sealer, tenant = self._secrets.sealer, draft.principal.tenant_id
        history, stored = tuple(parent.items), draft.stored
        if not self.knows_stored_ids(draft.model):
            history = tuple(map(_without_ids, history))
            stored = {name: _without_ids(item) for name, item in stored.items()}
        return assemble(
            with_last_opened(history, sealer, tenant=tenant) if with_history else (),
            new,
            stored={name: opened(item, sealer, tenant=tenant) for name, item in stored.items()},
            unsealed=unseal(new, sealer, tenant=tenant, model=draft.model.id),
            response=draft.uuid,
            taken=() if with_history else _taken_ids(parent.items, new),
        )

    def _options(self, draft: Draft, frame: Frame) -> RenderOptions:
        system = self._system_message
        date = _date(draft.parent.root_created_at // DAY_S) if system.with_date else None
        return RenderOptions(
            instructions=draft.request.instructions,
            tools=frame.tools,
            tool_paths=frame.tool_paths,
            effort=frame.effort,
            current_date=date,
            model_identity=system.identity,
            knowledge_cutoff=system.knowledge_cutoff,
            commentary_without_tools=system.commentary_without_tools,
            answer=frame.rules.answer,
            scope=draft.principal.tenant_id.bytes,
        )

    def _fitting(self, draft: Draft, written: Written) -> Prompt:
        """With `truncation: auto` the oldest turns make room for the prompt and for an answer."""
        request, length, prompt = draft.request, draft.model.context_length, written.prompt
        room = length - len(prompt.ids)
        wanted = min(request.max_output_tokens or length // ANSWER_SHARE, length // 2)
        if request.truncation != "auto" or room >= wanted:
            return prompt
        if written.is_repeated:
            written = self.write(draft, item_by_item=True)
        items, costs = written.items, _costs(written.prompt, len(written.items))
        kept = drop_oldest_turns(items, costs, 1 - room, wanted_tokens=wanted - room)
        return self._format_of(draft.model.id).render([items[i] for i in kept], written.options)

    def _new_cache_salt(self, tenant_id: TenantId) -> str:
        """Keeps one tenant's cached prefixes from another's timing (CVE-2025-46570)."""
        digest = hmac.digest(self._secrets.cache_salt, tenant_id.bytes, hashlib.sha256)
        return digest.hex()


@lru_cache(DATES_MAX)
def _date(day: int) -> str:
    """The date (UTC) of a day, which is the number of those since 1970."""
    return datetime.fromtimestamp(day * DAY_S, UTC).date().isoformat()


def _repeated(draft: Draft, format_: ModelFormat) -> Repeated | None:
    """What the prompt repeats of the history; None where it takes its items to make the prompt."""
    new, history = draft.request.input, draft.parent.items
    if draft.request.context_management or not isinstance(history, PackedItems):
        return None
    if not format_.framing.stores_ids:
        return None
    if any(isinstance(item, Compaction | CompactionTrigger | ItemReference) for item in new):
        return None
    columns = history.columns()
    if columns is None:
        return None
    is_answered = any(isinstance(item, Message) and is_answer(item) for item in new)
    ids = format_.repeated_ids(columns, is_answered=is_answered)
    if not ids:
        return None
    leading = leading_instructions(columns.labels[name] for name in columns.names)
    return Repeated(history.first(leading), ids)


def _is_instruction(item: InputItem) -> bool:
    return isinstance(item, Message) and item.role in INSTRUCTING_ROLES


def _taken_ids(history: Sequence[ContextItem], new: Sequence[InputItem]) -> Collection[str]:
    """The ids that items of the history have, where a new one might have the same."""
    if isinstance(history, PackedItems) and any(item.id is not None for item in new):
        return history.item_ids()
    return ()


def _size_bytes(items: Sequence[ContextItem]) -> int:
    """Of items that are packed still no more is known than what they are together."""
    if isinstance(items, PackedItems):
        return len(items) * REPEATED_ITEM_BYTES + items.json_bytes
    return sum(REPEATED_ITEM_BYTES if item.ids is not None else len(item.json) for item in items)


def _check_room(prompt: Prompt, model: Model) -> None:
    """Raises `ContextLengthExceeded`."""
    length = model.context_length
    if len(prompt.ids) >= length:
        raise ContextLengthExceeded(
            f"Your input exceeds the context window of this model: it takes {len(prompt.ids)} "
            f"of {length} tokens, and the output needs some, too. Please adjust your input and "
            "try again."
        )


def _without_ids(item: ContextItem) -> ContextItem:
    """A stored item for a model in whose format its ids mean something else.

    Raises `InvalidRequest` where only its ids are known: a connection keeps no more of a history.
    """
    if not item.json and item.parsed is None:
        raise InvalidRequest(
            "This connection continued the response with a model of another kind. Open a new "
            "connection to continue it with this one.",
            code="invalid_value",
            param="previous_response_id",
        )
    return replace(item, ids=None)


def _rendered(context: Context, prompt: Prompt | None) -> tuple[ContextItem, ...]:
    """The items that the request brought, with the ids that they have in the whole prompt; without
    one, with none.
    """
    added = list(context.added)
    if prompt is None:
        return tuple(added)
    for span in prompt.spans:
        at = span.source - context.inherited
        if 0 <= at < len(added):  # what is behind them is a summary
            added[at] = added[at].with_ids(prompt.ids[span.start : span.end])
    return tuple(added)


def _costs(prompt: Prompt, count: int) -> list[int]:
    costs = [0] * count
    for span in prompt.spans:
        if span.source != PREAMBLE:
            costs[span.source] += span.end - span.start
    return costs
