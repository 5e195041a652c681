"""Approvals of calls of MCP tools: what a request says of those that its context asks for.

A response that may not call a tool by itself ends with an `mcp_approval_request`. The next request
answers it, with whatever brings the context along: a previous response, a conversation, or all the
items once more. Clients that send all items send old answers again, too. Only those count that
nothing of the model stands behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from gateway.errors import InvalidRequest
from gateway.protocol.grants import ApprovedCall, approval_digest
from gateway.protocol.items import McpApprovalResponse, Message
from gateway.protocol.request_errors import unknown_approval
from gateway.protocol.tool_types import flat_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.protocol.grants import McpTool, ServerGrant
    from gateway.protocol.items import InputItem, McpApprovalRequest

Used = Literal["consumed", "unknown", "expired", "used", "mismatch"]
"""Outcome of the use of an approval (`store.tools.tool_calls`)."""

_OF_NOBODY: Final = frozenset({"item_reference", "compaction_trigger"})
_PARAM: Final = "input"


class ApprovalUsed(InvalidRequest):
    """Refusal of an approval that another response has already used."""


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """Decision of the user about the request `request_id`, made for the call with this `digest`.

    `call` is the approved call; None: the user refused it.
    """

    request_id: str
    digest: bytes
    call: ApprovedCall | None


def pending(items: Sequence[InputItem], param: str = _PARAM) -> tuple[McpApprovalResponse, ...]:
    """Return the answers that the model has not seen yet, each once.

    Raises `InvalidRequest` for two different answers to one request, and for more than one approved
    call: a response asks for one at a time.
    """
    found: dict[str, McpApprovalResponse] = {}
    for item in reversed(items):
        if isinstance(item, McpApprovalResponse):
            known = found.setdefault(item.approval_request_id, item)
            if known.approve != item.approve:
                raise _invalid(
                    f"the approval request '{item.approval_request_id}' is both approved and "
                    "refused. Send one answer.",
                    "approval_mismatch",
                    param,
                )
        elif not _is_of_user(item):
            break
    if sum(answer.approve for answer in found.values()) > 1:
        raise _invalid(
            "it approves more than one call. Send the answer to the last approval request alone.",
            "approval_mismatch",
            param,
        )
    return tuple(reversed(found.values()))


def _is_of_user(item: InputItem) -> bool:
    if isinstance(item, Message):
        return item.role != "assistant"
    return item.type in _OF_NOBODY or item.type.endswith("_output")


def decisions(
    answers: Sequence[McpApprovalResponse],
    asked: Mapping[str, McpApprovalRequest],
    servers: Sequence[ServerGrant],
) -> tuple[ApprovalDecision, ...]:
    """Bind answers to the tools that the request itself grants.

    `asked` are the approval requests of the context by id. A refusal needs no binding if its tool
    is not granted any more. Raises `InvalidRequest` for an answer to a request that the context
    does not have, and for an approval of a call that has changed.
    """
    decided: list[ApprovalDecision] = []
    for answer in answers:
        request_id = answer.approval_request_id
        request = asked.get(request_id)
        if request is None:
            raise unknown_approval(request_id)
        found = _tool(request, servers)
        if found is not None:
            digest = approval_digest(*found, request.arguments)
            name = flat_name(request.server_label, request.name)
            call = ApprovedCall(request_id, name, request.arguments) if answer.approve else None
            decided.append(ApprovalDecision(request_id, digest, call))
        elif answer.approve:
            raise _mismatch(request_id)
    return tuple(decided)


def _tool(
    request: McpApprovalRequest, servers: Sequence[ServerGrant]
) -> tuple[ServerGrant, McpTool] | None:
    for server in servers:
        for tool in server.tools:
            if (server.label, tool.name) == (request.server_label, request.name):
                return server, tool
    return None


def refused_use(request_id: str, used: Used) -> InvalidRequest:
    """Return the error for an approval answer that does not count, by the result of using it."""
    match used:
        case "used":
            return ApprovalUsed(
                f"Invalid '{_PARAM}': the approval request '{request_id}' was answered before, and "
                "an answer counts once. Continue the response that it was answered with.",
                code="approval_already_used",
                param=_PARAM,
            )
        case "expired":
            return _invalid(
                f"the approval request '{request_id}' has expired. Leave the answer out, and let "
                "the model ask again.",
                "approval_expired",
            )
        case "unknown":
            return _invalid(
                f"this server knows no approval request '{request_id}'. Leave the answer out, and "
                "let the model ask again.",
                "approval_not_found",
            )
        case _:
            return _mismatch(request_id)


def _mismatch(request_id: str) -> InvalidRequest:
    return _invalid(
        f"what the approval request '{request_id}' was made for is not what would be called now: "
        "its arguments, the tool or the server have changed, or the request does not offer the "
        "server any more. Offer the same server in 'tools' with the same credentials, or leave the "
        "answer out and let the model ask again.",
        "approval_mismatch",
    )


def _invalid(what: str, code: str, param: str = _PARAM) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{param}': {what}", code=code, param=param)
