"""SessionPool with a real MCP server, alive, slow, and dead."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import TYPE_CHECKING

import pytest

from gateway.tools.egress.network_policy import NetworkPolicy
from gateway.tools.egress.transport import EgressLimits, client
from gateway.tools.mcp.failures import McpError
from gateway.tools.mcp.session import CallResult, McpLimits, McpSession
from tests.fakes.mcp_server import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

OURS = NetworkPolicy(networks=(ip_network("127.0.0.1/32"),))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as server:
        yield server.url


@asynccontextmanager
async def session_with(
    url: str, policy: NetworkPolicy = OURS, limits: McpLimits | None = None
) -> AsyncIterator[McpSession]:
    session = McpSession(url, lambda _: client(policy, EgressLimits()), limits or McpLimits())
    async with asyncio.TaskGroup() as tasks:
        owner = tasks.create_task(session.run())
        try:
            yield session
        finally:
            owner.cancel()


async def failure(
    session: McpSession, name: str, timeout_s: float = 20, **passed: object
) -> McpError:
    with pytest.raises(McpError) as raised:
        await session.call(name, passed, timeout_s=timeout_s, meta={})
    return raised.value


@pytest.mark.slow
async def test_tools_are_listed_with_their_hints(url: str) -> None:
    async with session_with(url) as session:
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
    assert tools["add"].description == "Add two numbers."
    assert set(tools["add"].input_schema["properties"]) == {"a", "b"}
    assert (tools["add"].read_only, tools["add"].idempotent) == (True, False)
    assert (tools["count"].read_only, tools["count"].idempotent) == (False, True)


@pytest.mark.slow
async def test_calls_run_beside_each_other(url: str) -> None:
    async with session_with(url) as session:
        texts = [str(number) for number in range(8)]
        results = await asyncio.gather(
            *(session.call("say", {"text": text}, timeout_s=20, meta={}) for text in texts)
        )
        assert results == [CallResult(text) for text in texts]
        assert await session.call("add", {"a": 1, "b": 2}, timeout_s=20, meta={}) == CallResult(
            '{"result":3}'
        )


@pytest.mark.slow
async def test_tool_that_fails_says_so(url: str) -> None:
    async with session_with(url) as session:
        for name, passed in (("boom", {}), ("no_such_tool", {}), ("add", {"a": "x"})):
            result = await session.call(name, passed, timeout_s=20, meta={})
            assert result.is_error
            assert name in result.output


@pytest.mark.slow
async def test_call_that_takes_too_long_is_cancelled_on_the_server(
    url: str, tmp_path: Path
) -> None:
    made = tmp_path / "cancelled"
    async with session_with(url) as session:
        await session.call("say", {"text": "there"}, timeout_s=20, meta={})
        error = await failure(session, "wait", timeout_s=0.3, folder=str(made))
        assert (error.type, error.code, error.sent) == ("mcp_protocol_error", -32001, True)
        async with asyncio.timeout(60):
            while not made.exists():
                await session.call("say", {"text": "still there"}, timeout_s=20, meta={})


@pytest.mark.slow
async def test_server_that_dies_ends_its_calls_and_nothing_else() -> None:
    with serving() as server:
        url = server.url
        async with session_with(url) as session:
            await session.call("say", {"text": "hello"}, timeout_s=20, meta={})
            error = await failure(session, "die")
            assert (error.type, error.sent) == ("http_error", True)
            error = await failure(session, "say", text="anybody?")
            assert session.is_over
            assert error.type == "http_error"
    async with session_with(url) as session:
        error = await failure(session, "say", text="anybody?")
        assert (error.code, error.sent) == (0, False)


async def test_server_that_must_not_be_reached_is_not(url: str) -> None:
    async with session_with(url, NetworkPolicy()) as session:
        error = await failure(session, "say", text="hello")
        assert (error.type, error.code, error.sent) == ("http_error", 403, False)


async def test_session_ends_when_nobody_asks(url: str) -> None:
    session = McpSession(url, lambda _: client(OURS, EgressLimits()), McpLimits(idle_s=0.01))
    await session.run()
    assert session.is_over
    error = await failure(session, "say", text="late")
    assert (str(error), error.sent) == ("the session is over", False)
