from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count, repeat
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from gateway.engine.outcome import booked
from gateway.engine.run_spec import compacted_of, head_of, inputs_of, plan_of, request_of, who_of
from gateway.entries import (
    FOLD_VERSION,
    FOLD_VERSIONS,
    TOOLS_FOLD_VERSION,
    Queued,
    pack,
    packed_entry,
)
from gateway.eventlog.fold.hosted_calls import NO_CALLS
from gateway.eventlog.fold_slices import check_complete, fold_rows
from gateway.json_output import lasting_json
from gateway.protocol.call_items import approval_request_of, approval_tool, call_of
from gateway.protocol.context_item import CALL_KINDS, ContextItem, Kind, StoredItem
from gateway.protocol.responses.response_object import Outcome, response_body
from gateway.store.endings import FinishedResponse
from gateway.store.events import LogRow
from gateway.store.responses import NewResponse
from gateway.store.tools.tool_calls import Approvals, AuditedCall
from gateway.store.usage_lines import Metered, UsageLine
from gateway.tools.tool_contract import kind_of, server_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from uuid import UUID

    from gateway.engine.run_spec import RunSpec
    from gateway.entries import Entry, Finished
    from gateway.eventlog.fold.fold import Fold, TurnFormat
    from gateway.generation import RenderedItem
    from gateway.metering import LineKind, Metering
    from gateway.protocol.items import CallItem
    from gateway.protocol.responses.response_object import ResponseHead
    from gateway.store.responses import IdempotencyKey, StoredResponse
    from gateway.tools.tool_contract import ToolCall

    NewFoldFor = Callable[[ResponseHead], Callable[[], Fold]]


QUEUED: Final = pack([Queued()])


def foreground_row(spec: RunSpec, **fields: Any) -> NewResponse:
    """Return the first row of a response whose log stays in its owner's memory."""
    head = spec.head
    return NewResponse(
        uuid=head.uuid,
        key_id=spec.principal.key_id,
        project_id=spec.principal.project,
        model=spec.model,
        created_at=datetime_of(head.created_at),
        root_created_at=datetime_of(spec.root_created_at),
        request=request_of(head),
        parent=spec.parent,
        conversation=spec.conversation,
        background=head.background,
        streamed=spec.streamed,
        fold_version=FOLD_VERSION if head.grants is None else TOOLS_FOLD_VERSION,
        # A conversation knows its last response alone; chains look for the last that used some.
        tool_state=spec.tool_state if spec.conversation else None,
        **fields,
    )


def durable_row(
    spec: RunSpec,
    lease: tuple[str, float] | None,
    *,
    waits: bool,
    idempotency: IdempotencyKey | None = None,
    secrets: bytes | None = None,
    approvals: Approvals = (),
) -> NewResponse:
    """Return the first row of a durable response.

    `lease` is an owner and seconds. With `waits` it is queued, or begins at once under that owner
    if its tenant's policy allows.
    """
    fields: dict[str, Any] = {
        "durable": True,
        "plan": plan_of(spec),
        "idempotency": idempotency,
        "secrets": secrets,
        "approvals": approvals,
    }
    if lease is not None:
        fields["owner"], fields["lease_s"] = lease
    if waits:
        policy = spec.principal.policy
        fields |= {"status": "queued", "entries": (1, QUEUED)}
        fields["queued_max"] = policy.background_queued_max
        fields["queue_terms"] = spec.principal.terms
        fields["running_max"] = policy.background_running_max
    return foreground_row(
        spec,
        prompt_ids=array("I", spec.prompt_ids),
        items=_items(spec.added, 0, is_output=False),
        **fields,
    )


def usage_line(spec: RunSpec, finished: Finished, fold: Fold, kind: LineKind) -> UsageLine:
    # For an unstored response, or for a generation of another `kind`.
    return UsageLine(
        response=spec.head.uuid,
        key_id=spec.principal.key_id,
        model=spec.model,
        at=datetime_of(finished.at),
        tokens=fold.usage,
        project_id=spec.principal.project,
        status=finished.status,
        background=spec.head.background,
        metered=_metering_of(spec.head, spec.who, fold, kind),
    )


def _metering_of(
    head: ResponseHead, who: Metering, fold: Fold, kind: LineKind = "response"
) -> Metered:
    return Metered(
        kind=kind,
        service_tier=head.echo.get("service_tier") or "default",
        attempts=1 + fold.hops + fold.takeovers,
        who=who,
        tools=fold.hosted.tools,
    )


@dataclass(frozen=True, slots=True)
class Attempt:
    """Finished attempt at a call, as operators see it; `output_bytes` is what the model reads."""

    call: ToolCall
    outcome: str
    seconds: float
    output_bytes: int
    result_ids: int
    hosts: tuple[str, ...] = ()

    @property
    def arguments_hash(self) -> bytes:
        return hashlib.sha256(self.call.arguments.encode("utf-8", "surrogatepass")).digest()


def _approval_of(spec: RunSpec, call: ToolCall) -> tuple[str | None, str | None]:
    # The approval of a call of an MCP tool, and the id of the approval request. The first value is
    # "user", or "never" if no approval was needed. Both are None for other tools.
    grants = spec.head.grants
    if grants is None or kind_of(call.name) != "mcp":
        return None, None
    approved = grants.approved
    # The response begins with what was approved; a later call was not asked about, or not made.
    if approved is None or call.ordinal or approved.name != call.name:
        return "never", None
    return "user", approved.request_id


def tool_call_row(spec: RunSpec, attempt: Attempt, *, replica: str) -> AuditedCall:
    call = attempt.call
    approval, request_id = _approval_of(spec, call)
    called = AuditedCall(
        response=spec.head.uuid,
        ordinal=call.ordinal,
        attempt=call.attempt,
        kind=kind_of(call.name),
        server=server_of(call.name, spec.head.grants),
        tool=call.name,
        arguments_hash=attempt.arguments_hash,
        arguments_bytes=len(call.arguments.encode("utf-8", "replace")),
        result_bytes=attempt.output_bytes,
        result_ids=attempt.result_ids,
        outcome=attempt.outcome,
        duration_ms=round(attempt.seconds * 1000),
        replica=replica,
        at=datetime.now(UTC),
        approval=approval,
        approval_request_id=request_id,
        hosts=attempt.hosts,
    )
    if spec.principal.keeps_nothing:
        # Names and digests derive from content.
        called = replace(called, server="", tool="", arguments_hash=b"", hosts=())
    return called


def has_kept_secrets(spec: RunSpec) -> bool:
    """Return True if another process that continues needs the request's secrets."""
    grants = spec.head.grants
    return grants is not None and any(server.has_secrets for server in grants.servers)


@dataclass(slots=True)
class LogReading:
    """A log whose first `entries` are folded."""

    fold: Fold
    entries: int = 0

    async def add(self, rows: Sequence[LogRow]) -> None:
        # `rows` begin with the next entry. Raises `ValueError` for a damaged log, which must not be
        # used then.
        self.entries += len(await fold_rows(self.fold, rows, from_entry=self.entries))


def finished_row(
    spec: RunSpec, finished: Finished, fold: Fold, *, epoch: int, rest: LogRow | None
) -> FinishedResponse:
    """Return the last row of a response that its owner ends; `rest` is unwritten log."""
    added, inputs, log = spec.added, len(spec.added), rest
    if rest is not None:
        # The input of a durable one was stored when it was accepted.
        added, inputs = (), spec.inputs
        log = LogRow(rest.first_entry, rest.count + 1, rest.entries + packed_entry(finished))
    items = [*_items(added, 0, is_output=False), *_items(_outputs(fold), inputs, is_output=True)]
    return _finished_row(
        spec.head.uuid,
        epoch,
        finished,
        fold,
        entries=log,
        items=items,
        has_secrets=spec.durable and has_kept_secrets(spec),
        placement=spec.route.placement,
        metered=_metering_of(spec.head, spec.who, fold),
    )


def begin_reading(stored: StoredResponse, new_fold_for: NewFoldFor) -> LogReading:
    """Return a reader at the beginning of the log of a durable response.

    Raises `ValueError`, `TypeError` or `LookupError` for a damaged log, or another release's.
    """
    if stored.fold_version not in FOLD_VERSIONS:
        raise ValueError(f"logs of fold version {stored.fold_version} are not folded here")
    head = head_of(stored)
    fold = new_fold_for(head)()
    if not head.is_logged_in(fold.format.name):
        raise ValueError(f"logs of this model in the format {head.format} are not folded here")
    return LogReading(fold)


async def concluded_row(
    stored: StoredResponse, reading: LogReading, rest: Sequence[LogRow], finished: Finished
) -> FinishedResponse:
    """Return the last row of a durable response that another process than its owner ends.

    `rest` is the unread part of its log. Raises as `begin_reading` does.
    """
    await reading.add(rest)
    check_complete(reading.entries, stored.next_entry)
    fold, plan = reading.fold, stored.plan or b""
    ending: list[Entry] = [finished]
    if fold.compacted is None and (compacted := compacted_of(plan)) is not None:
        # It has not begun, and its summary was made all the same.
        ending.insert(0, compacted)
    for entry in ending:
        fold.apply(entry)
    log = LogRow(stored.next_entry, len(ending), pack(ending))
    items = _items(_outputs(fold), inputs_of(plan), is_output=True)
    return _finished_row(
        stored.uuid,
        stored.epoch,
        finished,
        fold,
        entries=log,
        items=items,
        has_secrets=_may_have_secrets(stored),
        metered=_metering_of(head_of(stored), who_of(plan), fold),
    )


def _outputs(fold: Fold) -> Iterator[ContextItem]:
    format_ = fold.format
    for rendered in fold.items():
        item = output_context(rendered)
        if item.ids is None and format_.framing.stores_ids:
            item = item.with_ids(array("I", _rendered_ids(rendered, item, format_)))
        yield item


def _rendered_ids(rendered: RenderedItem, item: ContextItem, format_: TurnFormat) -> Sequence[int]:
    # A call that the gateway answered is rendered with its result.
    call = rendered.call
    if call is None:
        return format_.render_item(item)
    return (*format_.render_call(call.name, call.arguments), *call.result)


def row_without_log(stored: StoredResponse, finished: Finished) -> FinishedResponse:
    """Return the last row of a response whose log is lost."""
    outcome = Outcome(
        status=finished.status,
        error={"code": finished.code, "message": finished.message} if finished.code else None,
    )
    return FinishedResponse(
        uuid=stored.uuid,
        epoch=stored.epoch,
        status=finished.status,
        completed_at=datetime_of(finished.at),
        body=orjson.dumps(response_body(head_of(stored), outcome, [])),
        entries=LogRow(stored.next_entry, 1, pack([finished])) if stored.durable else None,
        free_key=finished.status == "failed",
        has_secrets=_may_have_secrets(stored),
    )


def _may_have_secrets(stored: StoredResponse) -> bool:
    return stored.durable and stored.fold_version == TOOLS_FOLD_VERSION


def output_context(rendered: RenderedItem) -> ContextItem:
    item = cast("dict[str, Any]", rendered.item)
    context = ContextItem(
        kind=cast("Kind", item["type"]),
        item_id=item["id"],
        json=lasting_json(item),
        role=item.get("role"),
        phase=item.get("phase"),
        call_id=item.get("call_id"),
        # A compaction has no status: it is complete. Failed items are complete, too.
        complete=item.get("status") != "incomplete",
        ids=None if rendered.ids is None else array("I", rendered.ids),
        includable=None if rendered.includable is None else lasting_json(rendered.includable),
    )
    if context.kind in CALL_KINDS:
        return replace(context, name=call_of(cast("CallItem", context.item())).name)
    if context.kind not in _APPROVAL_KINDS:
        return context
    typed = context.item()
    return replace(context, call_id=approval_request_of(typed), name=approval_tool(typed))


_APPROVAL_KINDS: Final = frozenset({"mcp_approval_request", "mcp_call"})


def _items(context: Iterable[ContextItem], position: int, *, is_output: bool) -> list[StoredItem]:
    return list(map(StoredItem, count(position), repeat(is_output), context))


def _finished_row(
    uuid: UUID, epoch: int, finished: Finished, fold: Fold, **fields: Any
) -> FinishedResponse:
    return FinishedResponse(
        uuid=uuid,
        epoch=epoch,
        status=finished.status,
        completed_at=datetime_of(finished.at),
        body=fold.shown.encoded_response(),
        recoveries=orjson.dumps(fold.recoveries),
        tokens=booked(finished.status, fold),
        # A request that failed before any output may be repeated under its key.
        free_key=finished.status == "failed" and not fold.output_tokens,
        tool_state=None if fold.hosted is NO_CALLS else fold.hosted.state_json(),
        timeline=fold.timeline.packed(),
        **fields,
    )


def datetime_of(unix_s: int) -> datetime:
    return datetime.fromtimestamp(unix_s, UTC)
