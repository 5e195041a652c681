"""Sees what comes of a prompt, on its way to whoever asked."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from gateway.errors import UpstreamError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from gateway.generation import TokenChunk, TokenSink
    from gateway.upstreams.routing.router import Flight


class FlightSink:
    """A token sink before another one: it notes the first token, the ids, and the cached tokens.

    Used as a context, which is left when nothing more comes.
    """

    __slots__ = ("_cached", "_flight", "_is_finished", "_on_tokens", "_said", "room")

    def __init__(self, flight: Flight, sink: TokenSink) -> None:
        self._flight = flight
        self._on_tokens = sink.on_tokens
        self.room = sink.room
        self._said: array[int] | None = None
        self._cached: int | None = None
        self._is_finished = False

    def on_tokens(self, chunk: TokenChunk) -> bool:
        said = self._said
        if said is None:
            said = self._said = array("I")
            self._flight.first()
        said.fromlist(chunk.ids)
        if chunk.finish is not None:
            self._is_finished, self._cached = True, chunk.cached_tokens
        return self._on_tokens(chunk)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After an error of the member its cache is unknown, so nothing is noted as placed.
        if self._said is not None and not isinstance(error, UpstreamError):
            self._flight.ended(self._said, self._cached, is_finished=self._is_finished)
        self._flight.close()
