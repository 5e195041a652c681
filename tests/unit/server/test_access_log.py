"""The line that is written for each request."""

from __future__ import annotations

import json
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


async def test_each_response_over_a_websocket_has_a_line_when_its_last_event_is_sent() -> None:
    lines: list[str] = []
    counts: list[int] = []

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        for event in (
            {"type": "response.created", "stream_id": "a"},
            {"type": "response.created"},
            {"type": "response.output_text.delta"},
            {"type": "response.completed"},
            {"type": "response.failed", "stream_id": "a"},
            {"type": "error", "status": 400},
        ):
            await send({"type": "websocket.send", "text": json.dumps(event)})
            counts.append(len(lines))
        await send({"type": "websocket.close"})

    scope = {"type": "websocket", "path": "/v1/responses"}
    await AccessLog(app, lines.append)(scope, receive, send)
    assert counts == [0, 0, 0, 1, 2, 3]
    outcomes = [line.partition("  WS /v1/responses  ")[2] for line in lines]
    assert re.fullmatch(r"completed  \d+\.\d\d s", outcomes[0])
    assert re.fullmatch(r"failed  \d+\.\d\d s", outcomes[1])
    assert outcomes[2] == "error 400"


async def test_an_upgrade_that_is_refused_has_a_line_with_its_status() -> None:
    lines: list[str] = []

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "websocket.http.response.start", "status": 401, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b""})

    scope = {"type": "websocket", "path": "/v1/responses"}
    await AccessLog(app, lines.append)(scope, receive, send)
    assert [line.partition("  WS /v1/responses  ")[2] for line in lines] == ["401"]


async def test_while_it_is_paused_nothing_is_written() -> None:
    lines: list[str] = []

    async def app(*_: object) -> None:
        """Answers nothing."""

    log = AccessLog(app, lines.append)
    log.is_paused = True
    await log(SCOPE, receive, send)
    assert lines == []


async def test_what_is_no_request_is_passed_on_without_a_line() -> None:
    lines: list[str] = []
    passed: list[Scope] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        passed.append(scope)

    await AccessLog(app, lines.append)({"type": "lifespan"}, receive, send)
    assert (passed, lines) == ([{"type": "lifespan"}], [])
