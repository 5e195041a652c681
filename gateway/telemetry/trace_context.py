"""The span that the current task works for. Nothing of OpenTelemetry is imported here.

Code that adds to a span gets it here, and gets None while traces are off.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Attributes = Mapping[str, str | int | float | bool | Sequence[str]]

PROVIDER: Final = "harmony"
"""The `gen_ai.provider.name` of this gateway: the conventions know none of its engines."""
SpanKind = Literal["client", "internal"]


class Span(Protocol):
    """A span, which may be the current one of a context.

    One that is not recorded is passed on all the same, so that servers behind this gateway do not
    decide anew whether to record.
    """

    @property
    def is_recorded(self) -> bool: ...

    @property
    def trace_id(self) -> str:
        """Return the id in hexadecimal; empty if the span is not recorded."""
        ...

    @property
    def span_id(self) -> str:
        """Return the id in hexadecimal; empty if the span is not recorded."""
        ...

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of requests that are sent for this span."""
        ...

    def child(self, name: str, kind: SpanKind, attributes: Attributes) -> Span:
        """Begin a span below this one, and make it the current one."""
        ...

    def rename(self, name: str) -> None: ...

    def set(self, attributes: Attributes) -> None:
        """Set attributes. Does nothing once the span has ended: a run may outlive its request."""
        ...

    def fail(self, error_type: str) -> None:
        """Mark the span as failed. The type is from a closed set, never a message."""
        ...

    def leave(self) -> None:
        """Make the former span the current one again, in the context that this one began in."""
        ...

    def end(self) -> None:
        """End the span, and leave it if that was not done."""
        ...


CURRENT: Final[ContextVar[Span | None]] = ContextVar("span", default=None)
"""Requests that the current task sends name this span as their parent, recorded or not."""


def recorded() -> Span | None:
    """Return the current span if it is recorded."""
    span = CURRENT.get()
    return span if span is not None and span.is_recorded else None
