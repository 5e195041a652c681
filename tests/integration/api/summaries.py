"""What the tests of compaction have in common."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from gateway.context.shortening import INSTRUCTION
from tests.fakes.harmony_oracle import vocabulary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.fakes.observation import Backends

Json = dict[str, Any]


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def summaries_among(rows: Sequence[Json]) -> list[Json]:
    """The requests for summaries, oldest first."""
    asked = [row for row in rows if INSTRUCTION in vocabulary().decode(row["prompt_ids"])]
    return sorted(asked, key=lambda row: row["request_id"])


async def summary_requests(backends: Backends) -> list[Json]:
    """Those of all backends so far."""
    return summaries_among(await backends.seen())


@asynccontextmanager
async def misbehaving(backends: Backends, plan: str) -> AsyncIterator[None]:
    """Every backend follows a fault plan meanwhile."""
    urls = [f"{url}/simulator/faults" for url in backends.urls]
    for url in urls:
        assert (await backends.client.put(url, content=plan)).status_code == 204
    try:
        yield
    finally:
        for url in urls:
            await backends.client.put(url, content="")
