from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import orjson

from gateway.errors import (
    ContextOverflow,
    UpstreamError,
    UpstreamFailed,
    UpstreamLost,
    UpstreamRejected,
    UpstreamUnavailable,
)
from gateway.upstreams.engines import ANY, ENGINES, KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

_CALLER_AT_FAULT: Final = frozenset({400, 413, 422})
"""413 comes from proxies whose bound a long prompt exceeds."""
_FORBIDDEN: Final = 403
_OF_CONTENT: Final = re.compile("moderat|flagged|content.{0,20}policy", re.IGNORECASE)
"""In a 403: a hosted API refuses what the caller wrote, not our key."""
_NOT_FOUND: Final = 404
_OF_A_MODEL: Final = re.compile("model|lora|adapter", re.IGNORECASE)
"""In a 404: the model is missing, not the path."""
_ANSWERED: Final = "answered"
_BUSY: Final = frozenset({429, 503})
_BROKE_DOWN: Final = 500
"""vLLM's status when its engine dies of a request; when only busy it answers 503."""
_MESSAGE_CHARS_MAX: Final = 500
_SAYING: Final = ("error", "message", "error_message", "detail")
_OVERFLOW: Final = "context_length_exceeded"
_STATUSES: Final = {_OVERFLOW: 400, "rate_limit_exceeded": 429}
"""Statuses of OpenAI's error codes."""


class BrokeDown(UpstreamLost):
    """Answer 500: the engine died of the request, or could not process it."""


class GrammarFailed(UpstreamFailed):
    """The engine gave up on one generation in the middle of its grammar, and is well otherwise.

    Seen of vLLM 0.32 with xgrammar 0.2.8, which may refuse an id that it let the model choose;
    likely at another backend, too.
    """


class ModelGone(UpstreamUnavailable):
    """The backend does not serve this model any more."""


class PathNotFound(UpstreamUnavailable):
    """The backend lacks the path, or a proxy without a backend answered."""


class BackendBusy(UpstreamUnavailable):
    """The backend has too much to do."""


class NoConnection(UpstreamUnavailable):
    """A refusal of our own: all connections to the backend are in use."""


class NoTokenIds(UpstreamUnavailable):
    def __init__(self, *, upstream: str) -> None:
        needed = ", or ".join(kind.requirement() for kind in ENGINES if kind.ids_since != ANY)
        super().__init__(f"it returns no token_ids: needs {needed}", upstream=upstream)


def refusal(
    upstream: str, status: int, message: str, *, retry_after_s: float | None = None
) -> UpstreamError:
    """Return the error for a request that was refused before anything was generated.

    `status` may be the `code` of an error that came as the first event of a 200.
    """
    text = f"{_ANSWERED} {status}: {message}"
    if status == _BROKE_DOWN:
        return BrokeDown(text, upstream=upstream)
    if (not_found := _not_found(status, message)) is not None:
        return not_found(text, upstream=upstream)
    if status in _BUSY:
        return BackendBusy(text, upstream=upstream, retry_after_s=retry_after_s)
    is_ours = _begins_with_any(message, [kind.not_the_caller for kind in ENGINES])
    is_callers = status in _CALLER_AT_FAULT or (
        status == _FORBIDDEN and _OF_CONTENT.search(message) is not None
    )
    if is_ours or not is_callers:
        return UpstreamUnavailable(text, upstream=upstream, retry_after_s=retry_after_s)
    if _OVERFLOW in message or any(kind.context_overflow.search(message) for kind in KINDS):
        return ContextOverflow(text, upstream=upstream)
    return UpstreamRejected(text, upstream=upstream)


def _not_found(status: int, message: str) -> type[ModelGone | PathNotFound] | None:
    if _begins_with_any(message, [kind.unknown_adapter for kind in ENGINES]):
        return ModelGone
    if status != _NOT_FOUND:
        return None
    return ModelGone if _OF_A_MODEL.search(message) else PathNotFound


def is_refusal(error: UpstreamError) -> bool:
    return error.reason.startswith(_ANSWERED)


def breakage(upstream: str, message: str, *, constrained: bool) -> UpstreamFailed:
    """Return the error for an error event that came after the first id."""
    if constrained and any(kind.gave_up.fullmatch(message) for kind in ENGINES):
        return GrammarFailed(message, upstream=upstream)
    return UpstreamFailed(message, upstream=upstream)


def may_blame_grammar(error: UpstreamError) -> bool:
    """Return True if the request might be accepted without its grammar.

    Faults of a grammar have many messages: 400 where it is validated, 500 where it is compiled.
    """
    if isinstance(error, UpstreamRejected):
        return not isinstance(error, ContextOverflow)
    return isinstance(error, BrokeDown)


def has_no_grammars(error: UpstreamError) -> bool:
    message = error.reason.partition(": ")[2]  # behind `answered 400`
    return _begins_with_any(message, [kind.no_grammars for kind in ENGINES])


def retry_after_of(headers: Iterable[tuple[bytes, bytes]]) -> float | None:
    """Return the seconds of a `Retry-After` header; None for a date."""
    for name, value in headers:
        if name.lower() == b"retry-after" and value.strip().isdigit():
            return float(value)
    return None


def message_of_body(body: bytes) -> str:
    """Return the message of an error body, cut for a log line.

    vLLM answers `{"error": {"message"}}`, its key check `{"error": "Unauthorized"}`, its router
    `{"detail"}`, SGLang `{"object": "error", "message"}`, of an adapter `{"error_message"}`.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = body.decode("utf-8", "replace").strip()
    return message_of(document)


def message_of(document: object) -> str:
    """Return the message of any JSON, preceded by its code if that is a name."""
    node, name = document, ""
    while isinstance(node, dict):
        code = node.get("code")
        name = code if isinstance(code, str) and not code.isdigit() else name
        inner = next((node[key] for key in _SAYING if node.get(key)), None)
        if inner is None:
            break
        node = inner
    text = node if isinstance(node, str) else as_json(node)
    text = f"{name}: {text}" if name and name not in text else text
    # Half a surrogate pair can neither be stored nor sent.
    text = text.encode("utf-8", "replace").decode()
    return " ".join(text.split())[:_MESSAGE_CHARS_MAX] or "no message"


def code_of(document: object) -> int:
    """Return the status in the `code` of an error inside a stream."""
    error = document.get("error", document) if isinstance(document, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and len(code) == 3 and code.isascii() and code.isdigit():
        code = int(code)
    elif isinstance(code, str):
        code = _STATUSES.get(code)
    return code if type(code) is int and 100 <= code <= 599 else 500


def as_json(value: object) -> str:
    """Return JSON, also of integers that orjson refuses; empty if nested too deep."""
    try:
        return orjson.dumps(value, default=str).decode()
    except orjson.JSONEncodeError:
        pass
    try:
        return json.dumps(value, default=str)
    except (ValueError, RecursionError):
        return ""


def _begins_with_any(message: str, patterns: Iterable[re.Pattern[str]]) -> bool:
    # Engines give refusals no codes, and the engine of a refusing server may be unknown: try the
    # words of all engines.
    return any(pattern.match(message) for pattern in patterns)
