"""The current span, without an import of OpenTelemetry."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Attributes = Mapping[str, str | int | float | bool | Sequence[str]]

PROVIDER: Final = "harmony"
"""OpenTelemetry's conventions know none of the engines."""
SpanKind = Literal["client", "internal"]


class Span(Protocol):
    """Span. One that is not recorded is passed on too: servers behind this gateway must not decide
    anew.
    """

    @property
    def is_recorded(self) -> bool: ...

    @property
    def trace_id(self) -> str:
        """Return the id in hexadecimal; empty if not recorded."""
        ...

    @property
    def span_id(self) -> str:
        """Return the id in hexadecimal; empty if not recorded."""
        ...

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of requests below this span."""
        ...

    def child(self, name: str, kind: SpanKind, attributes: Attributes) -> Span: ...

    def rename(self, name: str) -> None: ...

    def set(self, attributes: Attributes) -> None:
        """Set attributes, unless the span has ended: a run may outlive its request."""
        ...

    def fail(self, error_type: str) -> None:
        """Mark the span as failed. The type is never a message."""
        ...

    def leave(self) -> None:
        """Make the former span the current one, in the same context."""
        ...

    def end(self) -> None: ...


CURRENT: Final[ContextVar[Span | None]] = ContextVar("span", default=None)
"""Parent of requests that the current task sends; None while traces are off."""


def recorded() -> Span | None:
    span = CURRENT.get()
    return span if span is not None and span.is_recorded else None
