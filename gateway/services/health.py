from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.exposition import choose_encoder

from gateway.errors import StoreError, StoreUnavailable
from gateway.store.migration.verification import missing, summary
from gateway.upstreams.pool import SILENT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics
    from gateway.upstreams.backend_sources import Membership
    from gateway.upstreams.member import Member
    from gateway.upstreams.pool import Pool


SCHEMA_INTERVAL_S: Final = 60.0
"""Between checks of a complete schema, which take the server some milliseconds."""
MENDING_INTERVAL_S: Final = 5.0
LATE: Final = "no backend answers its health checks in time; requests are sent all the same"


class DatabaseCheck:
    """Check that the database answers, has its schema and takes writes.

    Frequent calls are cheap: the schema is examined once a minute, writes once and after a fault.
    """

    def __init__(
        self, database: Database, *others: Database, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._writers = (database, *others)
        self._clock = clock
        self._lacks = ""
        self._schema_due = self._write_at = float("-inf")

    async def reasons(self) -> list[str]:
        try:
            await self._database.ping()
            await self._look_at_schema()
        except StoreError as error:
            return [f"the database does not answer ({error.state})".removesuffix(" ()")]
        await self._look_at_writes()
        return [reason for reason in (self._lacks, self._cannot_write()) if reason]

    async def _look_at_schema(self) -> None:
        if self._clock() < self._schema_due:
            return
        try:
            facts = await missing(self._database, is_patient=False)
        except StoreError:
            # It answers, but not this, e.g. while a table is altered: not ready would take away all
            # replicas at once for what few requests need.
            self._schema_due = self._clock() + MENDING_INTERVAL_S
            return
        lacking = [fact for fact in facts if fact.stops]
        self._lacks = (
            f"the database lacks what `harmony-gateway db upgrade` sees to: {summary(lacking)}"
            if lacking
            else ""
        )
        self._schema_due = self._clock() + (MENDING_INTERVAL_S if lacking else SCHEMA_INTERVAL_S)

    async def _look_at_writes(self) -> None:
        # Tries a write once at the start, and again whenever writes of requests have failed.
        is_first = self._write_at == float("-inf")
        is_due = self._clock() - self._write_at >= MENDING_INTERVAL_S
        if not is_first and not (is_due and self._cannot_write()):
            return
        self._write_at = self._clock()
        try:
            await self._database.try_write()
        except StoreUnavailable:
            return
        except StoreError:
            # Its owner may not create such a table: the next failing write will show.
            pass
        for one in self._writers:
            one.write_fault = ""

    def _cannot_write(self) -> str:
        return next((one.write_fault for one in self._writers if one.write_fault), "")


@dataclass(frozen=True, slots=True)
class HealthReport:
    """Readiness. A full queue (`admission`) is no reason to send requests elsewhere: other replicas
    have the same backends.
    """

    reasons: list[str]
    backends: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    is_draining: bool = False
    admission: dict[str, Any] | None = None

    @property
    def is_ready(self) -> bool:
        return not self.reasons

    def body(self) -> dict[str, Any]:
        status = "draining" if self.is_draining else "ready" if self.is_ready else "not ready"
        body = {
            "status": status,
            "reasons": self.reasons,
            "warnings": self.warnings,
            "backends": self.backends,
        }
        return body if self.admission is None else {**body, "admission": self.admission}


class Health:
    def __init__(
        self,
        database: DatabaseCheck,
        pool: Pool,
        metrics: Metrics,
        membership: Membership | None = None,
    ) -> None:
        self._membership = membership
        self._database = database
        self._pool = pool
        self._metrics = metrics
        self._is_draining = False

    def begin_drain(self) -> None:
        self._is_draining = True

    async def check(self) -> HealthReport:
        if self._is_draining:
            return HealthReport(["this process is about to end"], is_draining=True)
        states = self._pool.members()
        reasons = [*await self._database.reasons(), *self._backends_missing(states)]
        backends = [
            {
                "name": state.name,
                "healthy": state.healthy,
                "in_flight": state.in_flight,
                "drained": state.is_drained,
                "source": state.backend.source,
            }
            for state in states
        ]
        sources = () if self._membership is None else self._membership.warnings
        warnings = [*sources, *self._pool.warnings]
        if self._are_late(states):
            warnings.append(LATE)
        return HealthReport(reasons, backends, warnings, admission=self._admission())

    def _admission(self) -> dict[str, Any] | None:
        admission = self._pool.admission
        if admission is None:
            return None
        state = admission.state()
        return {
            "queued": state.queued,
            "slots": state.slots,
            "saturation": round(state.saturation, 3),
        }

    @staticmethod
    def _are_late(states: Sequence[Member]) -> bool:
        # Taking every gateway out of use would help nobody: all have the same backends.
        usable = [state for state in states if not state.is_drained]
        return not any(state.healthy for state in usable) and any(one.is_late for one in usable)

    def _backends_missing(self, states: Sequence[Member]) -> list[str]:
        reasons = []
        if not states:
            return ["no backend is known", *(self._membership.warnings if self._membership else ())]
        usable = [state for state in states if not state.is_drained]
        if not usable:
            return ["every backend is drained: harmony-gateway backends undrain NAME"]
        if not any(state.healthy for state in usable) and not self._are_late(states):
            is_open = any(state.healthy is None for state in usable)
            reasons.append("no backend has answered yet" if is_open else "no backend is healthy")
        if not self._pool.models:
            reasons += self._pool.warnings or [SILENT]
        return reasons

    def metrics(self, accept: str) -> tuple[bytes, str]:
        encode, media_type = choose_encoder(accept)
        return self._metrics.exposition(encode), media_type
