"""All errors that this package raises on purpose. `api.error_responses` has their statuses."""

from __future__ import annotations

from typing import Final, Literal

SHOWN_CHARS_MAX: Final = 128
"""Characters of a caller's own text in a message."""


class GatewayError(Exception):
    """Base of all errors; `str(error)` is fit to be shown."""

    retry_after_s: float | None = None
    """Seconds until the same request may succeed, where known."""


class RequestError(GatewayError):
    """Refusal of a request. `code` is that of OpenAI's error envelope, `param` the path of the
    offending field, as in `input[1].content[0].text`.
    """

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param


class InvalidRequest(RequestError):
    """Refusal of a field with the wrong shape, type or value."""


class ContextLengthExceeded(InvalidRequest):
    def __init__(self, message: str) -> None:
        super().__init__(message, code="context_length_exceeded", param="input")


class PreviousResponseNotFound(InvalidRequest):
    def __init__(self, response_id: str, message: str | None = None) -> None:
        super().__init__(
            message
            or f"Previous response with id '{response_id}' not found. It was not stored, or has "
            "been deleted: send the conversation so far in 'input' instead.",
            code="previous_response_not_found",
            param="previous_response_id",
        )


class ConversationLocked(InvalidRequest):
    def __init__(self) -> None:
        super().__init__(
            "Another process is currently operating on this conversation. Please retry in a few "
            "seconds.",
            code="conversation_locked",
            param="conversation",
        )


class DataHeld(InvalidRequest):
    def __init__(self) -> None:
        super().__init__(
            "What this organization has stored is held, and nothing of it can be deleted until"
            " whoever runs this server releases it.",
            code="data_held",
        )


class ModelNotFound(RequestError):
    """Refusal of a model that does not exist, or not for this key."""

    text = "The requested model '{}' does not exist. GET /v1/models lists the models."

    def __init__(self, model: str) -> None:
        super().__init__(self.text.format(model), code="model_not_found", param="model")


class ModelNotServed(ModelNotFound):
    text = (
        "The model '{}' is set up here, but no model server serves it. The operator finds out why "
        "with 'harmony-gateway doctor'; GET /v1/models lists the models that are served."
    )


class ResourceNotFound(RequestError):
    """Refusal of an id: unknown, deleted or another tenant's; the three must look the same."""


class PayloadTooLarge(RequestError):
    """Refusal of a body that is too large."""


class UnsupportedEncoding(RequestError):
    """Refusal of a body's compression. `accepted` is the value of `Accept-Encoding`."""

    def __init__(self, message: str, accepted: bytes) -> None:
        super().__init__(message, code="unsupported_content_encoding")
        self.accepted = accepted


class AuthenticationError(RequestError):
    """Refusal of a missing or unknown key."""


class TokenRefused(AuthenticationError):
    """Refusal of an issuer's token. The message must not have the token's content."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="invalid_token")


class TokenNotAdmitted(TokenRefused):
    """Refusal of a token that is meant for others, or that no rule admits."""


class PermissionDenied(RequestError):
    """Refusal of an action that a valid key may not do."""


class ConnectorFailed(RequestError):
    """Failure of a request's MCP server to list its tools, where the list is required."""


class RateLimited(RequestError):
    """Refusal of too much at once, or too often. `kind` is the `type` of the envelope; `is_final`:
    it does not help to try again.
    """

    def __init__(  # noqa: PLR0913 - what the answer tells
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        kind: Literal["requests", "tokens", "insufficient_quota"] = "requests",
        is_final: bool = False,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.retry_after_s = retry_after_s
        self.kind = kind
        self.is_final = is_final
        self.headers = headers


class UpstreamError(GatewayError):
    """Failure of a backend. The message is for operators, never for clients; `reason` is without
    the backend's name.
    """

    def __init__(self, message: str, *, upstream: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{upstream}: {message}")
        self.upstream = upstream
        self.reason = message
        self.retry_after_s = retry_after_s


class UpstreamUnavailable(UpstreamError):
    """Failure before anything was generated: another backend costs nothing."""


class UpstreamLost(UpstreamUnavailable):
    """Loss of a backend that took the request, before the first token.

    The request may have brought it down: it must not be tried on every backend in turn.
    """


class UpstreamRejected(UpstreamError):
    """Refusal by a backend of the request itself (its 4xx): no other backend will differ."""


class ContextOverflow(UpstreamRejected):
    """Refusal by a backend of a prompt and `max_tokens` that the gateway counted as fitting: its
    context window is not the one it reported.
    """


class UpstreamFailed(UpstreamError):
    """Loss of a backend after the first token: abort, error frame, stall, end without a reason."""


class UpstreamRecalled(UpstreamFailed):
    """End of a generation by the gateway, for another tenant: it waits for its turn again."""


class NoUpstreamAvailable(UpstreamError):
    """Lack of a backend: all are unhealthy or were tried."""

    def __init__(self, model: str, reason: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(reason, upstream=f"model {model}", retry_after_s=retry_after_s)


class Overloaded(NoUpstreamAvailable):
    """Overload of all backends, where the request cannot wait any longer."""


class StoreError(GatewayError):
    """Failure of the database; `state` is its SQLSTATE, if it sent one."""

    def __init__(
        self, message: str, *, state: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.state = state
        self.retry_after_s = retry_after_s


class StoreUnavailable(StoreError):
    """Loss, refusal or timeout of a connection; the same may work in a moment."""


class StoreConflict(StoreError):
    def __init__(self, constraint: str) -> None:
        super().__init__(f"constraint {constraint} does not hold")
        self.constraint = constraint


class KeyTaken(StoreConflict):
    def __init__(self) -> None:
        super().__init__("pk_idempotency_keys")


class ClaimLost(StoreError):
    """Loss of the claim on a response, whose new holder must not be disturbed."""

    def __init__(self) -> None:
        super().__init__("another replica goes on with this response, or has ended it")


class ContentSealed(StoreError):
    """Failure to open stored content: its key is gone, or it was changed."""


class SinkFailed(GatewayError):
    """Failure of a sink of usage, which may take the same later."""


class SinkRefused(SinkFailed):
    """Refusal by a sink of usage, however often the same is sent."""


class SummaryFailed(GatewayError):
    """Failure to summarize a conversation."""


class Draining(GatewayError):
    """End of the process before that of a durable response, which goes on elsewhere."""

    def __init__(self) -> None:
        super().__init__("this process ends before the response does")


class Leaving(GatewayError):
    """Refusal of a request that has not begun: another process must take it."""

    def __init__(self) -> None:
        super().__init__("this process ends and takes no more requests")


class TooManyConnections(GatewayError):
    def __init__(self) -> None:
        super().__init__("there are as many connections as this process takes")


class IssuerUnavailable(GatewayError):
    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StartupError(GatewayError):
    """Failure of the process to start."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


class DatabaseInUse(StartupError):
    """Refusal of an embedded database that another lasting gateway uses."""


class ConfigError(StartupError):
    """A mistake in the configuration; `where` is `file:line` or a variable's name."""

    def __init__(self, message: str, *, where: str, remedy: str) -> None:
        super().__init__(f"{where}: {message}", remedy=remedy)
        self.where = where


class VocabularyError(StartupError):
    """Lack of the packaged rank file, or damage to it."""


def installation(extra: str) -> str:
    """Return the command that installs an extra from a checkout: no index has this package."""
    return f"pip install './[{extra}]'"


def shown(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}..."
