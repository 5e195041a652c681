"""The memory shared with the native programs: the pace, and when the backend sent each word.

Its form is in native/shared.h.
"""

from __future__ import annotations

import os
import struct
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOTS: Final = 2048
"""Streams at once at most; a slot is not taken again before all others were."""
POSITIONS: Final = 2048
"""Words of a stream whose times are kept."""
_HEADER_BYTES: Final = 4096
_SHARED_MEMORY: Final = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Marks:
    """A file in memory."""

    path: Path
    slots: int = SLOTS
    positions: int = POSITIONS

    @property
    def arguments(self) -> list[str]:
        """How the native programs are told of it."""
        sizes = ["--slots", str(self.slots), "--positions", str(self.positions)]
        return ["--marks", str(self.path), *sizes]

    def set_rate(self, rate_per_s: float) -> None:
        """Words of a stream a second, for the streams to come; 0: as fast as they are read.

        Only while no stream runs, since all step together.
        """
        with self.path.open("r+b") as file:
            file.write(struct.pack("<d", rate_per_s))

    def sent_ns(self, slot: int, position: int) -> int:
        """When a word was sent, on the monotonic clock; 0 for one that never was."""
        with self.path.open("rb") as file:
            file.seek(_HEADER_BYTES + 8 * (slot * self.positions + position))
            (sent,) = struct.unpack("<Q", file.read(8))
            return int(sent)


@contextmanager
def shared_marks() -> Iterator[Marks]:
    """A new file, in memory where there is a file system in memory."""
    folder = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    descriptor, name = tempfile.mkstemp(prefix="gateway-bench-", dir=folder)
    marks = Marks(Path(name))
    try:
        os.ftruncate(descriptor, _HEADER_BYTES + 8 * marks.slots * marks.positions)
        os.close(descriptor)
        yield marks
    finally:
        marks.path.unlink()
