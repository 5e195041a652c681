from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from mcp.client import Client

from gateway.simulator.workshop import NOTE_CHARS_MAX, NOTES_MAX, PATH, create_workshop
from tests.fakes.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def connected() -> AsyncIterator[Client]:
    async with serving(create_workshop()) as url, Client(url + PATH) as client:
        yield client


async def said(workshop: Client, tool: str, **arguments: object) -> tuple[str, bool]:
    result = await workshop.call_tool(tool, arguments)
    return result.content[0].text, bool(result.is_error)  # type: ignore[union-attr]


async def test_lengths_are_converted() -> None:
    async with connected() as workshop:
        assert await said(workshop, "convert", value=10, unit="nmi", into="km") == (
            "10 nmi = 18.52 km",
            False,
        )
        text, is_error = await said(workshop, "convert", value=1, unit="furlong", into="m")
        assert is_error
        assert "nmi" in text


@pytest.mark.slow
async def test_notes_are_kept_but_not_without_end() -> None:
    async with connected() as workshop:
        assert (await said(workshop, "note", text="buy oil"))[0] == "1 notes are kept."
        for _ in range(NOTES_MAX):
            await said(workshop, "note", text="again")
        text, _ = await said(workshop, "note", text="again")
        assert text == f"{NOTES_MAX} notes are kept."
        assert (await said(workshop, "note", text="x" * (NOTE_CHARS_MAX + 1)))[1]


async def test_only_what_changes_nothing_says_that_it_reads() -> None:
    async with connected() as workshop:
        tools = (await workshop.list_tools()).tools
        hints = {tool.name: tool.annotations and tool.annotations.read_only_hint for tool in tools}
        assert hints == {"convert": True, "note": None}
