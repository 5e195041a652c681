"""Collectors that are down or slow, and gateways that end: nobody waits for a collector."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

import httpx2
import pytest

from tests.fakes.collector import collector
from tests.fakes.gateway import gateway_settings, new_key
from tests.fakes.http_client import NO_TLS
from tests.fakes.processes import (
    START_TIMEOUT_S,
    STEP_S,
    gateway_process,
    reserved_port,
    simulator_process,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.fakes.processes import GatewayProcess, SimulatorProcess

pytestmark = pytest.mark.slow

REQUESTS: Final = 12
SMALL_QUEUE: Final = {
    "OTEL_BSP_MAX_QUEUE_SIZE": "4",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2",
    "OTEL_BSP_SCHEDULE_DELAY": "20",
}
NOT_SOON: Final = {"OTEL_BSP_SCHEDULE_DELAY": "3600000"}
LATE: Final = "the last spans were not sent in time"
LOST: Final = "spans are lost, or may be; requests are not affected"


@pytest.fixture(scope="module")
def backend() -> Iterator[SimulatorProcess]:
    with reserved_port() as port, simulator_process(port) as running:
        yield running


async def _lines_of(
    folder: Path,
    database_url: str,
    backend: SimulatorProcess,
    environment: Mapping[str, str],
    *,
    ratio: float = 1.0,
) -> list[dict[str, Any]]:
    """What a gateway logs that answers some requests and ends."""
    key = await new_key(gateway_settings(database_url, []), "acme")
    with gateway_process(
        folder,
        database_url,
        [backend.url],
        environment=environment,
        telemetry={"traces": True, "trace_share": ratio},
        log={"format": "json"},
    ) as gateway:
        _ask(gateway, key)
        gateway.child.terminate()
        assert gateway.child.exit_code() == 0, gateway.child.output
        return [json.loads(line) for line in gateway.child.output.splitlines()]


def _ask(gateway: GatewayProcess, key: str) -> None:
    with httpx2.Client(verify=NO_TLS, trust_env=False, timeout=60) as client:
        for _ in range(REQUESTS):
            answer = client.post(
                f"{gateway.base_url}/responses",
                json={"model": "gpt-oss-20b", "input": "hi"},
                headers={"authorization": f"Bearer {key}"},
            )
            assert answer.status_code == 200, answer.text


def _complaints(lines: list[dict[str, Any]]) -> list[str]:
    return [line["reason"] for line in lines if line["event"] == LOST]


async def test_the_last_spans_are_sent_before_the_process_ends(
    tmp_path: Path, database_url: str, backend: SimulatorProcess
) -> None:
    with collector() as at:
        environment = {**at.environment, **NOT_SOON}
        lines = await _lines_of(tmp_path, database_url, backend, environment)
        requests = [one for one in at.spans() if one["name"] == "POST /v1/responses"]
    assert len(requests) == REQUESTS
    assert _complaints(lines) == []


async def test_a_ratio_of_nothing_makes_no_span(
    tmp_path: Path, database_url: str, backend: SimulatorProcess
) -> None:
    with collector() as at:
        lines = await _lines_of(tmp_path, database_url, backend, at.environment, ratio=0.0)
        assert at.asked() == 0
    assert not any("trace_id" in line for line in lines)


async def test_a_collector_that_is_down_is_told_of_once(
    tmp_path: Path, database_url: str, backend: SimulatorProcess
) -> None:
    with reserved_port() as port:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", **SMALL_QUEUE}
        lines = await _lines_of(tmp_path, database_url, backend, environment)
    assert len(_complaints(lines)) == 1
    told = {line["event"] for line in lines if line["level"] not in {"info", "debug"}}
    assert told - {LATE} == {LOST}
    assert lines[-1]["event"] == "stopped"


async def test_a_collector_that_does_not_answer_holds_up_nothing(
    tmp_path: Path, database_url: str, backend: SimulatorProcess
) -> None:
    """More spans come than its queue holds; at the end nobody waits for it for long."""
    with collector() as at:
        at.answer("never")
        environment = {**at.environment, **SMALL_QUEUE}
        lines = await _lines_of(tmp_path, database_url, backend, environment)
        assert at.asked() == 1
        assert at.spans() == []
    assert _complaints(lines) == ["Queue full, dropping Span."]
    assert LATE in {line["event"] for line in lines}


async def test_it_is_told_when_spans_are_sent_again(
    tmp_path: Path, database_url: str, backend: SimulatorProcess
) -> None:
    key = await new_key(gateway_settings(database_url, []), "acme")
    with (
        collector() as at,
        gateway_process(
            tmp_path,
            database_url,
            [backend.url],
            environment=at.environment,
            telemetry={"traces": True, "trace_share": 1.0},
            log={"format": "json"},
        ) as gateway,
    ):
        at.answer("400")
        _ask(gateway, key)
        gateway.child.until(LOST)
        until_counted(gateway, "lost", REQUESTS)
        at.answer("200")
        _ask(gateway, key)
        gateway.child.until("spans are sent again")
        assert gateway.child.output.count(LOST) == 1
        until_counted(gateway, "sent", REQUESTS)


async def test_spans_that_the_queue_does_not_hold_are_counted(
    tmp_path: Path, database_url: str, backend: SimulatorProcess
) -> None:
    key = await new_key(gateway_settings(database_url, []), "acme")
    with (
        collector() as at,
        gateway_process(
            tmp_path,
            database_url,
            [backend.url],
            environment={**at.environment, **SMALL_QUEUE},
            telemetry={"traces": True, "trace_share": 1.0},
        ) as gateway,
    ):
        at.answer("never")
        _ask(gateway, key)
        # A request has two spans at least; one batch is with the collector, and four spans wait.
        until_counted(gateway, "lost", 2 * REQUESTS - 6)


def until_counted(gateway: GatewayProcess, outcome: str, spans: int) -> None:
    """Wait until the gateway counts so many spans, or more."""
    line = f'gateway_trace_spans_total{{outcome="{outcome}"}} '
    deadline = time.monotonic() + START_TIMEOUT_S
    with httpx2.Client(verify=NO_TLS, trust_env=False) as client:
        while True:
            text = client.get(f"{gateway.url}/metrics").text
            (value,) = (one.removeprefix(line) for one in text.splitlines() if line in one)
            if float(value) >= spans:
                return
            assert time.monotonic() < deadline, f"{value} spans were {outcome}, not {spans}"
            time.sleep(STEP_S)
