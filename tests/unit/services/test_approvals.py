"""Answers to requests for approval: which count, what they are bound to, why one does not count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import TypeAdapter

from gateway.errors import InvalidRequest
from gateway.protocol.grants import ApprovedCall, McpTool, ServerGrant, approval_digest
from gateway.protocol.items import AnyInputItem, McpApprovalRequest, McpApprovalResponse
from gateway.protocol.request_errors import refused_approval
from gateway.services.runs.tool_grants import ApprovalDecision, decisions, pending
from tests.fakes.cases import each

if TYPE_CHECKING:
    from gateway.protocol.request_errors import ApprovalFault

ITEMS: TypeAdapter[Any] = TypeAdapter(tuple[AnyInputItem, ...])
USER = {"role": "user", "content": "Go on."}
ASKED = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "docs"} | {
    "name": "drop",
    "arguments": '{"a":1}',
}
YES = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
NO = {**YES, "approve": False, "reason": "Too risky."}
CALLED = {"type": "mcp_call", "id": "mcp_1", "server_label": "docs", "name": "drop"} | {
    "arguments": '{"a":1}',
    "output": "done",
    "approval_request_id": "mcpr_1",
}
DROP = McpTool("drop", {"type": "object"}, digest="d")
DOCS = ServerGrant("docs", "https://a.example/mcp", tools=(McpTool("other", {}), DROP))
REQUEST = McpApprovalRequest(id="mcpr_1", server_label="docs", name="drop", arguments='{"a":1}')
CALL = ApprovedCall("mcpr_1", "docs.drop", '{"a":1}')
DIGEST = approval_digest(DOCS, DROP, '{"a":1}')


def answers(*items: Any) -> list[tuple[str, bool]]:
    found = pending(ITEMS.validate_python(items))
    return [(answer.approval_request_id, answer.approve) for answer in found]


def answer(*, approve: bool = True, request_id: str = "mcpr_1") -> McpApprovalResponse:
    return McpApprovalResponse(approval_request_id=request_id, approve=approve)


@each(
    ("items", "expected"),
    [
        ([USER], []),
        ([YES], [("mcpr_1", True)]),
        ([USER, ASKED, NO], [("mcpr_1", False)]),
        ([ASKED, YES, USER], [("mcpr_1", True)]),
        ([ASKED, {"type": "item_reference", "id": "mcpr_1"}, YES, YES], [("mcpr_1", True)]),
        ([ASKED, YES, CALLED], []),
        ([ASKED, YES, {"role": "assistant", "content": "Done."}, USER], []),
        ([ASKED, NO, {"type": "reasoning", "summary": []}], []),
        (
            [
                ASKED,
                YES,
                CALLED,
                {**ASKED, "id": "mcpr_2"},
                {**NO, "approval_request_id": "mcpr_2"},
            ],
            [("mcpr_2", False)],
        ),
        ([{**NO, "approval_request_id": "mcpr_0"}, YES], [("mcpr_0", False), ("mcpr_1", True)]),
    ],
)
def test_only_answers_count_that_the_model_has_not_been_told(
    items: list[Any], expected: list[tuple[str, bool]]
) -> None:
    assert answers(*items) == expected


@pytest.mark.parametrize("items", [[YES, NO], [YES, {**YES, "approval_request_id": "mcpr_2"}]])
def test_answers_must_not_contradict_each_other_or_approve_two_calls(items: list[Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        answers(*items)
    assert (caught.value.code, caught.value.param) == ("approval_mismatch", "input")


def test_an_approval_is_of_the_call_that_was_asked_for_as_the_tool_is_now() -> None:
    decided = decisions([answer()], {"mcpr_1": REQUEST}, [DOCS])
    assert decided == (ApprovalDecision("mcpr_1", DIGEST, CALL),)


def test_a_refusal_calls_nothing_and_needs_no_tool() -> None:
    known = {"mcpr_1": REQUEST}
    assert decisions([answer(approve=False)], known, [DOCS]) == (
        ApprovalDecision("mcpr_1", DIGEST, None),
    )
    assert decisions([answer(approve=False)], known, []) == ()


@pytest.mark.parametrize(
    "servers",
    [
        (),
        (ServerGrant("docs", DOCS.server, tools=(McpTool("other", {}),)),),
        (ServerGrant("others", DOCS.server, tools=(DROP,)),),
    ],
)
def test_an_approval_of_what_the_request_does_not_offer_is_refused(
    servers: tuple[ServerGrant, ...],
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decisions([answer()], {"mcpr_1": REQUEST}, servers)
    assert caught.value.code == "approval_mismatch"
    assert "Offer the same server" in caught.value.message


@pytest.mark.parametrize("approve", [True, False])
def test_an_answer_to_nothing_is_refused(*, approve: bool) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decisions([answer(approve=approve, request_id="mcpr_9")], {"mcpr_1": REQUEST}, [DOCS])
    assert caught.value.code == "approval_not_found"
    assert "mcpr_9" in caught.value.message


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("used", "approval_already_used"),
        ("expired", "approval_expired"),
        ("unknown", "approval_not_found"),
        ("mismatch", "approval_mismatch"),
    ],
)
def test_why_an_answer_does_not_count_says_what_to_do(fault: ApprovalFault, code: str) -> None:
    refusal = refused_approval("mcpr_1", fault)
    assert (refusal.code, refusal.param) == (code, "input")
    assert "mcpr_1" in refusal.message
