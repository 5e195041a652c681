"""A collector of OTLP over HTTP as a process: `python -m tests.fakes.collector PORT`.

It decodes what it is sent with the messages of `opentelemetry-proto`, and lists it at `/spans`. To
be told otherwise is `PUT /answer` with a status, or with `never`.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from typing_extensions import override

from tests.fakes.processes import STEP_S, Child, reserved_port, stopped, until_healthy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

    Span = dict[str, Any]

SPANS_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True)
class Collector:
    """A running collector, and what it was sent. `entrance` is where it is sent, if not to it."""

    port: int
    entrance: int | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What tells a process to send its spans here, soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.entrance or self.port}",
            "OTEL_BSP_SCHEDULE_DELAY": "20",
        }

    def spans(self) -> list[Span]:
        """All spans so far."""
        spans: list[Span] = json.loads(self._call("GET", "/spans"))
        return spans

    def until(self, is_all: Callable[[list[Span]], object], what: str) -> list[Span]:
        """The spans, once they are all there."""
        deadline = time.monotonic() + SPANS_TIMEOUT_S
        while not is_all(spans := self.spans()):
            assert time.monotonic() < deadline, f"{what} is not among {spans}"
            time.sleep(STEP_S)
        return spans

    def answer(self, how: str) -> None:
        """Answer what is sent from now on with this status, or `never`."""
        self._call("PUT", "/answer", how.encode())

    def asked(self) -> int:
        """How many batches came, also those that were not taken."""
        return int(self._call("GET", "/asked"))

    def _call(self, method: str, path: str, body: bytes = b"") -> bytes:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=SPANS_TIMEOUT_S)
        try:
            connection.request(method, path, body)
            return connection.getresponse().read()
        finally:
            connection.close()


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector that takes everything."""
    with (
        reserved_port() as port,
        stopped(Child([str(port)], {}, module="tests.fakes.collector")) as child,
    ):
        until_healthy(port, child)
        yield Collector(port)


@contextmanager
def behind_a_real_one(folder: Path) -> Iterator[Collector]:
    """A collector behind OpenTelemetry's, whose program is `TEST_OTELCOL`; alone without it.

    It needs the receiver `otlp`, the processor `batch` and the exporter `otlphttp`.
    """
    program = os.environ.get("TEST_OTELCOL")
    with collector() as at, ExitStack() as stack:
        if program is None:
            yield at
            return
        port = stack.enter_context(reserved_port())
        configuration = folder / "otelcol.json"
        configuration.write_text(json.dumps(_forwarding(port, at.port)))
        command = [program, f"--config=file:{configuration}"]
        running = stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        stack.callback(running.terminate)
        _until_listening(port)
        yield Collector(at.port, port)


def _until_listening(port: int) -> None:
    deadline = time.monotonic() + SPANS_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=SPANS_TIMEOUT_S).close()
        except ConnectionError:
            assert time.monotonic() < deadline, "the collector does not listen"
            time.sleep(STEP_S)
        else:
            return


def _forwarding(port: int, to: int) -> dict[str, Any]:
    pipeline = {"receivers": ["otlp"], "processors": ["batch"], "exporters": ["otlphttp"]}
    endpoint = {"endpoint": f"127.0.0.1:{port}"}
    return {
        "receivers": {"otlp": {"protocols": {"http": endpoint}}},
        "processors": {"batch": {"timeout": "20ms"}},
        "exporters": {"otlphttp": {"endpoint": f"http://127.0.0.1:{to}"}},
        "service": {"pipelines": {"traces": pipeline}, "telemetry": {"metrics": {"level": "none"}}},
    }


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return None if kind is None else getattr(value, kind)


def _fields(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _decoded(body: bytes) -> Iterator[Span]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield {
                    "resource": _fields(resource.resource.attributes),
                    "name": span.name,
                    "kind": SpanMessage.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
                    "trace_id": span.trace_id.hex(),
                    "span_id": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "attributes": _fields(span.attributes),
                    "events": [event.name for event in span.events],
                    "links": [link.trace_id.hex() + link.span_id.hex() for link in span.links],
                    "status": Status.StatusCode.Name(span.status.code),
                    "state": span.trace_state,
                    "text": str(span),
                }


class _Handler(BaseHTTPRequestHandler):
    spans: Final[list[Span]] = []
    told: Final[dict[str, str]] = {"answer": "200"}
    asked: Final[list[None]] = []
    never: Final = threading.Event()

    def do_GET(self) -> None:
        answers: dict[str, Any] = {"/spans": self.spans, "/asked": len(self.asked)}
        self._write(200, json.dumps(answers.get(self.path)).encode())

    def do_PUT(self) -> None:
        self.told["answer"] = self._body().decode()
        self._write(204)

    def do_POST(self) -> None:
        body = self._body()
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.asked.append(None)
        if self.told["answer"] == "never":
            self.never.wait()
        status = int(self.told["answer"])
        if self.path == "/v1/traces" and status == 200:
            self.spans.extend(_decoded(body))
        self._write(status, ExportTraceServiceResponse().SerializeToString())

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def _write(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


if __name__ == "__main__":
    ThreadingHTTPServer.daemon_threads = True
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Handler).serve_forever()
