"""Can this process serve requests, and if not, why not?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gateway.telemetry import EXPOSITION_TYPE
from gateway.upstreams.pool import SILENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.services.storage import Storage
    from gateway.telemetry import Metrics
    from gateway.upstreams.member import BackendState
    from gateway.upstreams.pool import Pool


@dataclass(frozen=True, slots=True)
class Report:
    """`reasons` is empty when requests can be served; `warnings` say what of them cannot."""

    reasons: list[str]
    backends: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    is_draining: bool = False

    @property
    def is_ready(self) -> bool:
        """A load balancer may send requests here."""
        return not self.reasons

    def body(self) -> dict[str, Any]:
        """For `GET /readyz`."""
        status = "draining" if self.is_draining else "ready" if self.is_ready else "not ready"
        return {
            "status": status,
            "reasons": self.reasons,
            "warnings": self.warnings,
            "backends": self.backends,
        }


class Health:
    """Readiness and metrics of one process."""

    def __init__(self, storage: Storage, pool: Pool, metrics: Metrics) -> None:
        self._storage = storage
        self._pool = pool
        self._metrics = metrics
        self._is_draining = False

    def begin_drain(self) -> None:
        """From now on nothing new should be sent here."""
        self._is_draining = True

    async def check(self) -> Report:
        """Ask the database, look at the backends; when the process is about to end, say only so."""
        if self._is_draining:
            return Report(["this process is about to end"], is_draining=True)
        reasons = await self._storage.reasons()
        states = self._pool.snapshot()
        reasons += self._backends_missing(states)
        backends = [
            {"name": state.name, "healthy": state.healthy, "in_flight": state.in_flight}
            for state in states
        ]
        return Report(reasons, backends, list(self._pool.warnings))

    def _backends_missing(self, states: Sequence[BackendState]) -> list[str]:
        """Why no backend can be sent a request: with its cause, where that is known."""
        reasons = []
        if not any(state.healthy for state in states):
            is_open = any(state.healthy is None for state in states)
            reasons.append("no backend has answered yet" if is_open else "no backend is healthy")
        if not self._pool.models():
            reasons += self._pool.warnings or [SILENT]
        return reasons

    def metrics(self) -> tuple[bytes, str]:
        """Prometheus text and its media type."""
        return self._metrics.exposition(), EXPOSITION_TYPE
