"""In which of two spellings a client is answered, and the answer in it.

All is made and stored as OpenAI spells it. The client of a request under `/openresponses/v1`, and
of a key that was made so, is written to as Open Responses 2026-04-24 has it (`open_responses`).
Nothing else depends on it: either may read, resume or continue what was created through the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from gateway.api import sse, sse_runs
from gateway.protocol.responses import open_responses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.protocol.deltas import Deltas
    from gateway.protocol.events import Event
    from gateway.protocol.showing import DeltaPattern, ShowDelta
    from gateway.tenancy import Dialect

BASE_PATH: Final = "/openresponses"
"""Before `/v1` and all that follows it."""


class DialectPaths:
    """Answers under `BASE_PATH` what is answered without it, in Open Responses."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] in {"http", "websocket"}:
            base = scope.get("root_path", "") + BASE_PATH
            # Routes are looked up by what follows the root path; logs and errors show all of it.
            if scope["path"].startswith(f"{base}/v1/"):
                scope["root_path"] = base
                scope["dialect"] = "openresponses"
        return self._app(scope, receive, send)


def spoken(scope: Scope) -> Dialect:
    """The dialect of an authenticated request: that of its path, or else of its key."""
    named: Dialect | None = scope.get("dialect")
    return named or scope["principal"].dialect


def encoder(scope: Scope, *, obfuscate: bool) -> sse.Encode:
    """How the client of a stream is shown events."""
    if spoken(scope) == "openai":
        return sse.obfuscated if obfuscate else sse.plain
    return _OpenResponses(sse.obfuscated if obfuscate else sse.plain)


def body(scope: Scope, content: bytes) -> bytes:
    """A JSON body that holds items: a Response object, a list of items, a compaction."""
    if spoken(scope) == "openai":
        return content
    return orjson.dumps(open_responses.body(orjson.loads(content)))


def data(scope: Scope, event: Event) -> bytes:
    """One event as one JSON object; empty for one that the dialect does not have."""
    if spoken(scope) == "openai":
        return event.data
    shown = open_responses.shown(event)
    return shown.data if shown else b""


class _OpenResponses:
    """What is left out is a sign of life all the same: a comment."""

    def __init__(self, encode: sse.Encode) -> None:
        self._encode = encode

    def __call__(self, event: Event) -> bytes:
        shown = open_responses.shown(event)
        return self._encode(shown) if shown else sse.COMMENT

    def run(self, deltas: Deltas) -> bytes:
        """`sse_runs.EncodesRuns`"""
        shown = open_responses.shown_deltas(deltas)
        return sse_runs.ENCODERS[self._encode](shown) if shown else sse.COMMENT * len(deltas)

    def delta_writer(
        self, pattern: DeltaPattern, write: Callable[[bytes], bool]
    ) -> ShowDelta | None:
        """`sse.WritesDeltas`"""
        shown = open_responses.shown_pattern(pattern)
        return None if shown is None else sse.delta_writer(self._encode, shown, write)
