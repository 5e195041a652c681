"""What a scenario found, in one line."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from tests.chaos.checker import summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.chaos.history import Anomaly

Form = Literal["full", "short"]
SHOWN_MAX: Final = 4


@dataclass(slots=True)
class Report:
    """One run of a scenario; `numbers` are counts and seconds, by name.

    `must_fail` turns the verdict round: a checker that finds nothing is the failure then.
    """

    scenario: str
    form: Form
    seed: int
    numbers: dict[str, int | float] = field(default_factory=dict)
    anomalies: list[Anomaly] = field(default_factory=list)
    must_fail: bool = False
    began_s: float = field(default_factory=time.monotonic)

    @property
    def passed(self) -> bool:
        """Were there as many anomalies as there should be: none, or any?"""
        return bool(self.anomalies) == self.must_fail

    def seconds(self, name: str, values: Sequence[float]) -> None:
        """Enter median, 95th percentile and maximum, in seconds."""
        ordered = sorted(values) or [0.0]
        for label, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0)):
            place = min(int(share * len(ordered)), len(ordered) - 1)
            self.numbers[f"{name}_{label}_s"] = round(ordered[place], 3)

    def lines(self) -> list[str]:
        """The summary, and the first anomalies if there should be none."""
        named = {
            "form": self.form,
            "seed": self.seed,
            **self.numbers,
            "wall_s": round(time.monotonic() - self.began_s, 1),
            "anomalies": len(self.anomalies),
            **summary(self.anomalies),
        }
        verdict = "ok" if self.passed else "FAILED"
        said = " ".join(f"{name}={value}" for name, value in named.items())
        shown = [] if self.passed else self._examples()
        return [f"{verdict} {self.scenario} {said}", *(f"  {anomaly}" for anomaly in shown)]

    def _examples(self) -> list[Anomaly]:
        """Some of every rule."""
        rules = dict.fromkeys(anomaly.rule for anomaly in self.anomalies)
        return [
            anomaly
            for rule in rules
            for anomaly in [one for one in self.anomalies if one.rule == rule][:SHOWN_MAX]
        ]
