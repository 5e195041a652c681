"""The line that is written for each request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from gateway.server.access_log import AccessLog

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

SCOPE: Any = {"type": "http", "method": "POST", "path": "/v1/responses"}


async def receive() -> Any:
    raise AssertionError("nothing is read")


async def send(_: Any) -> None:
    """Takes whatever is sent."""


async def test_a_request_has_one_line_when_its_answer_is_complete() -> None:
    lines: list[str] = []

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        assert lines == []
        await send({"type": "http.response.body", "body": b"ok"})

    await AccessLog(app, lines.append)(SCOPE, receive, send)
    [line] = lines
    shown = r"  \d\d:\d\d:\d\d  POST /v1/responses  200  first byte \d+ ms   \d+\.\d\d s"
    assert re.fullmatch(shown, line)


async def test_a_request_whose_client_left_before_the_answer_has_a_line_that_says_so() -> None:
    lines: list[str] = []

    async def app(*_: object) -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await AccessLog(app, lines.append)(SCOPE, receive, send)
    assert re.fullmatch(r"  [\d:]{8}  POST /v1/responses  client left  \d+\.\d\d s", lines[0])


async def test_what_is_no_request_is_passed_on_without_a_line() -> None:
    lines: list[str] = []
    passed: list[Scope] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        passed.append(scope)

    await AccessLog(app, lines.append)({"type": "lifespan"}, receive, send)
    assert (passed, lines) == ([{"type": "lifespan"}], [])
