"""What is kept of a run is what the next turn needs."""

from __future__ import annotations

from array import array
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from gateway.engine.row_mapping import (
    Attempt,
    LogReading,
    concluded_row,
    output_context,
    tool_call_row,
)
from gateway.engine.run_spec import plan_of, request_of
from gateway.entries import FOLD_VERSION, Compacted, Finished, Queued, unpack
from gateway.generation import RenderedItem
from gateway.tenancy.policy import ZERO_RETENTION
from gateway.tools.tool_contract import ToolCall
from tests.fakes.call_items import CALLS
from tests.fakes.cases import each
from tests.fakes.staged_run import run_spec
from tests.fakes.toy_logs import new_fold

if TYPE_CHECKING:
    from gateway.store.responses import StoredResponse


@each(("call", "name"), [(call, name) for call, name, _ in CALLS])
def test_a_call_is_kept_under_the_name_that_the_model_knows(
    call: dict[str, Any], name: str
) -> None:
    item = {"id": "call_1", "call_id": "c1", "status": "completed", **call}
    context = output_context(RenderedItem(item, (1, 2)))
    assert (context.kind, context.call_id, context.name) == (call["type"], "c1", name)
    assert context.ids == array("I", (1, 2))


def test_a_message_has_no_name() -> None:
    item: dict[str, object] = {
        "id": "msg_1", "type": "message", "role": "assistant", "status": "incomplete",
        "content": [], "phase": "final_answer",
    }  # fmt: skip
    context = output_context(RenderedItem(item))
    assert (context.name, context.role, context.phase) == (None, "assistant", "final_answer")
    assert (context.complete, context.ids) == (False, None)


@pytest.mark.parametrize(
    ("fields", "call_id", "name"),
    [
        ({"type": "mcp_approval_request"}, None, "crm.add"),
        ({"type": "mcp_call", "approval_request_id": "mcpr_1"}, "mcpr_1", None),
        ({"type": "mcp_call"}, None, None),
    ],
)
def test_what_was_approved_is_kept_with_the_request(
    fields: dict[str, Any], call_id: str | None, name: str | None
) -> None:
    item = {"id": "x_1", "server_label": "crm", "name": "add", "arguments": "{}", **fields}
    context = output_context(RenderedItem(item, (1, 2)))
    assert (context.kind, context.call_id, context.name) == (fields["type"], call_id, name)


async def test_a_response_that_ends_in_the_queue_keeps_the_summary_that_was_made_for_it() -> None:
    compacted = Compacted((1, 2), "hgw1.seal", 30, 10, 20, 5)
    spec = replace(run_spec(background=True), compacted=compacted)
    stored = SimpleNamespace(
        uuid=spec.head.uuid,
        model=spec.model,
        epoch=0,
        next_entry=1,
        plan=plan_of(spec),
        request=request_of(spec.head),
        created_at=datetime.now(UTC),
        background=True,
        durable=True,
        fold_version=FOLD_VERSION,
    )
    fold = new_fold(background=True)
    fold.apply(Queued())
    row = await concluded_row(
        cast("StoredResponse", stored), LogReading(fold, 1), [], Finished("cancelled", 9)
    )
    assert row.entries is not None
    assert (row.entries.first_entry, row.entries.count) == (1, 2)
    assert unpack(row.entries.entries) == [compacted, Finished("cancelled", 9)]
    assert [item.context.kind for item in row.items] == ["compaction"]
    assert row.items[0].context.complete
    assert row.tokens is not None
    assert row.tokens.output_tokens == 20


def test_of_whom_nothing_is_kept_a_call_is_audited_without_names_and_digests() -> None:
    call = ToolCall(0, "crm.tell", '{"to": "grace"}')
    attempt = Attempt(call, "ok", 0.5, 9, 3, hosts=("crm.example",))
    spec = run_spec()
    kept = tool_call_row(spec, attempt, replica="me")
    assert (kept.tool, kept.arguments_hash) == ("crm.tell", attempt.arguments_hash)
    assert kept.hosts == ("crm.example",)
    nobody = replace(spec.principal, retention_type=ZERO_RETENTION)
    unkept = tool_call_row(replace(spec, principal=nobody), attempt, replica="me")
    named = (unkept.server, unkept.tool, unkept.arguments_hash, unkept.hosts)
    assert named == ("", "", b"", ())
    assert (unkept.kind, unkept.outcome, unkept.result_bytes) == (kept.kind, "ok", 9)
