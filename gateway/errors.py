"""Every error this package raises on purpose. Statuses are given in `api.error_responses`.

```
GatewayError
├── RequestError                     the caller can mend it; carries message, code, param
│   ├── InvalidRequest               shape, type, bound, cross-field
│   │   ├── ContextLengthExceeded
│   │   ├── PreviousResponseNotFound
│   │   ├── ConversationLocked        a response is being added to it, or it has changed meanwhile
│   │   └── DataHeld                 nothing that the tenant has may be removed
│   ├── ModelNotFound
│   │   └── ModelNotServed           configured, and no backend lists it
│   ├── ResourceNotFound             a response, an item: unknown, deleted, or another tenant's
│   ├── PayloadTooLarge
│   ├── UnsupportedEncoding          the body is compressed as nothing here reads it
│   ├── AuthenticationError
│   ├── PermissionDenied
│   ├── ConnectorFailed              an MCP server that a request names did not list its tools
│   └── RateLimited
├── UpstreamError                    a backend did not do its work
│   ├── UpstreamUnavailable          refused, overloaded or unreachable before the first token
│   │   └── UpstreamLost              took the request and was gone before the first token
│   ├── UpstreamRejected             a backend calls the request itself wrong
│   │   └── ContextOverflow           because prompt and output do not fit into its window
│   ├── UpstreamFailed               broke off after the first token
│   │   └── UpstreamRecalled         was broken off by this gateway, for another tenant
│   └── NoUpstreamAvailable          none is left to try
│       └── Overloaded                all have as much to do as they can, and enough wait
├── StoreError
│   ├── StoreUnavailable             no connection, a timeout, a restart
│   ├── StoreConflict                a named constraint says no
│   │   └── KeyTaken                  an idempotency key stands for another response already
│   ├── ClaimLost                    another replica goes on with the response, or has ended it
│   └── ContentSealed                what is stored cannot be opened: its key is not there
├── SinkFailed                       who is told of usage did not take it
│   └── SinkRefused                  and never will: an operator has to look
├── SummaryFailed                    a model wrote nothing that could stand for a conversation
├── Draining                         this process ends, and others go on with what was asked for
├── Leaving                          this process ends, and takes nothing more
├── TooManyConnections               this process has as many as it takes
└── StartupError                     the process cannot start; carries what to do next
    ├── ConfigError
    └── VocabularyError
```
"""

from __future__ import annotations

from typing import Final, Literal

SHOWN_CHARS_MAX: Final = 128
"""A caller's own text is repeated to it up to here."""


class GatewayError(Exception):
    """Base of all of them; `str(error)` is fit to be shown."""

    retry_after_s: float | None = None
    """Seconds after which the same request may succeed, where whoever raises it knows that."""


class RequestError(GatewayError):
    """The caller's request cannot be served as it is.

    `code` is the machine-readable code of OpenAI's error envelope (or None), `param` the path of
    the offending field in dots and brackets, as in `input[1].content[0].text`.
    """

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param


class InvalidRequest(RequestError):
    """A field has the wrong shape, type or value."""


class ContextLengthExceeded(InvalidRequest):
    """Prompt and output do not fit into the model's context window."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="context_length_exceeded", param="input")


class PreviousResponseNotFound(InvalidRequest):
    """`previous_response_id` names nothing this tenant can continue."""

    def __init__(self, response_id: str, message: str | None = None) -> None:
        super().__init__(
            message
            or f"Previous response with id '{response_id}' not found. It was not stored, or has "
            "been deleted: send the conversation so far in 'input' instead.",
            code="previous_response_not_found",
            param="previous_response_id",
        )


class ConversationLocked(InvalidRequest):
    """A conversation has one writer at a time, and who writes must have read what is in it."""

    def __init__(self) -> None:
        super().__init__(
            "Another process is currently operating on this conversation. Please retry in a few "
            "seconds.",
            code="conversation_locked",
            param="conversation",
        )


class DataHeld(InvalidRequest):
    """An operator holds what the tenant has (`harmony-gateway data hold`): nothing is removed."""

    def __init__(self) -> None:
        super().__init__(
            "What this organization has stored is held, and nothing of it can be deleted until"
            " whoever runs this server releases it.",
            code="data_held",
        )


class ModelNotFound(RequestError):
    """No such model, or not for this key."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The requested model '{model}' does not exist. GET /v1/models lists the models.",
            code="model_not_found",
            param="model",
        )


class ModelNotServed(ModelNotFound):
    """The gateway is set up for the model, and every backend that may serve it serves others."""

    def __init__(self, model: str) -> None:
        RequestError.__init__(
            self,
            f"The model '{model}' is set up here, but no model server serves it. The operator "
            "finds out why with 'harmony-gateway doctor'; GET /v1/models lists the models that "
            "are served.",
            code="model_not_found",
            param="model",
        )


class ResourceNotFound(RequestError):
    """Unknown, deleted, or another tenant's: the three must look the same."""


class PayloadTooLarge(RequestError):
    """The body is larger than this gateway reads."""


class UnsupportedEncoding(RequestError):
    """The body is compressed in a way that is not read there. `accepted` are those that are, as
    `Accept-Encoding` has them.
    """

    def __init__(self, message: str, accepted: bytes) -> None:
        super().__init__(message, code="unsupported_content_encoding")
        self.accepted = accepted


class AuthenticationError(RequestError):
    """No key, or none that is known."""


class TokenRefused(AuthenticationError):
    """A token of an issuer that cannot be accepted; the message says why, and not what it says."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="invalid_token")


class TokenNotAdmitted(TokenRefused):
    """A token of an issuer that nobody here lets in: it is for somebody else, or no rule is."""


class PermissionDenied(RequestError):
    """A known key that may not do this."""


class ConnectorFailed(RequestError):
    """An MCP server that the request names did not tell its tools, where that is demanded."""


class RateLimited(RequestError):
    """Too much at once, or too often. `retry_after_s` is until there may be room, where known.

    `kind` is which limit was reached, for the `type` of the envelope. `is_final`: it does not help
    to try again. `headers` are those of the limits, for the answer.
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
    """A backend did not do its work. The message is for operators, never for clients.

    `reason` is the message without the backend's name.
    """

    def __init__(self, message: str, *, upstream: str) -> None:
        super().__init__(f"{upstream}: {message}")
        self.upstream = upstream
        self.reason = message


class UpstreamUnavailable(UpstreamError):
    """Nothing was generated: another backend may be tried at no cost. `retry_after_s` is what the
    backend said itself, if it did.
    """

    def __init__(self, message: str, *, upstream: str, retry_after_s: float | None = None) -> None:
        super().__init__(message, upstream=upstream)
        self.retry_after_s = retry_after_s


class UpstreamLost(UpstreamUnavailable):
    """It took the request and broke down, fell silent or was gone before the first token.

    The request may be what brought it down, so it must not be tried on every backend in turn.
    """


class UpstreamRejected(UpstreamError):
    """The backend answered that the request itself is wrong (its 4xx): no other will differ."""


class ContextOverflow(UpstreamRejected):
    """Prompt and `max_tokens` do not fit into the backend's context window.

    The gateway counts first, so this means that the backend's window is not the one it told.
    """


class UpstreamFailed(UpstreamError):
    """It broke off after the first token: abort, error frame, stall, or an end without a reason."""


class UpstreamRecalled(UpstreamFailed):
    """The gateway broke it off itself, for another tenant: it has to wait for its turn again."""


class NoUpstreamAvailable(UpstreamError):
    """Every backend of the model is unhealthy or has been tried. `retry_after_s` is what one of
    them said, or until one is tried or asked again, where known.
    """

    def __init__(self, model: str, reason: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(reason, upstream=f"model {model}")
        self.retry_after_s = retry_after_s


class Overloaded(NoUpstreamAvailable):
    """The backends of the model have as much to do as they can, and the request cannot wait, or has
    waited long enough. `retry_after_s` is until those that wait now have gone.
    """


class StoreError(GatewayError):
    """The database said no. `state` is its SQLSTATE; empty where the server did not speak."""

    def __init__(self, message: str, *, state: str = "") -> None:
        super().__init__(message)
        self.state = state


class StoreUnavailable(StoreError):
    """Lost, refused or timed-out connection; the same statement may work in a moment.

    `retry_after_s` is until the database is tried again, where known.
    """

    def __init__(
        self, message: str, *, state: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, state=state)
        self.retry_after_s = retry_after_s


class StoreConflict(StoreError):
    """A named constraint was violated."""

    def __init__(self, constraint: str) -> None:
        super().__init__(f"constraint {constraint} does not hold")
        self.constraint = constraint


class KeyTaken(StoreConflict):
    """The idempotency key stands for another response already: look that one up."""

    def __init__(self) -> None:
        super().__init__("pk_idempotency_keys")


class ClaimLost(StoreError):
    """The claim on a response is not held any more: whoever holds it now must not be disturbed."""

    def __init__(self) -> None:
        super().__init__("another replica goes on with this response, or has ended it")


class ContentSealed(StoreError):
    """What is stored of a tenant cannot be opened: its key was destroyed or withdrawn, or what is
    stored was changed. The message is for operators.
    """


class SinkFailed(GatewayError):
    """What a sink of usage was sent it did not take; it may take the same later."""


class SinkRefused(SinkFailed):
    """It will not take this however often it is sent."""


class SummaryFailed(GatewayError):
    """A conversation could not be made short. The message is for operators."""


class Draining(GatewayError):
    """The process ends before a durable response does, which goes on elsewhere."""

    def __init__(self) -> None:
        super().__init__("this process ends before the response does")


class Leaving(GatewayError):
    """The process ends: what is asked of it now has not begun, and must be asked of another."""

    def __init__(self) -> None:
        super().__init__("this process ends and takes no more requests")


class TooManyConnections(GatewayError):
    """The process has as many connections as it takes, or as one address may have."""

    def __init__(self) -> None:
        super().__init__("there are as many connections as this process takes")


class IssuerUnavailable(GatewayError):
    """The keys of an issuer of tokens cannot be fetched, and none are known. The message is for
    operators. `retry_after_s` is until it is asked again.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StartupError(GatewayError):
    """The process cannot start. `remedy` says what the operator can do."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


class DatabaseInUse(StartupError):
    """Another gateway that lasts has the embedded database."""


class ConfigError(StartupError):
    """A mistake in the configuration; `where` is `file:line` or a variable's name."""

    def __init__(self, message: str, *, where: str, remedy: str) -> None:
        super().__init__(f"{where}: {message}", remedy=remedy)
        self.where = where


class VocabularyError(StartupError):
    """The packaged rank file is missing or damaged."""


def installation(extra: str) -> str:
    """Return the command that installs an extra from a checkout: no index has this package."""
    return f"pip install './[{extra}]'"


def shown(text: str) -> str:
    """Return the caller's text, shortened for use in a message."""
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}..."
