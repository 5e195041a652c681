"""Log events: a closed set of fields, none of which holds what users say.

The text of an exception is logged only where it was written for operators: any other may quote a
request.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, TypedDict, Unpack

import orjson
from typing_extensions import override

from gateway.errors import StartupError, StoreError, UpstreamError
from gateway.json_output import one_line
from gateway.telemetry.trace_context import recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Event = dict[str, Any]
    Render = Callable[[Event], str]

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "json", "console"]
NOISY: Final = ("alembic", "asyncio", "httpcore2", "httpx2", "openai", "uvicorn.error")
SILENT: Final = ("mcp",)
"""Log records quote content: none are written."""
FRAMES_MAX: Final = 40
_FOR_OPERATORS: Final = (StartupError, StoreError, UpstreamError)


class BoundFields(TypedDict, total=False):
    request_id: str
    tenant: str
    response_id: str
    connection: str


class Fields(BoundFields, total=False):
    """Every field that a log event may have; never a prompt or an output."""

    method: str
    path: str
    status: int | str
    seconds: float
    first_token_s: float
    client: str
    client_request_id: str
    ignored_parameters: str
    model: str
    upstream: str
    source: str
    in_flight: int
    attempt: int
    replica: str
    epoch: int
    code: str | None
    param: str | None
    rule: str
    settings: str
    reason: str
    count: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    recomputed_tokens: int
    voided_tokens: int
    tool_output_tokens: int
    tool_calls: int
    web_searches: int
    kind: str
    outcome: str
    result_ids: int
    url: str
    error: BaseException


_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_context: Final[ContextVar[Mapping[str, object]]] = ContextVar("log_context", default=_NOTHING)


class EventLog:
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        # `name` is `__name__`, as in `logging.getLogger`; it is the field `logger` of each line.
        self._name = name

    def debug(self, event: str, **fields: Unpack[Fields]) -> None:
        if outlet.least <= logging.DEBUG:
            outlet.take("debug", {"logger": self._name, **fields, "event": event})

    def info(self, event: str, **fields: Unpack[Fields]) -> None:
        if outlet.least <= logging.INFO:
            outlet.take("info", {"logger": self._name, **fields, "event": event})

    def warning(self, event: str, **fields: Unpack[Fields]) -> None:
        # For what an operator should look at, though no client has noticed it.
        if outlet.least <= logging.WARNING:
            outlet.take("warning", {"logger": self._name, **fields, "event": event})

    def error(self, event: str, **fields: Unpack[Fields]) -> None:
        # For a request that failed by no fault of the client.
        outlet.take("error", {"logger": self._name, **fields, "event": event})


class _Lines:
    """Output of events; `stream` None: standard error at that time.

    An event that cannot be written is lost: a full disk must not end requests.
    """

    def __init__(self, stream: TextIO | None, render: Render) -> None:
        self._stream = stream
        self._render = render
        # Reentrant: garbage that is collected in the middle of a write may have something to log.
        self._lock = RLock()

    def take(self, level: str, event: Event) -> None:
        """Write an event. Names of a span's ids are OpenTelemetry's."""
        for name, value in _context.get().items():
            event.setdefault(name, value)
        if (span := recorded()) is not None:
            event["trace_id"], event["span_id"] = span.trace_id, span.span_id
        event["level"] = level
        event["timestamp"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        if event.get("error") is not None:
            _describe_error(event)
        line = self._render(event)
        stream = self._stream or sys.stderr
        try:
            with self._lock:
                stream.write(f"{line}\n")
                stream.flush()
        except (OSError, ValueError):
            return


class _OfLibraries(logging.Handler):
    def __init__(self, lines: _Lines) -> None:
        super().__init__()
        self._lines = lines

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
            if record.name == "asyncio" and record.exc_info:
                # Below its first line it repeats the exception of a task, with its text.
                text = text.partition("\n")[0]
            event: Event = {"event": text, "logger": record.name}
            if isinstance(record.exc_info, tuple):
                event["error"] = record.exc_info[1]
            self._lines.take(record.levelname.lower(), event)
        except Exception:  # noqa: BLE001 - a wrong call of the log must not end who made it
            self.handleError(record)


def bind(**context: Unpack[BoundFields]) -> None:
    """Add fields to later events of this task and of tasks that it starts."""
    _context.set({**_context.get(), **context})


def bind_anew(**context: Unpack[BoundFields]) -> None:
    _context.set(context)


def configure_logging(
    level: Level, log_format: Format, *, stream: TextIO | None = None, colors: bool = True
) -> None:
    """Send all events, those of libraries too, to `stream`."""
    stream = stream or sys.stderr
    console = log_format == "console" or (log_format == "auto" and stream.isatty())
    render = _console(colors=colors and stream.isatty()) if console else _json
    lines = _Lines(stream, render)
    logging.basicConfig(level=level.upper(), handlers=[_OfLibraries(lines)], force=True)
    for noisy in NOISY:
        logging.getLogger(noisy).setLevel(max(logging.getLogger().level, logging.WARNING))
    for silent in SILENT:
        logging.getLogger(silent).setLevel(logging.CRITICAL + 1)
    # A uvicorn that was started with its own logging keeps its events to itself.
    own = logging.getLogger("uvicorn")
    own.handlers.clear()
    own.propagate = True
    # Not by way of `logging`, which makes a record of every event and looks for its handlers.
    outlet.least = logging.getLogger().level
    outlet.take = lines.take


def _console(*, colors: bool) -> Render:
    # Imported here because it takes 6 MiB of memory.
    from structlog.dev import ConsoleRenderer  # noqa: PLC0415

    render = ConsoleRenderer(colors=colors)
    return lambda event: render(
        None, event["level"], {name: _plain(name, event[name]) for name in event}
    )


def _plain(name: str, value: object) -> object:
    # `stack` is made by the gateway and has line breaks.
    return printable(value) if isinstance(value, str) and name != "stack" else value


def printable(text: str) -> str:
    """Return the text as one line, its control characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def _json(event: Event) -> str:
    # orjson refuses half a surrogate pair; `json` escapes it.
    try:
        return one_line(orjson.dumps(event, default=repr)).decode()
    except TypeError:
        return json.dumps(event, default=repr)


def _describe_error(event: Event) -> None:
    # The text of an exception is logged only if it is of a class meant for operators.
    error = event["error"]
    ours = isinstance(error, _FOR_OPERATORS)
    event["error"] = f"{type(error).__name__}: {error}" if ours else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES_MAX:]
    if frames and not ours:
        event["stack"] = "\n".join(f"{f.filename}:{f.lineno} {f.name}" for f in frames)


@dataclass(slots=True)
class Outlet:
    """Outlet of events from the level `least` (a number, as in `logging`) on."""

    least: int
    take: Callable[[str, Event], None]


outlet: Final = Outlet(logging.WARNING, _Lines(None, _json).take)
"""Until `configure_logging` it takes warnings and errors only."""
