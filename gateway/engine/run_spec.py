"""Everything a run needs, decided before it starts, and the state with which others go on.

The plan is what has no column of its own, as JSON. A release may add fields that older ones do well
without; otherwise `PLAN_VERSION` changes, and they leave the response alone. Output rules are not
kept: they follow from echo and grants.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson

from gateway.constraints.validation import Checker
from gateway.entries import Compacted, ToolsListed, pack, unpack
from gateway.generation import Route, Sampling
from gateway.metering import NOBODY, Metering
from gateway.protocol.call_items import call_fields
from gateway.protocol.grants import grants_json, grants_of
from gateway.protocol.responses.response_object import HarmonyMessages, ResponseHead, kept_echo
from gateway.protocol.responses.response_rules import rules_of
from gateway.sealing import Binding
from gateway.tenancy import Principal
from gateway.tenancy.policy import DEFAULT_POLICY
from gateway.text_ids import TEXT_STATE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from gateway.cache import LruCache
    from gateway.constraints.output_rules import OutputRules
    from gateway.limits.accounting import Charge
    from gateway.protocol.context_item import ContextItem, ConversationPlace
    from gateway.store.claims import ClaimedRun
    from gateway.store.responses import StoredResponse

PLAN_VERSION: Final = 1
_SAMPLING: Final = tuple(Sampling.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Specification of one response to generate.

    `added` are the rendered items of this request, stored with the output; none once they are
    stored. `inherited` are those before them, where an unstored response is continued.
    `sampling.max_tokens` fits into the context window; with 0 the model is not called.
    `window_left` is ids behind the prompt (None: unknown). `root_created_at` (unix seconds) is the
    chain's, and pins the date in the prompt. `share_weight` is in hundredths.

    `secrets` are for MCP servers, by label, and in no log. `approvals` are ids and digests of
    calls, used up at the start. `tool_values` are kept for those that continue an unstored
    response. `conversation` gets the response at its end; only its row knows it after a takeover.
    `image_holds` count the bytes of images while this exists. `traceparent` is the span of its
    request.
    """

    principal: Principal
    head: ResponseHead
    model: str
    prompt_ids: Sequence[int]
    added: tuple[ContextItem, ...]
    sampling: Sampling
    cache_salt: str
    store: bool
    parent: UUID | None
    root_created_at: int
    rules: OutputRules
    checker: Checker
    reasoning_budget: int | None = None
    priority: int = 0
    share_weight: int = 100
    durable: bool = False
    streamed: bool = False
    inputs: int = 0
    conversation: ConversationPlace | None = None
    inherited: tuple[ContextItem, ...] | None = None
    compacted: Compacted | None = None
    listings: tuple[ToolsListed, ...] = ()
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    window_left: int | None = None
    approvals: tuple[tuple[str, bytes], ...] = ()
    tool_state: bytes | None = None
    tool_values: LruCache[str, Any] | None = None
    route: Route = field(default_factory=Route, compare=False, repr=False)
    template_state: bytes = b""
    opens_thought: bool = False
    who: Metering = NOBODY
    traceparent: str = ""
    charge: Charge | None = field(default=None, compare=False, repr=False)
    image_holds: tuple[object, ...] = field(default=(), compare=False, repr=False)

    @property
    def is_text(self) -> bool:
        # The prompt is a conversation, and the turns are text.
        return self.template_state == TEXT_STATE


def plan_of(spec: RunSpec) -> bytes:
    fields = {
        "version": PLAN_VERSION,
        "sampling": {name: getattr(spec.sampling, name) for name in _SAMPLING},
        "cache_salt": spec.cache_salt,
        "inputs": spec.inputs,
        "reasoning_budget": spec.reasoning_budget,
        "priority": spec.priority,
        "share_weight": spec.share_weight,
    }
    if spec.who != NOBODY:
        fields["who"] = spec.who.as_json()
    if spec.traceparent:
        fields["traceparent"] = spec.traceparent
    if spec.route.placement is not None:
        fields["placement"] = spec.route.placement.hex()
    if spec.charge is not None and (charged := spec.charge.packed()) is not None:
        fields["charged"] = charged
    if spec.compacted is not None:
        fields["compacted"] = pack([spec.compacted]).hex()
    if spec.head.grants is not None:
        fields["window_left"] = spec.window_left
        if spec.template_state:
            fields["template_state"] = spec.template_state.decode()
        if spec.listings:
            fields["listings"] = pack(spec.listings).hex()
    if spec.is_text:
        fields |= {
            "window_left": spec.window_left,
            "template_state": spec.template_state.decode(),
            "opens_thought": spec.opens_thought,
        }
    return orjson.dumps(fields)


def request_of(head: ResponseHead) -> bytes:
    """Encode the parts of the head that have no column."""
    binding = None
    if (bound := head.binding) is not None:
        # The database driver's UUIDs are a class of its own, and orjson knows no such class.
        binding = {"tenant": str(bound.tenant), "model": bound.model, "key_id": bound.key_id}
    fields = {"echo": head.echo, "binding": binding, "format": head.format}
    if (shown := head.messages) is not None:
        fields["messages"] = {"input": shown.input, "with_output_ids": shown.with_output_ids}
    if head.grants is not None:
        fields["grants"] = grants_json(head.grants)
    return orjson.dumps(fields)


def inputs_of(plan: bytes) -> int:
    """Return how many items the request brought.

    Raises `ValueError` or `LookupError` for a plan that is damaged or of another version.
    """
    inputs: int = _read_fields(plan)["inputs"]
    return inputs


def compacted_of(plan: bytes) -> Compacted | None:
    # None: the log does not begin with a compaction. Raises as `inputs_of` does.
    return _compacted(_read_fields(plan))


def who_of(plan: bytes) -> Metering:
    # The end user and the tags, as in the usage line. Raises as `inputs_of` does.
    return _who(_read_fields(plan))


def charged_of(plan: bytes) -> dict[str, Any] | None:
    """Return the charge at acceptance as `Charge.packed` encodes it. Raises as `inputs_of` does."""
    charged: dict[str, Any] | None = _read_fields(plan).get("charged")
    return charged


def rebuild(claimed: ClaimedRun) -> RunSpec | None:
    """Return the specification of a response that another process accepted.

    None for a plan of another version. A damaged one raises `ValueError`, `TypeError` or
    `LookupError`.
    """
    plan: dict[str, Any] = orjson.loads(claimed.plan)
    if plan["version"] != PLAN_VERSION:
        return None
    head = _head(claimed.request, claimed.claim.uuid, claimed.created_at, claimed.background)
    rules = rules_of(head.echo, head.grants)
    return RunSpec(
        principal=Principal(
            claimed.claim.tenant_id,
            claimed.tenant_name,
            claimed.key_id,
            project_id=claimed.project_id,
        ),
        head=head,
        model=claimed.model,
        prompt_ids=claimed.prompt_ids,
        added=(),
        sampling=_sampling(plan["sampling"]),
        cache_salt=plan["cache_salt"],
        store=True,
        parent=claimed.parent,
        root_created_at=int(claimed.root_created_at.timestamp()),
        rules=rules,
        checker=Checker(rules, call_fields),
        reasoning_budget=plan["reasoning_budget"],
        priority=plan["priority"],
        share_weight=plan.get("share_weight", DEFAULT_POLICY.share_weight),
        durable=True,
        streamed=claimed.streamed,
        inputs=plan["inputs"],
        compacted=_compacted(plan),
        listings=_listings(plan),
        window_left=plan.get("window_left"),
        route=Route(bytes.fromhex(plan["placement"]) if "placement" in plan else None),
        template_state=plan.get("template_state", "").encode(),
        opens_thought=plan.get("opens_thought", False),
        who=_who(plan),
        traceparent=plan.get("traceparent", ""),
    )


def _read_fields(plan: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = orjson.loads(plan)
    if fields["version"] != PLAN_VERSION:
        raise ValueError(f"plans of version {fields['version']} are not known to this release")
    return fields


def _who(fields: dict[str, Any]) -> Metering:
    return Metering.of_json(fields["who"]) if "who" in fields else NOBODY


def _compacted(fields: dict[str, Any]) -> Compacted | None:
    if "compacted" not in fields:
        return None
    entries = unpack(bytes.fromhex(fields["compacted"]))
    if len(entries) != 1 or not isinstance(entries[0], Compacted):
        raise ValueError("a plan has something else where its compaction should be")
    return entries[0]


def _listings(fields: dict[str, Any]) -> tuple[ToolsListed, ...]:
    if "listings" not in fields:
        return ()
    listings = [
        entry
        for entry in unpack(bytes.fromhex(fields["listings"]))
        if isinstance(entry, ToolsListed)
    ]
    return tuple(listings)


def head_of(stored: StoredResponse) -> ResponseHead:
    return _head(stored.request, stored.uuid, stored.created_at, stored.background)


def _head(
    kept: bytes,
    uuid: UUID,
    created_at: datetime,
    background: bool,  # noqa: FBT001 - a column like the others
) -> ResponseHead:
    request = orjson.loads(kept)
    binding, messages = request["binding"], request.get("messages")
    grants = request.get("grants")
    if binding is not None:
        binding = Binding(UUID(binding["tenant"]), binding["model"], binding["key_id"])
    return ResponseHead(
        uuid=uuid,
        created_at=int(created_at.timestamp()),
        background=background,
        echo=request["echo"],
        spelled=kept_echo(request["echo"]),
        binding=binding,
        messages=None if messages is None else HarmonyMessages(**messages),
        grants=None if grants is None else grants_of(grants),
        format=request.get("format", ""),
    )


def _sampling(fields: dict[str, Any]) -> Sampling:
    # Fields that a newer release added are ignored; it adds only those that may be ignored.
    return Sampling(**{name: fields[name] for name in _SAMPLING})
