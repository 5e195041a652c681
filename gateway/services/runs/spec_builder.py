from __future__ import annotations

import hashlib
import hmac
import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from gateway.cache import LruCache
from gateway.constraints.validation import Checker, SchemaCache
from gateway.context.assembly import assemble, may_repeat, opened, opening, unseal, with_last_opened
from gateway.context.shortening import costs_of, drop_oldest_turns, missing_tokens
from gateway.engine.run_spec import RunSpec
from gateway.errors import ContextLengthExceeded, InvalidRequest
from gateway.generation import Route, Sampling
from gateway.metering import NOBODY, Metering, tags_of, who_asks
from gateway.models.format import NO_BUILTINS, UNTHINKS, Builtins, RenderOptions, RepeatedHistory
from gateway.models.history import is_answer, leading_instructions
from gateway.protocol.call_items import call_fields
from gateway.protocol.items import (
    Compaction,
    CompactionTrigger,
    ItemReference,
    McpApprovalResponse,
    Message,
)
from gateway.protocol.parameters import JsonSchemaFormat
from gateway.protocol.responses.create_request import ENCRYPTED_REASONING
from gateway.protocol.responses.response_object import (
    LONG_ECHO_BYTES,
    HarmonyMessages,
    ResponseHead,
    echo,
    kept_echo,
)
from gateway.protocol.responses.response_rules import offered_tools, rules_of
from gateway.protocol.tool_types import (
    CustomTool,
    FunctionTool,
    GrammarFormat,
    NamespaceTool,
    declared,
    named,
)
from gateway.sealing import Binding
from gateway.services.runs.compaction import is_triggered, summary_in
from gateway.services.runs.tool_grants import (
    NOTHING_GRANTED,
    Granted,
    ServerTools,
    rule_key,
    server_tools,
)
from gateway.store.packing import PackedItems
from gateway.telemetry.trace_context import recorded
from gateway.tenancy import TenantId
from gateway.text_ids import TEXT_STATE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from gateway.constraints.output_rules import OutputRules
    from gateway.context.assembly import Context
    from gateway.entries import Compacted
    from gateway.generation import Prompt
    from gateway.models.format import ModelFormat, Rendering
    from gateway.protocol.context_item import ContextItem
    from gateway.protocol.items import InputItem
    from gateway.protocol.responses.create_request import CreateResponse, RequestKey
    from gateway.protocol.responses.response_object import ServiceTier
    from gateway.protocol.tool_types import Tool
    from gateway.sealing import Sealer
    from gateway.services.models import Model
    from gateway.services.runs.history_source import History
    from gateway.settings.sections import Harmony
    from gateway.tenancy import Principal
    from gateway.tenancy.policy import TenantPolicy

    Echo = dict[str, Any]


ANSWER_SHARE: Final = 0.25
"""Part of max_output_tokens that a reasoning budget leaves to the answer."""
REPEATED_ITEM_BYTES: Final = 30
"""Cost of an item with ids, in bytes of text to tokenise."""
SERVER_TOOL_BYTES: Final = 1_024
SALTS_MAX: Final = 4_096
DAY_S: Final = 86_400
DATES_MAX: Final = 64
COMPILED_BYTES: Final = 1 << 20
"""Cost of compiling a schema or grammar, however small, in bytes of text to tokenise."""
RULES_BYTES_MAX: Final = 2 << 20
"""Weight of all cached output rules; their memory is up to ten times as much."""
RULES_BYTES_MIN: Final = 2 << 10
GRAMMAR_WEIGHT: Final = 50
"""Memory of a compiled grammar relative to other rules of its length."""
GRAMMAR_BYTES_MIN: Final = 80 << 10
"""Weight of a short grammar: a class of Unicode's letters takes most of a MiB."""


_LOOKING_BACK: Final = (Compaction, CompactionTrigger, ItemReference, McpApprovalResponse)
"""New items whose prompt depends on the items before them."""


@dataclass(frozen=True, slots=True)
class CreateCommand:
    """Request to create a response.

    `requested_at` is of `time.perf_counter`. `local` are unstored responses that it may continue,
    for which hosted tools keep `tool_values`. With `remembered` it may be continued like that, too
    (`Generation.continued`). Without `generate` the context is only checked and prepared.
    """

    principal: Principal
    request: CreateResponse
    key: RequestKey | None
    body_bytes: int
    requested_at: float
    local: Mapping[str, History] = field(default_factory=dict)
    tool_values: LruCache[str, Any] | None = None
    remembered: bool = False
    generate: bool = True


@dataclass(frozen=True)
class RunInput:
    """Command, and what was looked up for it.

    `is_opening`: it continues nothing, and its input is messages without ids. `stored` are
    referenced items; `compacted` is the summary that ends the context.
    """

    command: CreateCommand
    model: Model
    history: History
    stored: Mapping[str, ContextItem]
    uuid: UUID
    created_at: int
    is_opening: bool = False
    compacted: Compacted | None = None
    granted: Granted = NOTHING_GRANTED
    rendered: Mapping[bytes, Rendering] = field(default_factory=dict)
    image_holds: tuple[object, ...] = ()

    @property
    def tenant_id(self) -> TenantId:
        return self.command.principal.tenant_id

    @cached_property
    def echoed(self) -> Echo:
        command = self.command
        return echo(
            command.request,
            model=self.model.id,
            default_effort=self.model.reasoning_effort,
            service_tier=service_tier(command.request, command.principal.policy),
            summaries=command.principal.policy.reasoning_summary != "off",
            unthinks=UNTHINKS in self.model.format.abilities,
        )

    @cached_property
    def demands(self) -> tuple[bytes, int]:
        """Return a digest of all that the output rules follow from, and its bytes in a cache."""
        echoed = self.echoed
        tools, text, stop = offered_tools(echoed), echoed["text"]["format"], echoed.get("stop")
        scope = self.tenant_id.bytes if tools or stop or text["type"] == "json_schema" else b""
        choice, parallel = echoed["tool_choice"], echoed["parallel_tool_calls"]
        hosted = rule_key(self.granted.grants)
        demands = [tools, text, stop, choice, parallel, echoed["reasoning"]["summary"], hosted]
        spelled = orjson.dumps(demands)
        return hashlib.sha256(scope + spelled).digest(), len(spelled) + RULES_BYTES_MIN

    def with_renderings(self, more: Mapping[bytes, Rendering], hold: object = None) -> RunInput:
        holds = self.image_holds if hold is None else (*self.image_holds, hold)
        return replace(self, rendered={**self.rendered, **more}, image_holds=holds)


@dataclass(frozen=True, slots=True)
class Written:
    """Rendered input, not truncated.

    `items` are those of the context, then its summary; without those of the history if that
    `is_repeated`.
    """

    echo: Echo
    rules: OutputRules
    checker: Checker
    context: Context
    items: tuple[ContextItem, ...]
    options: RenderOptions
    prompt: Prompt
    is_repeated: bool


class RulesCache:
    """Output rules and their checkers, kept by the demands of requests.

    Clients send the same tools again and again. What users wrote is kept per tenant: the time of a
    request must not depend on other tenants' requests.
    """

    def __init__(self) -> None:
        self._documents = SchemaCache()
        self._bound: LruCache[bytes, tuple[OutputRules, Checker | None]] = LruCache(
            size_max=RULES_BYTES_MAX
        )
        self._plain: dict[object, Checker] = {}
        """There are few: requests without tools and formats have few options."""

    def has_checker(self, run_input: RunInput) -> bool:
        """Return True if nothing has to be compiled for the output."""
        if not is_compiled(run_input.command.request):
            return True
        kept = self._bound.get(run_input.demands[0])
        return kept is not None and kept[1] is not None

    def get(self, run_input: RunInput) -> tuple[OutputRules, Checker]:
        """Return compiled rules. Raises `InvalidRequest` for a schema or grammar that cannot be
        checked.
        """
        request, grants = run_input.command.request, run_input.granted.grants
        echoed = run_input.echoed
        is_bound = request.tools or request.brought or request.stop or grants
        if (
            not is_bound
            and isinstance(request.tool_choice, str)
            and echoed["text"]["format"]["type"] == "text"
        ):
            return self._plain_rules(rules_of(echoed))
        key, size = run_input.demands
        kept = self._bound.get(key)
        if kept is not None and kept[1] is not None:
            return kept[0], kept[1]
        rules = rules_of(echoed, grants) if kept is None else kept[0]
        checker = Checker(
            rules,
            call_fields,
            cache=self._documents,
            scope=run_input.tenant_id.bytes,
            paths=request.tool_paths,
        )
        checker.compile()
        if kept is None:
            # The memory of compiled patterns does not follow from their length.
            shared = None if checker.has_patterns else checker
            self._bound.put(key, (rules, shared), size=size + _grammar_bytes(rules))
        return rules, checker

    def _plain_rules(self, rules: OutputRules) -> tuple[OutputRules, Checker]:
        options = rules.calls, rules.one_call, rules.summary
        checker = self._plain.get(options)
        if checker is None:
            checker = self._plain[options] = Checker(rules, call_fields)
            checker.compile()
        return rules, checker


def _grammar_bytes(rules: OutputRules) -> int:
    # Each tool has its own compiled copy of its grammar.
    every = [len(tool.grammar.definition) for tool in rules.tools.values() if tool.grammar]
    return GRAMMAR_BYTES_MIN * len(every) + GRAMMAR_WEIGHT * sum(every)


def is_compiled(request: CreateResponse) -> bool:
    has_schema = isinstance(request.text.format, JsonSchemaFormat)
    return has_schema or any(map(_is_bound, request.offered_tools))


def _is_bound(tool: Tool) -> bool:
    if isinstance(tool, FunctionTool):
        return tool.strict is True
    if isinstance(tool, NamespaceTool):
        return any(map(_is_bound, tool.tools))
    return isinstance(tool, CustomTool) and isinstance(tool.format, GrammarFormat)


class SpecBuilder:
    """Builder of prompts and run specs from what `RunBuilder` looked up.

    It does no I/O and may run in a thread; what a format lacks is raised as `Unrendered`.
    """

    def __init__(self, *, system_message: Harmony, cache_salt_key: bytes, sealer: Sealer) -> None:
        self._system_message = system_message
        self._cache_salt_key = cache_salt_key
        self._sealer = sealer
        self.cache_salt = lru_cache(SALTS_MAX)(self._new_cache_salt)
        self._rules = RulesCache()

    def work_bytes(self, run_input: RunInput) -> int:
        """Return the cost of work on a prompt, in bytes of text to tokenise."""
        size_bytes, request = run_input.command.body_bytes, run_input.command.request
        if not run_input.is_opening:
            size_bytes += _size_bytes(run_input.history.items) + _size_bytes(
                (*run_input.stored.values(),)
            )
        if (grants := run_input.granted.grants) is not None:
            size_bytes += SERVER_TOOL_BYTES * sum(len(server.tools) for server in grants.servers)
        may_compile = request.tools or request.brought or request.text.format
        if may_compile and not self._rules.has_checker(run_input):
            size_bytes += COMPILED_BYTES
        return size_bytes

    def write(self, run_input: RunInput, *, item_by_item: bool = False) -> Written:
        """Render the whole prompt, and refuse a schema or grammar that cannot be checked.

        `item_by_item`: render the history's items instead of repeating its ids.
        """
        format_ = run_input.model.format
        repeated = (
            None if item_by_item or run_input.is_opening else _repeat_history(run_input, format_)
        )
        echoed = run_input.echoed
        rules, checker = self._rules.get(run_input)
        request = run_input.command.request
        if run_input.is_opening:
            context = opening(cast("tuple[Message, ...]", request.input), run_input.uuid)
        else:
            context = self._assemble(run_input, with_history=repeated is None)
        items = context.items
        if run_input.compacted is not None:
            items = (*items, summary_in(run_input.compacted))
        options = self._render_options(run_input, echoed, rules)
        prompt = format_.render(items, options, repeated)
        return Written(
            echoed, rules, checker, context, items, options, prompt, repeated is not None
        )

    def _render_options(
        self, run_input: RunInput, echoed: Echo, rules: OutputRules
    ) -> RenderOptions:
        request, system = run_input.command.request, self._system_message
        day = run_input.history.root_created_at // DAY_S
        tools, grants = request.offered_tools, run_input.granted.grants
        servers = ServerTools()
        if tools and grants and grants.servers:
            servers = server_tools(request.tools, grants)
        paths = request.tool_paths if tools else {}
        return RenderOptions(
            instructions=request.instructions,
            tools=(*declared(tools), *servers.functions) if tools else (),
            tool_paths=(*[paths.get(tool.name, "tools") for tool in named(tools)], *servers.paths)
            if tools
            else (),
            builtins=Builtins.from_grants(grants) if tools else NO_BUILTINS,
            approved=grants.approved.request_id if grants and grants.approved else None,
            effort=echoed["reasoning"]["effort"],
            current_date=_date(day) if system.date == "utc" else None,
            model_identity=system.identity,
            knowledge_cutoff=system.knowledge_cutoff,
            commentary_without_tools=system.commentary_without_tools,
            answer=rules.answer,
            scope=run_input.tenant_id.bytes,
            runs_tools=grants is not None and grants.has_tools,
            requested_effort=request.reasoning.effort,
            rendered=run_input.rendered,
            new_items=request.input,
        )

    def count(self, run_input: RunInput) -> int:
        """Count the prompt, also if it is too long to run."""
        written = self.write(run_input)
        prompt = written.prompt
        if run_input.command.request.truncation == "auto":
            # A prompt that cannot be shortened any more is too long to run, but is counted.
            with suppress(ContextLengthExceeded):
                prompt = self._truncate(run_input, written)
        return prompt.tokens

    def spec(self, run_input: RunInput, written: Written | None = None) -> RunSpec:
        written = written or self.write(run_input)
        command, model, history = run_input.command, run_input.model, run_input.history
        request, principal, policy = command.request, command.principal, command.principal.policy
        # Durable responses outlive their client and this process.
        outlives = command.generate and policy.on_disconnect == "continue"
        is_durable = request.background or (request.store and (outlives or command.key is not None))
        is_remembered = command.remembered and not request.store
        format_, prompt = model.format, written.prompt
        if request.truncation == "auto":
            prompt = self._truncate(run_input, written)
        room = model.context_length - prompt.tokens
        if not command.generate or (not run_input.is_opening and is_triggered(request)):
            room = 0  # the model is not asked
        elif room <= 0:
            raise _no_room(prompt.tokens, model)
        if prompt.text_tokens is not None:
            _require_no_ids(request)
        sampling = sampling_of(request, room=room)
        # Rendered input is needed only for kept responses, and a run may take minutes.
        is_kept = request.store or is_remembered
        new, opening = _locate(written, with_ids=is_kept and format_.framing.stores_ids)
        added = (*history.unstored, *new) if is_kept else ()
        return RunSpec(
            principal=principal,
            head=self._build_head(run_input, written.echo, format_, prompt),
            model=model.id,
            prompt_ids=prompt.ids,
            added=added,
            sampling=sampling,
            # A cache hit reveals that the same text was sent before: nobody else may have one.
            cache_salt=self.cache_salt(
                TenantId(run_input.uuid) if principal.keeps_nothing else principal.tenant_id
            ),
            store=request.store,
            parent=history.parent,
            conversation=history.conversation,
            root_created_at=history.root_created_at,
            rules=written.rules,
            checker=written.checker,
            reasoning_budget=None
            if prompt.text_tokens is not None
            else reasoning_budget(request, policy, sampling.max_tokens, format_.framing_tokens),
            priority=PRIORITIES[written.echo["service_tier"]],
            share_weight=policy.share_weight,
            durable=is_durable,
            streamed=request.stream,
            inputs=len(added),
            inherited=history.stored if is_remembered else None,
            compacted=run_input.compacted,
            listings=run_input.granted.listings,
            secrets=run_input.granted.secrets,
            approvals=run_input.granted.approvals,
            tool_state=history.tool_state,
            tool_values=None if request.store else command.tool_values,
            route=Route(
                history.placement,
                cache_key=request.prompt_cache_key,
                opening=opening if history.placement is None else 0,
            ),
            window_left=model.context_length - prompt.tokens,
            template_state=format_.template_state if prompt.text_tokens is None else TEXT_STATE,
            opens_thought=prompt.opens_thought,
            who=self._metering(command),
            traceparent=span.headers["traceparent"] if is_durable and (span := recorded()) else "",
            image_holds=run_input.image_holds,
        )

    def _metering(self, command: CreateCommand) -> Metering:
        principal, request = command.principal, command.request
        named = principal.end_user or request.safety_identifier or request.user
        if principal.keeps_nothing or not (named or request.metadata):
            return NOBODY
        return who_asks(
            *(self._cache_salt_key, principal.tenant_id),
            named,
            tags_of(request.metadata, principal.policy.declared_tags),
        )

    def _build_head(
        self, run_input: RunInput, echoed: Echo, format_: ModelFormat, prompt: Prompt
    ) -> ResponseHead:
        request, binding, messages = run_input.command.request, None, None
        # An echo has defaults, which are usually shorter, beside what was sent.
        is_long = run_input.command.body_bytes > LONG_ECHO_BYTES // 2
        if ENCRYPTED_REASONING in request.include:
            tenant, key = run_input.tenant_id, self._sealer.key_id
            binding = Binding(tenant, run_input.model.id, key)
        if request.wants_messages:
            shown = format_.messages(prompt, with_ids=request.wants_input_ids)
            messages = HarmonyMessages(shown, request.wants_output_ids)
        return ResponseHead(
            run_input.uuid,
            run_input.created_at,
            request.background,
            echoed,
            binding,
            spelled=kept_echo(echoed) if is_long else b"",
            messages=messages,
            grants=run_input.granted.grants,
            format=format_.name,
        )

    def _assemble(self, run_input: RunInput, *, with_history: bool) -> Context:
        # Without `with_history` the prompt repeats the ids of the history.
        new, history, stored = (
            run_input.command.request.input,
            run_input.history.items,
            run_input.stored,
        )
        if not run_input.model.format.framing.stores_ids:
            history = tuple(map(_without_ids, history))
            stored = {name: _without_ids(item) for name, item in stored.items()}
        sealer, tenant = self._sealer, run_input.tenant_id
        return assemble(
            with_last_opened(tuple(history), sealer, tenant=tenant) if with_history else (),
            new,
            stored={name: opened(item, sealer, tenant=tenant) for name, item in stored.items()},
            unsealed=unseal(new, sealer, tenant=tenant, models=(run_input.model.id,)),
            response=run_input.uuid,
            before=None if with_history else _items_before(history, new),
        )

    def _truncate(self, run_input: RunInput, written: Written) -> Prompt:
        length, answer_tokens = (
            run_input.model.context_length,
            run_input.command.request.max_output_tokens,
        )
        missing = missing_tokens(written.prompt, length, answer_tokens=answer_tokens)
        if missing <= 0:
            return written.prompt
        whole = self.write(run_input, item_by_item=True) if written.is_repeated else written
        prompt, items = whole.prompt, whole.items
        while True:
            missing = missing_tokens(prompt, length, answer_tokens=answer_tokens)
            costs, excess = costs_of(prompt, len(items)), prompt.tokens + 1 - length
            kept = drop_oldest_turns(items, costs, excess, wanted_tokens=missing)
            items = tuple(map(items.__getitem__, kept))
            prompt = run_input.model.format.render(items, written.options)
            if prompt.tokens < length:  # else it was an estimate what a turn takes
                return prompt

    def _new_cache_salt(self, tenant_id: TenantId) -> str:
        # Hides cached prefixes of one tenant from the timing of another's requests
        # (CVE-2025-46570).
        digest = hmac.digest(self._cache_salt_key, tenant_id.bytes, hashlib.sha256)
        return digest.hex()


def _require_no_ids(request: CreateResponse) -> None:
    # A prompt that is sent as messages has no token ids.
    if request.wants_input_ids or request.wants_output_ids:
        raise InvalidRequest(
            "This request goes to the chat endpoint of a server, which has no token ids. Leave "
            "them out of include.",
            code="unsupported_parameter",
            param="include",
        )


@lru_cache(DATES_MAX)
def _date(day: int) -> str:
    # `day` counts days since 1970, UTC.
    return datetime.fromtimestamp(day * DAY_S, UTC).date().isoformat()


def _repeat_history(run_input: RunInput, format_: ModelFormat) -> RepeatedHistory | None:
    # None: the prompt has to be made from the items of the history.
    if not format_.framing.stores_ids:
        return None
    new, history = run_input.command.request.input, run_input.history.items
    if run_input.command.request.context_management or not isinstance(history, PackedItems):
        return None
    if any(isinstance(item, _LOOKING_BACK) for item in new):
        return None
    columns = history.columns()
    if columns is None or any(
        label.kind == "mcp_approval_request" for label in columns.labels.values()
    ):
        return None  # what becomes of a request for approval is said behind it
    answers = [item for item in new if isinstance(item, Message) and is_answer(item)]
    # Copies of answers in the history are not new.
    if own := may_repeat(answers):
        own &= history.item_ids()
    is_answered = any(item.id not in own for item in answers)
    ids = format_.repeated_ids(columns, is_answered=is_answered)
    if not ids:
        return None
    leading = leading_instructions(columns.labels[name] for name in columns.names)
    return RepeatedHistory(history.first(leading), ids)


def _items_before(
    history: Sequence[ContextItem], new: Sequence[InputItem]
) -> dict[str, ContextItem | None]:
    # Maps the ids of the history to the items that new ones may copy; None for all others.
    if not isinstance(history, PackedItems) or all(item.id is None for item in new):
        return {}
    before: dict[str, ContextItem | None] = dict.fromkeys(history.item_ids())
    return before | {item.item_id: item for item in history.named(may_repeat(new))}


def _size_bytes(items: Sequence[ContextItem]) -> int:
    # Packed items know only their total size.
    if isinstance(items, PackedItems):
        return len(items) * REPEATED_ITEM_BYTES + items.json_bytes
    return sum(REPEATED_ITEM_BYTES if item.ids is not None else len(item.json) for item in items)


def _no_room(tokens: int, model: Model) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"Your input exceeds the context window of this model: it takes {tokens} of "
        f"{model.context_length} tokens, and the output needs some, too. Please adjust your input "
        "and try again."
    )


def _without_ids(item: ContextItem) -> ContextItem:
    # Ids mean something else in another model's format.
    return replace(item, ids=None)


def _locate(written: Written, *, with_ids: bool) -> tuple[list[ContextItem], int]:
    # Return the new items, with their ids from the whole prompt, and where the first message of the
    # user ends in it (0: it is not there).
    context, items, prompt = written.context, written.items, written.prompt
    added, opening, first = list(context.items[context.inherited :]), 0, 0
    while first < len(items) and items[first].role != "user":
        first += 1
    for span in prompt.spans:
        if span.source == first:
            opening = span.end
        at = span.source - context.inherited
        if with_ids and 0 <= at < len(added):  # what is behind them is a summary
            added[at] = added[at].with_ids(prompt.ids[span.start : span.end])
    return added, opening


PRIORITIES: Final[dict[ServiceTier, int]] = {"flex": -1, "default": 0, "priority": 1}
"""`TokenRequest.priority`."""

_FASTER: Final = frozenset({"priority", "scale", "fast", "ultrafast"})
"""OpenAI's better tiers, all one here."""


def service_tier(request: CreateResponse, policy: TenantPolicy) -> ServiceTier:
    """Return a tier no better than tenant and project may have."""
    tier: str | None = request.service_tier
    if tier is None or tier == "auto":
        tier = policy.tier_default
    if tier == "flex" and policy.may_wait:
        return "flex"
    is_faster = tier in _FASTER and policy.service_tier_max == "priority"
    return "priority" if is_faster else "default"


def reasoning_budget(
    request: CreateResponse, policy: TenantPolicy, max_tokens: int, framing_tokens: int
) -> int | None:
    """Return how many tokens the model may think; None: no limit.

    `framing_tokens` are for the transition to the answer.
    """
    budget = request.reasoning.max_tokens or policy.reasoning_budget_tokens
    if not budget:
        return None
    left = max_tokens - framing_tokens
    return max(1, min(budget, left - math.ceil(ANSWER_SHARE * left)))


def sampling_of(request: CreateResponse, *, room: int) -> Sampling:
    return Sampling(
        max_tokens=min(request.max_output_tokens or room, room),
        temperature=request.temperature,
        top_p=request.top_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        seed=request.seed,
        top_k=request.top_k,
        min_p=request.min_p,
        logprobs=request.top_logprobs if request.wants_logprobs else None,
    )
