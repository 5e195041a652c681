"""A control group for each container, where this process may make one.

Limits of a single process (`rlimit`) do not add up: 64 processes have 64 times the memory of one.
A control group bounds all processes of a container together.

Sources: https://docs.kernel.org/admin-guide/cgroup-v2.html, and `cgroup-v1/memory.rst` and
`cgroup-v1/pids.rst` beside it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gateway.tools.python.engine import ContainerLimits

ROOT: Final = Path("/sys/fs/cgroup")
_FOLDER: Final = "harmony-gateway"
_PERIOD_US: Final = 100_000
_CONTROLLERS: Final = ("memory", "pids", "cpu")


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Folders for containers' groups: one for version 2, one for each controller for version 1."""

    folders: tuple[Path, ...]
    is_unified: bool

    @classmethod
    def find(cls, root: Path = ROOT) -> Cgroups | None:
        """Find this machine's cgroups; None where this process may make none with a memory
        limit.
        """
        if (root / "cgroup.controllers").exists():
            return cls._unified(root / _FOLDER)
        folders = [root / name / _FOLDER for name in _CONTROLLERS if (root / name).is_dir()]
        made = tuple(folder for folder in folders if _is_made(folder))
        return cls(made, is_unified=False) if any(_has_memory(one) for one in made) else None

    @classmethod
    def _unified(cls, folder: Path) -> Cgroups | None:
        if not _is_made(folder):
            return None
        enabled = " ".join(f"+{name}" for name in _CONTROLLERS)
        try:
            for above in (folder.parent, folder):
                (above / "cgroup.subtree_control").write_text(enabled, "ascii")
        except OSError:
            return None
        return cls((folder,), is_unified=True)

    def enter(self, name: str, pid: int, limits: ContainerLimits) -> Cgroup:
        """Move a process and its children into a new group. Raises `OSError`."""
        self._sweep()
        group = Cgroup(tuple(folder / f"{os.getpid()}-{name}" for folder in self.folders))
        try:
            for folder in group.folders:
                folder.mkdir()
                for file, value in self._values(limits).items():
                    if (folder / file).exists():
                        (folder / file).write_text(value, "ascii")
                for each in descendants(pid):
                    (folder / "cgroup.procs").write_text(str(each), "ascii")
        except OSError:
            group.remove()
            raise
        return group

    def _sweep(self) -> None:
        # A container's group may not be empty yet when the container ends: its processes die a
        # moment later. Groups of other living gateways stay.
        for folder in self.folders:
            for left in folder.glob("*-*"):
                owner = left.name.partition("-")[0]
                if owner == str(os.getpid()) or not Path(f"/proc/{owner}").exists():
                    with suppress(OSError):
                        left.rmdir()

    def _values(self, limits: ContainerLimits) -> Mapping[str, str]:
        memory, processes = str(limits.memory_bytes), str(limits.processes)
        if self.is_unified:
            return {
                "memory.max": memory,
                "memory.swap.max": "0",
                "pids.max": processes,
                "cpu.max": f"{_PERIOD_US} {_PERIOD_US}",
            }
        return {
            "memory.limit_in_bytes": memory,
            "pids.max": processes,
            "cpu.cfs_period_us": str(_PERIOD_US),
            "cpu.cfs_quota_us": str(_PERIOD_US),
        }


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The group of one container: a folder for each controller."""

    folders: tuple[Path, ...]

    def remove(self) -> None:
        # A group that still has a process is deleted by a later container.
        for folder in self.folders:
            with suppress(OSError):
                folder.rmdir()


def descendants(pid: int) -> Iterator[int]:
    """Yield the process and its descendants."""
    yield pid
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            children = Path(f"/proc/{pid}/task/{task}/children").read_text("ascii")
            for child in children.split():
                yield from descendants(int(child))


def _is_made(folder: Path) -> bool:
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
        return os.access(folder, os.W_OK)
    return False


def _has_memory(folder: Path) -> bool:
    return (folder / "memory.limit_in_bytes").exists()
