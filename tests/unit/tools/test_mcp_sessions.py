"""Connections to real servers of every kind: found, shared, lost, made again, closed."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from gateway import ids
from gateway.telemetry.metrics import Metrics
from gateway.tenancy import TenantId
from gateway.tools.egress.network_policy import NetworkPolicy
from gateway.tools.mcp.failures import NEEDS_USER, McpError
from gateway.tools.mcp.session import CallResult, McpLimits
from tests.fakes.mcp_peers import PATIENT, peer, pool
from tests.fakes.mcp_server import Process, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.tools.mcp.session_pool import Peer, SessionPool

MODES = ("modern", "legacy", "sse")


@pytest.fixture(scope="module", params=MODES)
def server(request: pytest.FixtureRequest) -> Iterator[Process]:
    with serving(request.param) as started:
        yield started


async def call(
    sessions: SessionPool, whom: Peer, name: str, timeout_s: float = 20, **given: Any
) -> str:
    result = await sessions.call(whom, name, given, timeout_s=timeout_s, meta={})
    assert not result.is_error
    return result.output


async def failure(
    sessions: SessionPool, whom: Peer, name: str, timeout_s: float = 20, **given: Any
) -> McpError:
    with pytest.raises(McpError) as raised:
        await sessions.call(whom, name, given, timeout_s=timeout_s, meta={})
    return raised.value


def read(file: str) -> str:
    return Path(file).read_text(encoding="utf-8")


async def sent_to(server: Process) -> list[dict[str, str]]:
    """The headers of all requests that a server got."""
    async with httpx2.AsyncClient() as client:
        answer = await client.get(f"{server.origin}/headers")
    headers: list[dict[str, str]] = answer.json()
    return headers


@pytest.mark.slow
async def test_servers_of_every_age_are_listed_and_called(server: Process) -> None:
    async with pool() as sessions:
        whom = peer(server.url)
        pages = await sessions.list_tools(whom)
        assert pages.instructions == "It helps with tests."
        tools = {tool.name: tool for tool in pages.tools}
        assert tools["add"].read_only
        assert tools["add"].annotations == {"readOnlyHint": True}
        assert await call(sessions, whom, "say", text="é") == "é"
        assert await call(sessions, whom, "slow", steps=5) == "5 steps"
        assert sessions.count == 1


@pytest.mark.slow
async def test_what_a_call_comes_with_reaches_the_server(server: Process) -> None:
    meta = {"traceparent": "00-1-2-01", "harmony-gateway/deadline": 1.5}
    async with pool() as sessions:
        result = await sessions.call(peer(server.url), "meta", {}, timeout_s=20, meta=meta)
    assert json.loads(result.output).items() >= meta.items()


@pytest.mark.slow
async def test_tool_that_asks_its_user_is_refused_in_clear_words(server: Process) -> None:
    async with pool() as sessions:
        error = await failure(sessions, peer(server.url), "ask")
    assert (error.type, str(error)) == ("mcp_protocol_error", NEEDS_USER)


@pytest.mark.slow
async def test_results_of_any_kind_become_text(server: Process) -> None:
    async with pool() as sessions:
        whom = peer(server.url)
        said = json.loads(await call(sessions, whom, "picture"))
        assert said[0] == {"type": "text", "text": "a dot"}
        assert said[1]["data"] == "(4 characters of base64 left out)"
        (said,) = json.loads(await call(sessions, whom, "attachment"))
        assert said["resource"]["blob"] == "(8 characters of base64 left out)"
        assert await call(sessions, whom, "number") == f'{{"number":{2**70}}}'


@pytest.mark.slow
async def test_headers_that_repeat_arguments_are_sent_once_they_are_known(server: Process) -> None:
    is_modern = server.mode == "modern"
    async with pool() as sessions:
        said = await call(sessions, peer(server.url), "region", region="west")
    assert said == ("west" if is_modern else "none")


@pytest.mark.slow
async def test_server_may_ask_to_be_called_again_but_not_for_ever() -> None:
    with serving() as modern:
        async with pool() as sessions:
            whom = peer(modern.url)
            assert await call(sessions, whom, "twice") == "the second time"
            error = await failure(sessions, whom, "again")
            assert str(error) == NEEDS_USER


@pytest.mark.slow
async def test_result_that_is_too_long_ends_its_call_alone(server: Process) -> None:
    limits = replace(PATIENT, result_bytes_max=512 * 1024)
    async with pool(limits=limits) as sessions:
        whom = peer(server.url)
        error = await failure(sessions, whom, "big", characters=2**21)
        assert (error.type, error.sent) == ("http_error", True)
        assert await call(sessions, whom, "say", text="still there") == "still there"


@pytest.mark.slow
async def test_result_of_too_many_values_ends_its_call_alone(server: Process) -> None:
    async with pool(limits=replace(PATIENT, result_values_max=2000)) as sessions:
        whom = peer(server.url)
        error = await failure(sessions, whom, "brackets", count=2000)
        assert (error.type, error.sent) == ("http_error", True)
        assert "[],[]" in await call(sessions, whom, "brackets", count=400)
        text = "[]," * 100_000
        assert await call(sessions, whom, "say", text=text) == text


@pytest.mark.slow
async def test_change_of_tools_is_told(server: Process) -> None:
    told = asyncio.Event()
    async with pool() as sessions:
        whom = peer(server.url)
        sessions.on_list_changed = lambda one: told.set() if one == whom else None
        await sessions.list_tools(whom)
        async with asyncio.timeout(60):
            while not told.is_set():  # the server may not listen yet
                await call(sessions, whom, "grow")


@pytest.mark.slow
async def test_server_that_dies_in_a_call_has_maybe_done_it(tmp_path: Path) -> None:
    for mode in MODES:
        with serving(mode) as dying:
            async with pool() as sessions:
                whom = peer(dying.url)
                await call(sessions, whom, "say", text="there")
                file = str(tmp_path / mode)
                error = await failure(sessions, whom, "effect", file=file, dies=True)
                assert (error.type, error.code, error.sent) == ("http_error", 0, True)
                assert read(file) == "called\n"
                # Until it is gone its socket takes connections, whose requests may have left.
                dying.process.wait()
                error = await failure(sessions, whom, "say", text="anybody?")
                assert (error.type, error.code, error.sent) == ("http_error", 0, False)


@pytest.mark.slow
async def test_server_that_was_started_again_is_called_again() -> None:
    for mode in MODES:
        dying = Process(mode)
        async with pool() as sessions:
            whom = peer(dying.url)
            assert await call(sessions, whom, "say", text="before") == "before"
            dying.kill()
            with_same_port = Process(mode, port=dying.port)
            try:
                assert await call(sessions, whom, "say", text="after") == "after"
            finally:
                with_same_port.kill()


@pytest.mark.slow
async def test_death_of_a_server_touches_neither_its_callers_task_nor_other_servers(
    server: Process,
) -> None:
    with serving() as dying:
        async with pool() as sessions:
            mortal, whom = peer(dying.url), peer(server.url)
            calls = [
                sessions.call(mortal, "die", {}, timeout_s=20, meta={}),
                sessions.call(whom, "slow", {"steps": 20}, timeout_s=20, meta={}),
            ]
            died, lived = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(died, McpError)
    assert lived == CallResult("20 steps")
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


@pytest.mark.slow
async def test_cancelled_call_is_cancelled_on_the_server(server: Process, tmp_path: Path) -> None:
    made = tmp_path / "cancelled"
    async with pool() as sessions:
        whom = peer(server.url)
        await call(sessions, whom, "say", text="there")
        error = await failure(sessions, whom, "wait", timeout_s=0.5, folder=str(made))
        assert (error.code, error.sent) == (-32001, True)
        async with asyncio.timeout(60):
            while not made.exists():
                await call(sessions, whom, "say", text="still there")


@pytest.mark.slow
async def test_refusals_have_their_status() -> None:
    with serving("denied") as denied, serving() as elsewhere:
        async with pool() as sessions:
            error = await failure(sessions, peer(denied.url), "say", text="x")
            assert (error.type, error.code) == ("http_error", 401)
            allowed = peer(denied.url, authorization="Bearer good")
            assert await call(sessions, allowed, "say", text="x") == "x"
            with serving(f"redirect={elsewhere.url}") as redirecting:
                error = await failure(sessions, peer(redirecting.url), "say", text="x")
                assert (error.type, error.code) == ("http_error", 307)
        assert await sent_to(elsewhere) == []


@pytest.mark.slow
async def test_server_that_never_answers_is_given_up_in_time() -> None:
    hasty = McpLimits(connect_timeout_s=0.5)
    with serving("silent") as silent:
        async with pool(limits=hasty) as sessions:
            error = await failure(sessions, peer(silent.url), "say", text="x")
            assert (error.code, error.sent) == (-32001, False)
            error = await failure(sessions, peer(silent.url), "say", timeout_s=0.1, text="x")
            assert (error.code, error.sent) == (-32001, False)


@pytest.mark.slow
async def test_credentials_of_one_server_never_reach_another() -> None:
    with serving() as one, serving() as other:
        async with pool() as sessions:
            for server, name in ((one, "one"), (other, "other")):
                whom = peer(server.url, authorization=f"Bearer {name}", **{"x-team": name})
                other_team = peer(server.url, **{"x-team": f"{name}2"})
                for _ in range(2):
                    await call(sessions, whom, "say", text="x")
                    await call(sessions, other_team, "say", text="x")
        for server, name in ((one, "one"), (other, "other")):
            seen = {(h.get("authorization"), h.get("x-team")) for h in await sent_to(server)}
            assert seen == {(f"Bearer {name}", name), (None, f"{name}2")}
            for headers in await sent_to(server):
                assert headers["user-agent"] == "harmony-gateway"
                assert "cookie" not in headers


@pytest.mark.slow
async def test_tenants_have_connections_of_their_own(server: Process) -> None:
    async with pool() as sessions:
        whom = peer(server.url)
        theirs = replace(whom, tenant_id=TenantId(ids.new_uuid()))
        await asyncio.gather(*(call(sessions, one, "say", text="x") for one in (whom, theirs)))
        assert sessions.count == 2


@pytest.mark.slow
async def test_name_that_leads_inside_is_not_connected_to(server: Process) -> None:
    """A name that a tenant controls: public when it is looked at, private when it is used."""
    answers = [("93.184.215.14",), ("127.0.0.1",)]

    async def rebinding(host: str, port: int) -> tuple[str, ...]:
        return answers.pop() if len(answers) > 1 else answers[0]

    async def private(host: str, port: int) -> tuple[str, ...]:
        return ("10.0.0.1", "93.184.215.14")

    port = int(server.origin.rpartition(":")[2])
    public = NetworkPolicy(ports=frozenset({port}))
    for resolver in (rebinding, private):
        async with pool(public, resolver=resolver) as sessions:
            error = await failure(sessions, peer(f"http://mcp.example:{port}/mcp"), "say", text="x")
            assert (error.type, error.code, error.sent) == ("http_error", 403, False)
            assert "127.0.0.1" not in str(error)
    async with pool(public) as sessions:
        error = await failure(sessions, peer(server.url), "say", text="x")
        assert error.code == 403


@pytest.mark.slow
async def test_calls_of_one_server_wait_for_each_other_and_not_for_ever(
    server: Process, tmp_path: Path
) -> None:
    async with pool(limits=replace(PATIENT, calls_max=1, busy_wait_s=0.05)) as sessions:
        whom = peer(server.url)
        await call(sessions, whom, "say", text="there")
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(
                failure(sessions, whom, "wait", timeout_s=2, folder=str(tmp_path / "made"))
            )
            await asyncio.sleep(0)
            error = await failure(sessions, whom, "say", text="x")
            assert (error.code, error.sent) == (-32000, False)
            running.cancel()


@pytest.mark.slow
async def test_connection_that_nobody_uses_makes_room(server: Process) -> None:
    async with pool(limits=replace(PATIENT, sessions_max=2)) as sessions:
        for name in "abc":
            assert await call(sessions, peer(server.url, **{"x-n": name}), "say", text=name) == name
        async with asyncio.timeout(60):
            while sessions.count > 2:
                await call(sessions, peer(server.url, **{"x-n": "c"}), "say", text="x")


@pytest.mark.slow
async def test_a_tenant_that_takes_all_it_may_leaves_the_others_their_places(
    server: Process, tmp_path: Path
) -> None:
    limits = replace(PATIENT, sessions_max=3, tenant_sessions_max=2, busy_wait_s=0.2)
    async with pool(limits=limits) as sessions:
        greedy = [peer(server.url, **{"x-n": name}) for name in "abc"]
        for whom in greedy:
            await call(sessions, whom, "say", text="there")
        assert sessions._slots.held(greedy[0].tenant_id) == 2
        hanging = [
            asyncio.create_task(failure(sessions, whom, "wait", folder=str(tmp_path / f"{number}")))
            for number, whom in enumerate(greedy[1:])
        ]
        await asyncio.sleep(0)
        error = await failure(sessions, greedy[0], "say", text="x")
        assert (error.code, error.sent) == (-32000, False)
        others = [replace(greedy[0], tenant_id=TenantId(ids.new_uuid())) for _ in range(2)]
        for whom in others:  # the second takes the place of the first one, which nobody asks
            assert await call(sessions, whom, "say", text="x") == "x"
        for task in hanging:
            task.cancel()
        await asyncio.wait(hanging)
        assert await call(sessions, greedy[0], "say", text="x") == "x"


@pytest.mark.slow
async def test_a_question_that_waits_has_the_place_of_one_that_ends(server: Process) -> None:
    limits = replace(PATIENT, sessions_max=1, tenant_sessions_max=1, busy_wait_s=20)
    async with pool(limits=limits) as sessions:
        first, second = (peer(server.url, **{"x-n": name}) for name in "ab")
        others = replace(first, tenant_id=TenantId(ids.new_uuid()))
        said = await asyncio.gather(
            call(sessions, first, "slow", steps=5),
            *(call(sessions, whom, "say", text="x") for whom in (second, second, others)),
        )
        assert said == ["5 steps", "x", "x", "x"]
        assert sessions._slots.held(first.tenant_id) + sessions._slots.held(others.tenant_id) == 1


@pytest.mark.slow
async def test_metrics_tell_which_servers_are_connected_to_and_how_long_they_list() -> None:
    metrics = Metrics()

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"gateway_mcp_{name}", labels)

    with serving() as well, serving("denied") as denied:
        async with pool(metrics=metrics) as sessions:
            await sessions.list_tools(replace(peer(well.url), name="shop"))
            with pytest.raises(McpError):
                await sessions.list_tools(peer(denied.url))
            assert value("sessions", server="shop") == 1
        assert value("sessions", server="shop") == 0
        assert value("sessions", server="(not registered)") == 0
    assert value("list_seconds_count", server="shop", outcome="ok") == 1
    assert value("list_seconds_count", server="(not registered)", outcome="error") == 1


@pytest.mark.slow
async def test_idle_connection_ends_and_is_made_again(server: Process) -> None:
    async with pool(limits=replace(PATIENT, idle_s=0.01)) as sessions:
        for _ in range(2):
            assert await call(sessions, peer(server.url), "say", text="x") == "x"
            (shared,) = sessions._shared.values()
            async with asyncio.timeout(60):
                await shared.owner
            assert sessions.count == 0


async def test_nothing_is_asked_of_sessions_that_nobody_holds(server: Process) -> None:
    async with pool(limits=replace(PATIENT, busy_wait_s=0.01)) as sessions:
        pass
    error = await failure(sessions, peer(server.url), "say", text="x")
    assert (str(error), error.sent) == ("the gateway is stopping", False)
