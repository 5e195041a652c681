"""What operators see, and that it is nothing of what users say."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import re
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics.exposition import generate_latest
from typing_extensions import override

from gateway.errors import StoreUnavailable, UpstreamFailed
from gateway.telemetry import logs
from gateway.telemetry.logs import EventLog, configure_logging
from gateway.telemetry.metrics import UPSTREAMS_GONE_MAX, Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

CANARY = "a secret prompt"
GATEWAY = Path(logs.__file__).parents[1]


class Terminal(io.StringIO):
    @override
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    """Puts the process's logging back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    outlet = logs.outlet.least, logs.outlet.take
    changed = (*logs.NOISY, *logs.SILENT)
    levels = {name: logging.getLogger(name).level for name in changed}
    yield
    root.handlers = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)
    logs.outlet.least, logs.outlet.take = outlet


def raised(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as caught:
        return caught


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_events_are_json_objects_with_what_was_bound() -> None:
    stream = io.StringIO()
    configure_logging("info", "auto", stream=stream)
    log = EventLog("gateway.api")

    def request() -> None:
        logs.bind(request_id="req_1", tenant="acme")
        log.debug("not written")
        log.info("request", method="POST", status=200)
        log.warning("slow", seconds=1.5)

    copy_context().run(request)
    log.error("bad", code=None)
    first, second, third = lines(stream)
    assert first["event"] == "request"
    assert (first["request_id"], first["tenant"], first["status"]) == ("req_1", "acme", 200)
    assert (first["level"], first["logger"]) == ("info", "gateway.api")
    assert second["seconds"] == 1.5
    assert "request_id" not in third


def test_a_terminal_gets_readable_lines() -> None:
    stream = Terminal()
    configure_logging("info", "auto", stream=stream, colors=False)
    EventLog("gateway").error("bad", error=raised(ValueError(CANARY)), model="gpt-oss-20b")
    text = stream.getvalue()
    assert "bad" in text
    assert "model=gpt-oss-20b" in text
    assert "test_telemetry.py" in text
    assert CANARY not in text


def test_a_terminal_obeys_nothing_of_what_is_logged() -> None:
    stream = Terminal()
    configure_logging("info", "auto", stream=stream, colors=False)
    failure = raised(ValueError("x"))
    EventLog("x").warning("forged\nline", path="/\x1b[31m", error=failure)
    first, *stack = stream.getvalue().splitlines()
    assert first.isprintable()
    assert r"path=/\x1b[31m" in first
    assert any("test_telemetry.py" in line for line in stack)


def test_text_of_errors_is_written_only_if_it_was_written_for_operators() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    log = EventLog("gateway")
    log.error("a", error=raised(KeyError(CANARY)))
    log.error("b", error=raised(StoreUnavailable("connection lost")))
    log.error("c", error=UpstreamFailed("stalled", upstream="gpu-1"))
    unexpected, store, upstream = lines(stream)
    assert unexpected["error"] == "KeyError"
    assert "raised" in unexpected["stack"]
    assert store["error"] == "StoreUnavailable: connection lost"
    assert "stack" not in store
    assert upstream["error"] == "UpstreamFailed: gpu-1: stalled"
    assert CANARY not in stream.getvalue()


def test_events_of_libraries_are_written_alike_and_without_the_text_of_errors() -> None:
    logging.getLogger("uvicorn").propagate = False  # as uvicorn's own configuration leaves it
    stream = io.StringIO()
    configure_logging("debug", "json", stream=stream)
    library = logging.getLogger("uvicorn.error")
    library.info("chatter")
    error = raised(ValueError(CANARY))
    library.error("Exception in ASGI application", exc_info=error)
    (event,) = lines(stream)
    assert event["event"] == "Exception in ASGI application"
    assert event["error"] == "ValueError"
    assert CANARY not in stream.getvalue()


async def test_an_exception_that_no_task_retrieved_is_logged_without_its_text() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)

    async def fail() -> None:
        raise ValueError(CANARY)

    failing = asyncio.create_task(fail())
    await asyncio.wait({failing})
    del failing
    gc.collect()
    (event,) = lines(stream)
    assert (event["event"], event["error"]) == ("Task exception was never retrieved", "ValueError")
    assert CANARY not in stream.getvalue()


@pytest.mark.slow
def test_log_lines_name_the_module_that_wrote_them() -> None:
    names = {
        (file.relative_to(GATEWAY).as_posix(), name)
        for file in GATEWAY.rglob("*.py")
        for name in re.findall(r"\bEventLog\(([^)]+)\)", file.read_text(encoding="utf-8"))
    }
    assert {name for _, name in names} == {"__name__"}, names


def test_what_orjson_cannot_carry_is_escaped() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    logging.getLogger("library").warning("half of a pair: \ud800")
    EventLog("gateway").info("also here", path="/\udfff")
    library, own = lines(stream)
    assert library["event"] == "half of a pair: \ud800"
    assert (own["path"], own["logger"]) == ("/\udfff", "gateway")


class Full(io.StringIO):
    """A disk without room."""

    @override
    def write(self, _: str) -> int:
        raise OSError(28, "No space left on device")


class LoggingStream(io.StringIO):
    """A stream in the middle of whose first write something is logged, as by a finaliser."""

    is_first = True

    @override
    def write(self, text: str) -> int:
        if self.is_first:
            self.is_first = False
            logging.getLogger("asyncio").error("destroyed but pending")
        return super().write(text)


def test_an_event_is_one_line_to_every_reader() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    EventLog("x").warning("a\u2028b\u2029c\x85d", path="/\x0b\n")
    (event,) = lines(stream)
    assert event["event"] == "a\u2028b\u2029c\x85d"


def test_a_line_may_be_logged_in_the_middle_of_another() -> None:
    stream = LoggingStream()
    configure_logging("info", "json", stream=stream)
    EventLog("gateway.test").info("outer")
    inner, outer = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (inner["event"], outer["event"]) == ("destroyed but pending", "outer")


def test_a_library_that_quotes_what_others_say_is_silent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("debug", "json")
    said = raised(ValueError("what a server said"))
    logging.getLogger("mcp.client.session").error("it said: %s", "a secret", exc_info=said)
    assert capsys.readouterr().err == ""


def test_a_wrong_log_call_of_a_library_does_not_end_it(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    logging.getLogger("somelib").warning("%d items", "x")
    assert stream.getvalue() == ""
    assert "TypeError" in capsys.readouterr().err


def test_a_line_that_cannot_be_written_is_lost() -> None:
    stream = Full()
    configure_logging("info", "json", stream=stream)
    EventLog("gateway").error("nobody will know")
    assert stream.getvalue() == ""


def test_logging_can_be_configured_anew() -> None:
    log = EventLog("gateway")
    first, second = io.StringIO(), io.StringIO()
    configure_logging("info", "json", stream=first)
    log.info("one")
    configure_logging("warning", "json", stream=second)
    log.info("two")
    log.warning("three")
    assert [line["event"] for line in lines(first)] == ["one"]
    assert [line["event"] for line in lines(second)] == ["three"]


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_requests_are_counted_and_timed() -> None:
    metrics = Metrics()
    metrics.requests_in_flight += 1
    assert value(metrics, "gateway_requests_in_flight") == 1
    metrics.request_finished(status=200, model="gpt-oss-20b", seconds=0.5)
    metrics.requests_in_flight += 1
    metrics.request_finished(status=404, seconds=0.1)
    metrics.first_token(model="gpt-oss-20b", seconds=0.2)
    metrics.client_disconnected()
    assert value(metrics, "gateway_requests_in_flight") == 0
    assert value(metrics, "gateway_requests_total", status="200", model="gpt-oss-20b") == 1
    assert value(metrics, "gateway_requests_total", status="404", model="") == 1
    duration = "gen_ai_server_request_duration_seconds"
    assert value(metrics, f"{duration}_sum", model="gpt-oss-20b") == 0.5
    first = "gen_ai_server_time_to_first_token_seconds"
    assert value(metrics, f"{first}_count", model="gpt-oss-20b") == 1
    assert value(metrics, "gateway_sse_disconnects_total") == 1


def test_responses_tokens_and_repairs_are_counted() -> None:
    metrics = Metrics()
    metrics.response_finished(
        status="completed",
        model="m",
        input_tokens=5,
        cached=3,
        output=7,
        reasoning=2,
        recoveries={"R1": 2, "R10": 1},
    )
    metrics.empty_output()
    assert value(metrics, "gateway_responses_total", status="completed", model="m") == 1
    counts = {
        kind: value(metrics, "gateway_tokens_total", model="m", type=kind)
        for kind in ("input", "cached", "output", "reasoning")
    }
    assert counts == {"input": 5, "cached": 3, "output": 7, "reasoning": 2}
    assert value(metrics, "gateway_harmony_recovery_total", rule="R1") == 2
    assert value(metrics, "gateway_harmony_empty_output_total") == 1


def test_backends_and_the_store_are_watched() -> None:
    metrics = Metrics()
    metrics.upstream_started("gpu-1")
    assert value(metrics, "gateway_upstream_requests_in_flight", upstream="gpu-1") == 1
    metrics.upstream_first_token("gpu-1", 0.1)
    metrics.upstream_finished("gpu-1", "ok")
    metrics.upstream_is_up("gpu-1", 1)
    metrics.store_failed("StoreUnavailable")
    assert value(metrics, "gateway_upstream_requests_in_flight", upstream="gpu-1") == 0
    name = "gateway_upstream_requests_total"
    assert value(metrics, name, upstream="gpu-1", outcome="ok") == 1
    assert value(metrics, "gateway_upstream_first_token_seconds_count", upstream="gpu-1") == 1
    assert value(metrics, "gateway_upstream_up", upstream="gpu-1") == 1
    assert value(metrics, "gateway_store_errors_total", kind="StoreUnavailable") == 1


def test_what_outlives_its_backend_or_its_replica_is_counted() -> None:
    metrics = Metrics()
    metrics.hopped("backend")
    metrics.recomputed(310)
    metrics.claimed(3, taken_over=1)
    metrics.claim_lost()
    metrics.claims_held += [lambda: 1, lambda: 1]
    assert value(metrics, "gateway_hops_total", reason="backend") == 1
    assert value(metrics, "gateway_recomputed_tokens_total") == 310
    assert value(metrics, "gateway_claims_total", kind="begun") == 2
    assert value(metrics, "gateway_claims_total", kind="taken_over") == 1
    assert value(metrics, "gateway_claims_lost_total") == 1
    assert value(metrics, "gateway_claims_held") == 2


def test_the_durable_log_is_watched() -> None:
    metrics = Metrics()
    metrics.log_flushed(12, 4096, 0.002)
    metrics.log_pending_bytes += [lambda: 60, lambda: 40]
    metrics.followers(8)
    metrics.followers(-1)
    metrics.notice_heard("log")
    assert value(metrics, "gateway_log_rows_total") == 12
    assert value(metrics, "gateway_log_bytes_total") == 4096
    assert value(metrics, "gateway_log_flush_seconds_sum") == 0.002
    assert value(metrics, "gateway_log_pending_bytes") == 100
    assert value(metrics, "gateway_followers") == 7
    assert value(metrics, "gateway_notices_total", kind="log") == 1


def test_the_exposition_is_prometheus_text() -> None:
    metrics = Metrics()
    metrics.empty_output()
    assert b"\ngateway_harmony_empty_output_total 1.0\n" in metrics.exposition()


def test_exemplars_name_the_trace_of_what_was_observed() -> None:
    metrics = Metrics()
    metrics.first_token(model="m", seconds=0.2, trace_id="abc")
    metrics.request_finished(status=200, model="m", seconds=0.3)
    shown = metrics.exposition(generate_latest).decode()
    (exemplar,) = (line for line in shown.splitlines() if "trace_id" in line)
    assert exemplar.startswith('gen_ai_server_time_to_first_token_seconds_bucket{le="0.25"')
    assert ' # {trace_id="abc"} 0.2 ' in exemplar
    assert b"trace_id" not in metrics.exposition()


def test_what_was_counted_of_backends_that_are_gone_stays_for_the_last_of_them() -> None:
    metrics = Metrics()
    for number in range(UPSTREAMS_GONE_MAX + 2):
        name = f"pod-{number}"
        metrics.upstream_joined(name)
        metrics.upstream_started(name)
        metrics.upstream_finished(name, "ok")
        metrics.upstream_is_up(name, 1)
        metrics.upstream_left(name)
        if number == 1:
            metrics.upstream_joined(name)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"gateway_upstream_{name}", labels)

    assert value("requests_total", upstream="pod-0", outcome="ok") is None
    assert value("requests_in_flight", upstream="pod-0") is None
    assert value("requests_total", upstream="pod-1", outcome="ok") == 1
    assert value("requests_total", upstream="pod-2", outcome="ok") == 1
    assert value("up", upstream="pod-2") is None
    assert "pod-0" not in metrics.exposition().decode()


def test_series_that_alerts_take_increases_of_begin_at_0() -> None:
    """`rate` and `increase` do not see the event that a series begins with."""
    metrics = Metrics()
    assert value(metrics, "gateway_hops_total", reason="replica") == 0
    assert value(metrics, "gateway_claims_total", kind="taken_over") == 0
    assert value(metrics, "gateway_store_errors_total", kind="StoreUnavailable") == 0
    assert value(metrics, "gateway_limit_refused_total", what="budget") == 0
    assert value(metrics, "gateway_limit_refused_total", what="requests") == 0
    assert value(metrics, "gateway_limit_sync_seconds_count", outcome="failed") == 0
    metrics.admission_reads(queued={"default": lambda: 0}, saturation=lambda: 0, reasons=["full"])
    refusals = "gateway_admission_refusals_total"
    assert value(metrics, refusals, **{"class": "default"}, reason="full") == 0
    metrics.searches_begin("brave", ["ok", "credentials"])
    assert value(metrics, "gateway_searches_total", provider="brave", outcome="credentials") == 0
    metrics.tools_begin(["mcp"], ["ok", "timeout"])
    assert value(metrics, "gateway_tool_calls_total", kind="mcp", outcome="timeout") == 0


def test_what_usage_costs_is_counted_in_dollars() -> None:
    metrics = Metrics()
    metrics.ledger_added({"m": 1_500_000_000, "n": 0})
    assert value(metrics, "gateway_ledger_cost_usd_total", model="m") == 1.5
    assert value(metrics, "gateway_ledger_cost_usd_total", model="n") == 0
