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


async def test_a_path_writes_no_line_of_its_own_and_tells_a_terminal_nothing() -> None:
    lines: list[str] = []
    scope = {**SCOPE, "path": "/v1/é\r\n  12:00:00  GET /forged  200\x1b[31m\udcff"}

    async def app(*_: object) -> None:
        """Answers nothing."""

    await AccessLog(app, lines.append)(scope, receive, send)
    [line] = lines
    assert line.isprintable()
    assert "POST /v1/%C3%A9%0D%0A%20%2012:00:00" in line


async def test_what_is_no_request_is_passed_on_without_a_line() -> None:
    lines: list[str] = []
    passed: list[Scope] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        passed.append(scope)

    await AccessLog(app, lines.append)({"type": "lifespan"}, receive, send)
    assert (passed, lines) == ([{"type": "lifespan"}], [])
