"""Program that reads untrusted documents in a process of its own, with little memory and time.

A document comes as two frames, its head (JSON) and its body; the answer is one (JSON).
"""

from __future__ import annotations

import json
import logging
import math
import resource
import struct
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gateway.tools.browser.extraction import ReadLimits

FRAME_HEAD: Final = struct.Struct(">Q")
_FILES_MAX: Final = 16


def main(limits_json: str) -> None:
    sys.path.insert(0, str(Path(__file__).parents[3]))  # alone, it sees installed packages only
    from gateway.tools.browser.extraction import ReadLimits

    limits = ReadLimits(**json.loads(limits_json))
    for limit, value in (
        (resource.RLIMIT_AS, limits.document_memory_bytes_max),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _FILES_MAX),
    ):
        resource.setrlimit(limit, (value, value))
    logging.disable(logging.CRITICAL)
    while head := _frame(sys.stdin.buffer):
        _allow_cpu(limits.document_timeout_s)
        answer = _answer(json.loads(head), _frame(sys.stdin.buffer), limits)
        sent = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
        sys.stdout.buffer.write(FRAME_HEAD.pack(len(sent)) + sent)
        sys.stdout.buffer.flush()


def _frame(stream: IO[bytes]) -> bytes:
    head = stream.read(FRAME_HEAD.size)
    return stream.read(*FRAME_HEAD.unpack(head)) if len(head) == FRAME_HEAD.size else b""


def _allow_cpu(timeout_s: float) -> None:
    # The kernel ends this process after `timeout_s` more of CPU time, whether anybody waits for it
    # or not.
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + timeout_s), hard))


def _answer(head: dict[str, Any], body: bytes, limits: ReadLimits) -> dict[str, Any]:
    from gateway.tools.browser.extraction import page_of
    from gateway.tools.browser.page import Fetched, Unreadable

    try:
        return asdict(page_of(Fetched(**head, body=body), limits))
    except Unreadable as error:
        return {"unreadable": str(error)}


if __name__ == "__main__":
    main(sys.argv[1])
