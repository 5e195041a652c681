"""What a connection through a transaction pooler looks like: the process id is the pooler's own."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_KEY_DATA: Final = re.compile(rb"K\x00\x00\x00\x0c.{4}", re.DOTALL)
_POOLERS_OWN: Final = b"K\x00\x00\x00\x0c\x00\x00\x00\x01"


@dataclass(slots=True)
class Pooler:
    """`url` leads through it; `accepted` counts connections."""

    url: str
    accepted: int = 0


@asynccontextmanager
async def pooler(url: str) -> AsyncIterator[Pooler]:
    """A pooler in front of the server of this URL, which names a folder of sockets."""
    parts = urlsplit(url)
    folder = parse_qs(parts.query)["host"][0]
    port = parse_qs(parts.query).get("port", ["5432"])[0]
    credentials = parts.netloc.rpartition("@")[0]
    made = Pooler("")

    async def relay(client: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        made.accepted += 1
        server, ask = await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.{port}")
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(client, ask))
            group.create_task(_copy(server, answer))

    listener = await asyncio.start_server(relay, "127.0.0.1")
    host, listened = listener.sockets[0].getsockname()
    made.url = f"postgresql://{credentials}@{host}:{listened}{parts.path}?sslmode=disable"
    async with listener:
        yield made


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while chunk := await source.read(65536):
        target.write(_KEY_DATA.sub(_POOLERS_OWN, chunk))
        await target.drain()
    target.close()
