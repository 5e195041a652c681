"""What a request asks for that its tenant may not have, or its model has not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.errors import InvalidRequest, PermissionDenied

if TYPE_CHECKING:
    from gateway.protocol.responses.create import CreateResponse
    from gateway.tenancy import Principal


def require_messages(principal: Principal) -> None:
    """Raises `PermissionDenied` for a tenant that may not see the messages of its responses."""
    if principal.policy.response_messages != "allowed":
        raise PermissionDenied(
            "The Harmony messages and token ids of a response are not shown to this API key. Leave "
            "'enable_response_messages' and the token ids in 'include' out, or ask the operator to "
            f"run: harmony-gateway tenants set {principal.tenant_name} --response-messages allowed",
            code="response_messages_not_allowed",
            param="enable_response_messages",
        )


def require_no_ids(request: CreateResponse) -> None:
    """Raises `InvalidRequest` for what takes token ids, of a prompt that is sent as messages."""
    if request.wants_logprobs:
        raise InvalidRequest(
            "This request goes to the chat endpoint of a server, of which no log probabilities are "
            "known. Leave 'message.output_text.logprobs' out of include, and top_logprobs out of "
            "the request.",
            code="unsupported_parameter",
            param="include",
        )
    if request.wants_input_ids or request.wants_output_ids:
        raise InvalidRequest(
            "This request goes to the chat endpoint of a server, which has no token ids. Leave "
            "them out of include.",
            code="unsupported_parameter",
            param="include",
        )
