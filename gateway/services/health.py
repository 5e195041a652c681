"""Can this process serve requests, and if not, why not?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gateway.errors import StoreError
from gateway.telemetry import EXPOSITION_TYPE

if TYPE_CHECKING:
    from gateway.store.engine import Database
    from gateway.telemetry import Metrics
    from gateway.upstreams.pool import Pool


@dataclass(frozen=True, slots=True)
class Report:
    """`reasons` is empty when requests can be served."""

    reasons: list[str]
    backends: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_ready(self) -> bool:
        """A load balancer may send requests here."""
        return not self.reasons

    def body(self) -> dict[str, Any]:
        """For `GET /readyz`."""
        status = "ready" if self.is_ready else "not ready"
        return {"status": status, "reasons": self.reasons, "backends": self.backends}


class Health:
    """Readiness and metrics of one process."""

    def __init__(self, database: Database, pool: Pool, metrics: Metrics) -> None:
        self._database = database
        self._pool = pool
        self._metrics = metrics

    async def check(self) -> Report:
        """Ask the database, look at the backends."""
        reasons = []
        try:
            await self._database.ping()
        except StoreError:
            reasons.append("the database does not answer")
        states = self._pool.snapshot()
        if not any(state.healthy for state in states):
            reasons.append("no backend is healthy")
        if not self._pool.models():
            reasons.append("no backend has said yet what it serves")
        backends = [
            {"name": state.name, "healthy": state.healthy, "in_flight": state.in_flight}
            for state in states
        ]
        return Report(reasons, backends)

    def metrics(self) -> tuple[bytes, str]:
        """Prometheus text and its media type."""
        return self._metrics.exposition(), EXPOSITION_TYPE
