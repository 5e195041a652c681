"""What the workloads cost when somebody last looked, by version of Python; and what has grown."""

from __future__ import annotations

import json
import subprocess
import sys
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Costs = Mapping[str, Mapping[str, float]]

RECORD: Final = Path(__file__).with_name("recorded.json")
ROOT: Final = Path(__file__).parents[2]
VERSION: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
GROWTH_MAX: Final = 0.2
BLOCKS_SLACK: Final = 64.0
"""So many more of a thousand tokens are no growth: what one text takes, and not each token."""


def recorded() -> Costs | None:
    """For this version of Python; None where nobody has recorded any."""
    costs: Costs | None = json.loads(RECORD.read_text(encoding="utf-8")).get(VERSION)
    return costs


def counted(*options: str) -> Costs:
    """What they cost now, counted where nothing else is traced."""
    env = {name: value for name, value in environ.items() if not name.startswith("COV")}
    command = [sys.executable, "-m", "tests.guards.counting", *options]
    run = subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True)
    costs: Costs = json.loads(run.stdout)
    return costs


def growths(old: Costs, new: Costs) -> Iterator[str]:
    """What costs more than it may, a line each."""
    for name, costs in new.items():
        for what, now in costs.items():
            before = old.get(name, {}).get(what)
            if before is None:
                yield f"{name}: nobody has recorded its {what}; run python -m tests.guards.record"
            elif now > before * (1 + GROWTH_MAX) + BLOCKS_SLACK * (what == "blocks"):
                yield (
                    f"{name}: {before:.1f} -> {now:.1f} {what} a token. If that is worth it, run"
                    " python -m tests.guards.record"
                )


def write(costs: Costs) -> None:
    """Record them for this version of Python."""
    known = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    text = json.dumps({**known, VERSION: costs}, indent=2, sort_keys=True)
    RECORD.write_text(text + "\n", encoding="utf-8")
