"""What is wrong with a backend, told to operators when it begins, changes and ends."""

from __future__ import annotations

from typing import Final, Literal

from gateway.telemetry import EventLog

Source = Literal["engine", "check", "models", "request"]

_log = EventLog("gateway.upstreams")
_EVENTS: Final[dict[Source, str]] = {
    "engine": "backend is not used",
    "check": "backend is unreachable",
    "models": "backend does not say what it serves",
    "request": "backend is ejected",
}
"""The weightiest first."""


class Troubles:
    """Of one backend. What is wrong is known from several sources, and told once for each cause:
    a server that is gone answers neither health checks nor requests, and for the same reason.
    """

    def __init__(self, upstream: str, url: str) -> None:
        self._upstream = upstream
        self._url = url
        self._causes: dict[Source, str] = {}
        self._told: str | None = None

    @property
    def worst(self) -> str | None:
        """The weightiest cause; None where nothing is wrong."""
        source = self._source()
        return None if source is None else self._causes[source]

    def begin(self, source: Source, cause: str) -> None:
        """Something is wrong, or goes on to be wrong, perhaps for another cause."""
        self._causes[source] = cause
        self._tell()

    def over(self, source: Source) -> None:
        """Nothing is wrong any more, as far as this source knows."""
        if source in self._causes:
            del self._causes[source]
            self._tell()

    def _source(self) -> Source | None:
        return next((source for source in _EVENTS if source in self._causes), None)

    def _tell(self) -> None:
        source, cause = self._source(), self.worst
        if cause == self._told:
            return
        self._told = cause
        if source is None or cause is None:
            _log.info("backend is back", upstream=self._upstream, url=self._url)
        else:
            _log.warning(_EVENTS[source], upstream=self._upstream, url=self._url, reason=cause)
