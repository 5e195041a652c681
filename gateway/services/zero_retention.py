"""Zero data retention: requests of callers whose content may not be stored.

| requested | becomes |
|---|---|
| `store` | `false`: request and answer are in memory only |
| `background`, `Idempotency-Key` | 400: other processes would need the database |
| `previous_response_id`, `conversation` | 400, unless this connection remembers the response |
| `code_interpreter` | 400: containers and their files are rows |
| conversations, files, containers, traces | 400 where something would be written |

Content that was stored before can be read and deleted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.errors import InvalidRequest
from gateway.protocol.hosted_tools import CodeInterpreterTool

if TYPE_CHECKING:
    from gateway.services.runs.spec_builder import CreateCommand
    from gateway.tenancy import Principal

CODE = "zero_data_retention"


def require_storage(principal: Principal, what: str, *, param: str | None = None) -> None:
    if principal.keeps_nothing:
        raise InvalidRequest(
            f"{what} is not available with zero data retention: it would have to be stored.",
            code=CODE,
            param=param,
        )


def permitted(command: CreateCommand) -> CreateCommand:
    principal, request = command.principal, command.request
    if request.background:
        require_storage(principal, "'background'", param="background")
    if command.key is not None:
        require_storage(principal, "'Idempotency-Key'", param="Idempotency-Key")
    if request.conversation is not None:
        require_storage(principal, "'conversation'", param="conversation")
    previous = request.previous_response_id
    if previous is not None and previous not in command.local:
        require_storage(principal, "'previous_response_id'", param="previous_response_id")
    if any(isinstance(tool, CodeInterpreterTool) for tool in request.tools):
        require_storage(principal, "The tool 'code_interpreter'", param="tools")
    if not request.store:
        return command
    return replace(command, request=request.model_copy(update={"store": False}))
