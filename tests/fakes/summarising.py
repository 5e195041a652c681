"""Summaries by scripted backends, and what was booked of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gateway.constraints.output_rules import OutputRules
from gateway.engine.engine import Engine
from gateway.engine.observer import Observer
from gateway.engine.output_guard import GuardLimits
from gateway.sealing import Sealer, SealingSecret
from gateway.services.runs.compaction import CompactionLimits, Compactor
from gateway.telemetry.metrics import Metrics
from tests.fakes.harmony_script import harmony_of
from tests.fakes.staged_run import IMPATIENT, MemoryArchive, MemoryKeeper, ScriptedTokens, folds
from tests.fakes.threads import THREADS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fakes.staged_run import Step

SEALER = Sealer([SealingSecret("k", b"sixteen bytes or more")])
RULES = OutputRules({}, frozenset(), calls="none")
"""Of every request for a summary."""
LIMITS = CompactionLimits(summary_tokens_max=64, effort="low", window_share=0.5)


class SummaryDesk:
    """A compactor whose backends say what they are told, call by call."""

    def __init__(
        self,
        *turns: Sequence[Step],
        rules: OutputRules = RULES,
        run_time_max_s: float = 60,
        repairs_max: int = 3,
    ) -> None:
        self.archive = MemoryArchive()
        self.tokens = ScriptedTokens(turns)
        engine = Engine(
            tokens=self.tokens,
            archive=self.archive,
            lease_keeper=MemoryKeeper(),
            observer=Observer(Metrics()),
            format_of=harmony_of,
            threads=THREADS,
            alive_interval_s=60,
            run_time_max_s=run_time_max_s,
            hops=IMPATIENT,
            guard_limits=GuardLimits(repairs_max=repairs_max),
        )
        self._new_compactor = partial(
            Compactor, engine, lambda head: folds(head, rules), limits=LIMITS
        )

    def compactor(self, sealer: Sealer = SEALER) -> Compactor:
        return self._new_compactor(sealer=sealer)

    @property
    def booked(self) -> list[str]:
        """How the summaries ended that belong to no response."""
        return [finished.status for finished in self.archive.metered]
