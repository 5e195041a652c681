"""Documents are read in child processes, which are killed after a timeout, and otherwise kept for
further documents: starting one takes longer than most pages do.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from gateway.fair_queue import FairSlots
from gateway.tools.browser import document_worker
from gateway.tools.browser.document_worker import FRAME_HEAD
from gateway.tools.browser.extraction import PDF, ReadLimits
from gateway.tools.browser.page import Page, Unreadable

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gateway.tools.browser.page import Fetched

KEPT_BYTES_MAX: Final = 1024 * 1024
"""A process that has read a longer document, or a PDF, would keep its memory."""
_CHAR_BYTES_MAX: Final = 6
"""In JSON."""
_REST_BYTES_MAX: Final = 1024 * 1024


class _Refusal(TypedDict):
    unreadable: str


_ANSWER: Final = TypeAdapter[Page | _Refusal](Page | _Refusal)
"""A document may have taken its process over."""


class DocumentReader:
    def __init__(self, limits: ReadLimits | None = None) -> None:
        self._limits = limits or ReadLimits()
        self._slots = FairSlots(self._limits.documents_max)
        self._idle: list[Process] = []

    async def read(self, document: Fetched, tenant: Hashable = None) -> Page:
        """Return the page. Raises `Unreadable`. The work ends before a cancelled call returns."""
        async with self._slots.taken(tenant):
            process = await self._process()
            is_kept = False
            try:
                async with asyncio.timeout(self._limits.document_timeout_s):
                    answer = await self._ask(process, document)
                is_kept = document.content_type != PDF and len(document.body) <= KEPT_BYTES_MAX
            except TimeoutError:
                raise Unreadable(f"the {_kind(document)} took too long to read") from None
            except (OSError, asyncio.IncompleteReadError, ValidationError):
                raise Unreadable(await _why_ended(process, document)) from None
            finally:
                if is_kept:
                    self._idle.append(process)
                else:
                    await _end(process)
        if isinstance(answer, Page):
            return answer
        raise Unreadable(answer["unreadable"])

    async def close(self) -> None:
        # No read may be in progress.
        while self._idle:
            await _end(self._idle.pop())

    async def _process(self) -> Process:
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(Path(document_worker.__file__))),
            orjson.dumps(self._limits).decode(),
            stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env={},
        )  # fmt: skip

    async def _ask(self, process: Process, document: Fetched) -> Page | _Refusal:
        assert process.stdin is not None
        assert process.stdout is not None
        head = {
            "url": document.url,
            "content_type": document.content_type,
            "charset": document.charset,
        }
        for part in (json.dumps(head).encode(), document.body):
            process.stdin.write(FRAME_HEAD.pack(len(part)))
            process.stdin.write(part)
        await process.stdin.drain()
        (size,) = FRAME_HEAD.unpack(await process.stdout.readexactly(FRAME_HEAD.size))
        if size > _CHAR_BYTES_MAX * self._limits.text_chars_max + _REST_BYTES_MAX:
            raise Unreadable(f"the {_kind(document)} cannot be read")
        return _ANSWER.validate_json(await process.stdout.readexactly(size))


def _kind(document: Fetched) -> str:
    return "PDF" if document.content_type == PDF else "page"


async def _why_ended(process: Process, document: Fetched) -> str:
    await _end(process)
    if process.returncode == -signal.SIGXCPU:
        return f"the {_kind(document)} took too long to read"
    return f"the {_kind(document)} is damaged, or too large to read"


async def _end(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    # `wait` would not return while more than its buffer holds is unread.
    await process.communicate()
