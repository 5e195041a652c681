"""What was measured, and the files that it is kept in: JSON, text, and a plot."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.load import plot, table
from tests.load.figures import spreads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.load.figures import Figures, Target
    from tests.load.machine import Machine
    from tests.load.registry import Workload

FOLDER: Final = Path(__file__).parent / "results"
DIGITS: Final = 4


@dataclass(slots=True)
class Measured:
    """Samples of a workload by row, one for each repetition; why a row has none."""

    workload: Workload
    samples: dict[str, list[Figures]]
    failures: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def save(machine: Machine, repetitions: int, measured: Sequence[Measured]) -> str:
    """Write the files, and say which."""
    now = datetime.now(UTC)
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{now:%Y%m%d-%H%M%S}-{machine.commit}"
    document = as_document(machine, repetitions, measured, at=now)
    path.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    tables = "\n\n".join(table.render(one) for one in measured)
    text = f"{now:%Y-%m-%d %H:%M} UTC\n{machine}\n{repetitions} repetitions\n\n{tables}\n"
    path.with_suffix(".txt").write_text(text, "utf-8")
    return f"saved as {path}.json and .txt; {plot.save(path.with_suffix('.png'), measured)}"


def as_document(
    machine: Machine, repetitions: int, measured: Sequence[Measured], *, at: datetime
) -> dict[str, Any]:
    """Medians with their lowest and highest, not the samples themselves."""
    return {
        "at": at.isoformat(timespec="seconds"),
        "machine": asdict(machine),
        "repetitions": repetitions,
        "workloads": [_workload(one) for one in measured],
    }


def _workload(measured: Measured) -> dict[str, Any]:
    workload = measured.workload
    return {
        "letter": workload.letter,
        "title": workload.title,
        "rows": {
            row: {
                name: [round(value, DIGITS) for value in (one.median, one.low, one.high)]
                for name, one in spreads(samples).items()
            }
            for row, samples in measured.samples.items()
        },
        "failures": measured.failures,
        "targets": [_target(measured, target) for target in workload.targets],
    }


def _target(measured: Measured, target: Target) -> dict[str, Any]:
    value = target.value(measured.samples)
    return {
        **asdict(target),
        "value": None if value is None else round(value, DIGITS),
        "met": None if value is None else target.is_met_by(value),
    }
