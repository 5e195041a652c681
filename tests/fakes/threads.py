"""The threads of runs, shared by all tests of a process."""

from __future__ import annotations

from typing import Final

from gateway.services.executor import ThreadExecutor

THREADS: Final = ThreadExecutor(threads_max=2, inline_bytes_max=0)
