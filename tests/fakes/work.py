"""What works in this process and below it: threads, and the processes that read documents."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

import gateway

if TYPE_CHECKING:
    from types import FrameType

_GATEWAY = str(Path(gateway.__file__).parent)


def threads_at_work() -> list[str]:
    """The functions of the gateway that threads beside this one are in."""
    own = threading.get_ident()
    frames = (frame for ident, frame in sys._current_frames().items() if ident != own)
    return [place for frame in frames for place in _places(frame)]


def readers() -> list[psutil.Process]:
    """The processes that read documents, of this process."""
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if any("document_worker" in part for part in _command(child))
    ]


def is_waiting(process: psutil.Process) -> bool:
    """It sleeps in a system call: whatever reads a document does not."""
    return bool(process.status() == psutil.STATUS_SLEEPING)


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []


def _places(frame: FrameType | None) -> list[str]:
    places = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(_GATEWAY):
            places.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")
        frame = frame.f_back
    return places
