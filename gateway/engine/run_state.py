"""The state in a row with which any replica can go on with a durable response.

The request and the times are columns of their own, and so is the prompt; the plan is the rest. It
is JSON, in which a release may add fields that older ones do well without. A change that they must
not overlook gets another version: then they leave the response to those that know it.

The request is JSON, too: `echo`, `binding`, `messages` and `grants` of the head. What the request
demands of the output is not kept: it follows from the echo and the grants. Nor are its secrets:
they are sealed in a table of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson

from gateway.constraints.validation import Checker
from gateway.engine.run_spec import RunSpec
from gateway.entries import Compacted, ToolsListed, pack, unpack
from gateway.generation import Route, Sampling
from gateway.metering import NOBODY, Metering
from gateway.protocol.call_items import call_fields
from gateway.protocol.grants import grants_json, grants_of
from gateway.protocol.responses.response_object import HarmonyMessages, ResponseHead, kept_echo
from gateway.protocol.responses.response_rules import rules_of
from gateway.sealing import Binding
from gateway.tenancy import DEFAULT_POLICY, Principal

if TYPE_CHECKING:
    from datetime import datetime

    from gateway.store.claims import ClaimedRun
    from gateway.store.responses import StoredResponse

PLAN_VERSION: Final = 1
"""Raised by a release whose plans others must not go on with: they leave the response alone."""
_SAMPLING: Final = tuple(Sampling.__dataclass_fields__)


def plan_of(spec: RunSpec) -> bytes:
    """Return the encoded plan that another process needs to generate an accepted response."""
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
    """Encode what a row stores of the request: the parts of the head that have no column."""
    binding = None
    if (bound := head.binding) is not None:
        # The database driver's UUIDs are a class of its own, and orjson knows no such class.
        binding = {"tenant": str(bound.tenant), "model": bound.model, "key_id": bound.key_id}
    fields = {"echo": head.echo, "binding": binding}
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
    """Return what the key was charged at acceptance, as `Charge.packed` encodes it.

    None if nothing was charged. Raises as `inputs_of` does.
    """
    charged: dict[str, Any] | None = _read_fields(plan).get("charged")
    return charged


def rebuild(claimed: ClaimedRun) -> RunSpec | None:
    """Return the specification of a response that another process accepted.

    None for a plan of another version. Raises `ValueError`, `TypeError` or `LookupError` for a
    damaged plan.
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
    """Return the part of a stored response that was known before a token was generated."""
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
    )


def _sampling(fields: dict[str, Any]) -> Sampling:
    # Fields that a newer release added are ignored; it adds only those that may be ignored.
    return Sampling(**{name: fields[name] for name in _SAMPLING})
