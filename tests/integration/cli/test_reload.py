"""SIGHUP to a gateway that streams: what changes, what is refused; no stream ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.app import create_app
from gateway.cli.reload import RELOADABLE, hangups, take_over
from gateway.server.server import Server, listen
from gateway.server.websocket_protocol import TOLERATED
from gateway.settings import Settings
from gateway.telemetry.logs import configure_logging, outlet
from gateway.wiring.membership import backends
from tests.fakes.gateway import gateway_settings, new_key
from tests.fakes.http_client import http_client
from tests.fakes.processes import gateway_process, module_process, reserved_port, simulator_process
from tests.fakes.stream import parse_stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import httpx2

    from gateway.app import Gateway
    from gateway.replication.durable_runs import RunDependencies
    from gateway.server.admission import Room
    from gateway.upstreams.admission.admit import Admission
    from tests.fakes.processes import GatewayProcess, SimulatorProcess

pytestmark = pytest.mark.slow

MODEL = "gpt-oss-20b"
WORDS = 60
SLOW = f"[[sim tokens_per_s=20]] {'word ' * WORDS}"
LISTENING = '"listening"'
RELOADED, REFUSED = "the configuration was reloaded", "the configuration was not reloaded"


class Reloading:
    """A gateway in front of the first of two backends, and its configuration file."""

    def __init__(
        self,
        gateway: GatewayProcess,
        client: httpx2.AsyncClient,
        path: Path,
        simulators: list[SimulatorProcess],
    ) -> None:
        self.client = client
        self.simulators = simulators
        self.sections: dict[str, Any] = json.loads(path.read_text())
        self._gateway = gateway
        self._path = path

    def lines(self, event: str) -> list[dict[str, Any]]:
        rows = [json.loads(one) for one in self._gateway.child.output.splitlines() if one[0] == "{"]
        return [row for row in rows if row.get("event") == event]

    async def reload(self, text: str | None = None) -> dict[str, Any]:
        """Send SIGHUP; return the line of the log that says what became of it."""
        before = len(self.lines(RELOADED)) + len(self.lines(REFUSED))
        self._path.write_text(json.dumps(self.sections) if text is None else text)
        self._gateway.child.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(30):
            while True:
                lines = self.lines(RELOADED) + self.lines(REFUSED)
                if len(lines) > before:
                    return max(lines, key=lambda line: line["timestamp"])
                await asyncio.sleep(0.01)

    async def healthy(self) -> set[str]:
        body = (await self.client.get("/readyz")).json()
        return {one["name"] for one in body["backends"] if one["healthy"]}

    async def until_healthy(self, names: set[str]) -> None:
        async with asyncio.timeout(30):
            while True:
                if await self.healthy() == names:
                    return
                await asyncio.sleep(0.01)

    async def create(self, text: str = "hello") -> httpx2.Response:
        return await self.client.post("/v1/responses", json={"model": MODEL, "input": text})

    @asynccontextmanager
    async def streaming(self) -> AsyncIterator[asyncio.Task[list[Any]]]:
        """A stream that has begun; the task returns its events."""
        has_begun = asyncio.Event()

        async def read() -> list[Any]:
            body = {"model": MODEL, "input": SLOW, "stream": True}
            async with self.client.stream("POST", "/v1/responses", json=body) as answer:
                text = ""
                async for part in answer.aiter_text():
                    text += part
                    if "output_text.delta" in text:
                        has_begun.set()
            return [*parse_stream(text)]

        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read())
            async with asyncio.timeout(30):
                await has_begun.wait()
            yield reading


@pytest.fixture
async def reloading(tmp_path: Path, database_url: str) -> AsyncIterator[Reloading]:
    key = await new_key(gateway_settings(database_url, []), "acme")
    with (
        reserved_port() as first_port,
        reserved_port() as second_port,
        simulator_process(first_port) as first,
        simulator_process(second_port) as second,
        gateway_process(tmp_path, database_url, [first.url], admin={"port": 0}) as gateway,
    ):
        second.until_healthy()
        async with http_client(gateway.url, headers={"authorization": f"Bearer {key}"}) as client:
            yield Reloading(gateway, client, tmp_path / "gateway.yaml", [first, second])


def completed(events: list[Any]) -> bool:
    text = "".join(one["delta"] for one in events if one["type"] == "response.output_text.delta")
    return events[-1]["type"] == "response.completed" and text.count("word") == WORDS


async def test_a_backend_is_added_and_another_removed_while_it_streams(
    reloading: Reloading,
) -> None:
    first, second = reloading.simulators
    async with reloading.streaming() as stream:
        reloading.sections["backends"] = [{"name": "new", "url": second.url}]
        line = await reloading.reload()
        assert line["settings"] == "backends"
        assert (await reloading.create()).json()["status"] == "completed"
        assert not stream.done(), "the other backend answered beside the stream"
    assert completed(stream.result())
    await reloading.until_healthy({"new"})
    assert len(first.requests()) == 1
    assert len(second.requests()) == 1


async def test_limits_and_the_level_of_the_log_change_at_once(reloading: Reloading) -> None:
    async with reloading.streaming() as stream:
        reloading.sections["limits"] = {"responses_in_flight_max": 1, "body_bytes_max": 1_000}
        reloading.sections["rate_limits"] = {"reads_per_minute_max": 1}
        line = await reloading.reload()
        assert line["settings"] == (
            "limits.body_bytes_max, limits.responses_in_flight_max, "
            "rate_limits.reads_per_minute_max"
        )
        assert (await reloading.create()).status_code == 429
        assert (await reloading.create("x" * 1_000)).status_code == 413
        reads = [(await reloading.client.get("/v1/models")).status_code for _ in range(2)]
        assert 429 in reads
        del reloading.sections["limits"], reloading.sections["rate_limits"]
        reloading.sections["log"] = {"level": "debug"}
        await reloading.reload()
        assert (await reloading.create()).status_code == 200
    assert completed(stream.result())


async def test_a_file_with_mistakes_changes_nothing_and_says_so(reloading: Reloading) -> None:
    reloading.sections["backends"] = []
    for text in ("backends: [", "backends: [{name: b0}]", json.dumps(reloading.sections)):
        line = await reloading.reload(text)
        assert line["event"] == REFUSED
        assert line["reason"] == "everything stays as it was"
        assert "backends" in line["error"] or "not YAML" in line["error"]
    assert await reloading.healthy() == {"b0"}
    assert (await reloading.create()).status_code == 200


async def test_a_setting_that_takes_a_restart_is_named_and_nothing_is_half_applied(
    reloading: Reloading,
) -> None:
    _, second = reloading.simulators
    before = dict(reloading.sections)
    reloading.sections["backends"] = [{"name": "new", "url": second.url}]
    reloading.sections["limits"] = {"responses_in_flight_max": 5, "tokenize_threads_max": 4}
    reloading.sections["database"] = {"pool_size_max": 3}
    line = await reloading.reload()
    assert line["event"] == REFUSED
    assert "restart to change database.pool_size_max, limits.tokenize_threads_max" in line["error"]
    assert await reloading.healthy() == {"b0"}
    reloading.sections = before
    assert (await reloading.reload())["settings"] == "nothing in it has changed"


CHANGED: dict[str, tuple[Any, Callable[[Gateway, Server], object]]] = {
    "backends": ([{"name": "new", "url": "http://127.0.0.1:9"}], lambda app, _: _names(app)),
    "server.connections_max": (7, lambda _, server: _room(server).connections_max),
    "server.connections_per_peer_max": (8, lambda _, server: _room(server).per_peer_max),
    "admission.slots_max": (9, lambda app, _: _admission(app).slots("new").bound),
    "admission.first_token_target_s": (
        10.0,
        lambda app, _: _admission(app).policy.first_token_target_s,
    ),
    "admission.queue_length_max": (
        11,
        lambda app, _: _admission(app)._queue.policy.queue_length_max,
    ),
    "admission.wait_max_s": (12.0, lambda app, _: _admission(app).policy.wait_max_s),
    "limits.body_bytes_max": (13, lambda app, _: app.process.body_bounds.bytes_max),
    "limits.body_timeout_s": (14.0, lambda app, _: app.process.body_bounds.timeout_s),
    "limits.responses_in_flight_max": (15, lambda app, _: _runs(app).supervisor.in_flight_max),
    "limits.request_timeout_s": (16.0, lambda app, _: _runs(app).engine.run_time_max_s),
    "rate_limits.stale_max_s": (
        17.0,
        lambda app, _: app.process.replica.limiter.timing.stale_max_s,
    ),
    "rate_limits.reads_per_minute_max": (18, lambda app, _: app.authentication.reads.per_minute),
    "background.running_max": (19, lambda app, _: app.process.replica.runs.claimed_max),
    "background.tenant_running_max": (
        20,
        lambda app, _: app.process.replica.scheduler.limits.terms.tenant_running_max,
    ),
    "background.tenant_queued_max": (
        21,
        lambda app, _: app.process.access.defaults.background_queued_max,
    ),
    "websockets.connections_max": (
        22,
        lambda app, _: app.process.foundation.sessions.places.places_max,
    ),
    "log.level": ("error", lambda *_: logging.getLevelName(outlet.least).lower()),
    "log.format": ("json", lambda app, _: app.process.foundation.settings.log.format),
}
"""Another value of each reloadable setting, and where it has to arrive."""


def _names(app: Gateway) -> object:
    members = app.process.foundation.pool.members()
    return [{"name": one.name, "url": one.backend.base_url} for one in members]


def _room(server: Server) -> Room:
    room: Room = server.config.http.admission.room  # type: ignore[union-attr]
    return room


def _admission(app: Gateway) -> Admission:
    admission = app.process.foundation.pool.admission
    assert admission is not None
    return admission


def _runs(app: Gateway) -> RunDependencies:
    return app.process.replica.dependencies


async def test_every_reloadable_setting_arrives_where_it_counts(database_url: str) -> None:
    assert set(CHANGED) == RELOADABLE
    before = gateway_settings(database_url, [])
    values = before.model_dump(exclude_defaults=True)
    for path, (value, _) in CHANGED.items():
        section, _, name = path.partition(".")
        if name:
            values.setdefault(section, {})[name] = value
        else:
            values[section] = value
    changed = Settings.model_validate(values)
    app = create_app(before)
    with listen("127.0.0.1", 0) as listener:
        server = Server(app, listener, before.server, websockets=before)
        take_over(app, [server], changed)
        await app.process.foundation.membership.replace_fixed(backends(changed))
    arrived = {path: where(app, server) for path, (_, where) in CHANGED.items()}
    configure_logging("warning", "json")
    assert arrived == {path: value for path, (value, _) in CHANGED.items()}
    assert server.config.ws_max_size == 13 * TOLERATED


async def test_a_hangup_while_a_gateway_starts_does_not_end_it(
    tmp_path: Path, database_url: str
) -> None:
    """It is ignored as soon as the program runs, long before the configuration is read."""
    with (
        reserved_port() as port,
        simulator_process(port) as backend,
        module_process(
            "gateway", tmp_path, database_url, [backend.url], {}, checkout=Path.cwd()
        ) as gateway,
    ):
        child = gateway.child
        async with asyncio.timeout(60):
            while not ignores(signal.SIGHUP, child.process.pid):
                assert LISTENING not in child.output
                await asyncio.sleep(0.001)
            while LISTENING not in child.output:
                child.process.send_signal(signal.SIGHUP)
                await asyncio.sleep(0.01)
        assert child.process.poll() is None
        async with http_client(gateway.url) as client:
            text = (await client.get("/metrics")).text
        assert 'gateway_reloads_total{outcome="failed"} 0.0' in text


async def test_a_hangup_after_the_drain_does_not_change_how_a_gateway_ends() -> None:
    """From "stopped" to its exit code a process takes some tenths of a second."""
    before = signal.getsignal(signal.SIGHUP)
    try:
        with hangups() as hangup:
            os.kill(os.getpid(), signal.SIGHUP)
            async with asyncio.timeout(60):
                await hangup.wait()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def ignores(number: signal.Signals, pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    (mask,) = (int(line.split()[1], 16) for line in status if line.startswith("SigIgn:"))
    return bool(mask >> (number - 1) & 1)
