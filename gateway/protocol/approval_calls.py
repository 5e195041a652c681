"""Requests for approval as calls of a function, and answers as its output: read back as what they
are.

Open Responses has no items for either, so there a request is shown as a call of `FUNCTION`
(`open_responses`), whose id is the request's, and is answered as calls are. Such items are read so
in any dialect: which one a client is answered in does not change what it may send.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from gateway import ids
from gateway.protocol.base import without_nulls
from gateway.protocol.calls import output_text
from gateway.protocol.items import (
    AnyInputItem,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    McpApprovalRequest,
    McpApprovalResponse,
)

Said = TypeVar("Said", bound=BaseModel)

FUNCTION: Final = "mcp_approval_request"
"""The name of the function."""
ID_PREFIX: Final = ids.HOSTED_PREFIXES[FUNCTION]
"""What the ids of its calls begin with."""
_EXPECTED: Final = {
    "arguments": "those with which the call was shown",
    "output": '{"approve": true}, or {"approve": false, "reason": "..."}',
}


class AskedCall(BaseModel):
    """The arguments of such a call: what is to be called if the user approves it."""

    model_config = ConfigDict(strict=True)

    server_label: str
    name: str
    arguments: str


class ApprovalAnswer(BaseModel):
    """The output of such a call: whether the user approves."""

    model_config = ConfigDict(strict=True)

    approve: bool
    reason: str | None = None


def _to_approval_item(item: InputItem) -> InputItem:
    match item:
        case FunctionCall(name=name, call_id=call_id) if name == FUNCTION and _is_own(call_id):
            asked = _parse(AskedCall, "arguments", item.arguments)
            fields = {"id": call_id, "type": FUNCTION, **asked.model_dump()}
            return McpApprovalRequest.model_validate(fields)
        case FunctionCallOutput(call_id=call_id) if call_id is not None and _is_own(call_id):
            answer = _parse(ApprovalAnswer, "output", output_text(item))
            fields = {
                "id": item.id,
                "type": "mcp_approval_response",
                "approval_request_id": call_id,
                **answer.model_dump(),
            }
            # What is not set is not stored either.
            return McpApprovalResponse.model_validate(without_nulls(fields))
        case _:
            return item


def _is_own(call_id: str) -> bool:
    return call_id.startswith(ID_PREFIX)


def _parse(model: type[Said], field: str, text: str) -> Said:
    try:
        return model.model_validate_json(text)
    except ValidationError:
        context = {"field": field, "expected": _EXPECTED[field]}
        raise PydanticCustomError("approval_call", "", context) from None


ReadItem = Annotated[AnyInputItem, AfterValidator(_to_approval_item)]
"""`AnyInputItem`, of which none stands for a request for approval or its answer."""
