"""A finished background response with a long log, one id an entry, as a paced stream leaves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from gateway.entries import Tokens, pack, unpack
from tests.load import copying
from tests.load.asking import asking
from tests.load.systems import BACKGROUND, SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from asyncpg import Connection, Record

    from gateway.entries import Entry
    from tests.load.processes import Child
    from tests.load.stack import Stack

_READ: Final = "SELECT * FROM events WHERE response_id = $1 ORDER BY first_entry"
_ERASE: Final = "DELETE FROM events WHERE response_id = $1"
_WRITE: Final = """
INSERT INTO events (tenant_id, response_id, day, epoch, first_entry, entry_count, entries)
VALUES ($1, $2, $3, $4, $5, $6, $7)
"""
_MOVE_END: Final = "UPDATE responses SET next_entry = $2 WHERE id = $1"


def logged(stack: Stack, child: Child, tokens: int, *, entries_a_row: int) -> str:
    """The id of a response of so many tokens. It was generated as fast as possible; then its log is
    written anew as it would be had each token come on its own."""
    stack.marks.set_rate(0)
    system = SYSTEMS[BACKGROUND]
    with asking(child.port, stack.key) as client:
        stream = client.ask(client.request("POST", system.path, system.body(tokens))).body
    name = stream.partition(b'"id":"')[2].partition(b'"')[0].decode()
    rewrite(stack.database_url, UUID(name.removeprefix("resp_")), entries_a_row)
    return name


def rewrite(url: str, uuid: UUID, entries_a_row: int) -> None:
    """Write the log of a response anew: one id in an entry, so many entries in a row."""

    async def written_anew(connection: Connection[Record]) -> None:
        async with connection.transaction():
            rows = await connection.fetch(_READ, uuid)
            entries = list(one_by_one(entry for row in rows for entry in unpack(row["entries"])))
            of_it = [rows[0][name] for name in ("tenant_id", "response_id", "day")]
            written: list[Any] = [
                (*of_it, rows[-1]["epoch"], start, len(part), pack(part))
                for start in range(0, len(entries), entries_a_row)
                for part in [entries[start : start + entries_a_row]]
            ]
            await connection.execute(_ERASE, uuid)
            await connection.executemany(_WRITE, written)
            await connection.execute(_MOVE_END, uuid, len(entries))

    copying.on_database(url, written_anew)


def one_by_one(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The same log with an id in each `Tokens`."""
    for entry in entries:
        if isinstance(entry, Tokens):
            for at, token in enumerate(entry.ids):
                yield Tokens((token,), entry.logprobs[at : at + 1])
        else:
            yield entry
