"""Recorded answers of a real vLLM 0.32: `### REQUEST ... ### RESPONSE ... [12.3ms 182B] bytes`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "data" / "backend-captures"

_RESPONSE = b"### RESPONSE (raw bytes; [ms since send])\n\n"
_READ = re.compile(rb"\n*\[[\d.]+ms (\d+)B\] ")


@dataclass(frozen=True)
class Capture:
    """`reads` are the pieces in which the answer came; what followed them is how it `ended`."""

    name: str
    request: bytes
    reads: tuple[bytes, ...]
    ended: str

    @property
    def response(self) -> bytes:
        return b"".join(self.reads)

    @property
    def status(self) -> int:
        return int(self.response.split(b" ", 2)[1])

    @property
    def body(self) -> bytes:
        """Of an answer with a content-length."""
        return self.response.split(b"\r\n\r\n", 1)[1]


def capture(name: str) -> Capture:
    """The recording of that name."""
    request, _, played = (FOLDER / f"{name}.txt").read_bytes().partition(_RESPONSE)
    reads = []
    position = 0
    while found := _READ.match(played, position):
        position = found.end() + int(found[1])
        reads.append(played[found.end() : position])
    return Capture(name, request, tuple(reads), played[position:].decode().strip())


def names(*patterns: str) -> list[str]:
    """Names of recordings, sorted."""
    return sorted(path.stem for pattern in patterns for path in FOLDER.glob(f"{pattern}.txt"))
