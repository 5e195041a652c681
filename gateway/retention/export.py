"""Archive of all that a tenant has, with its content opened: a page of rows at a time."""

from __future__ import annotations

import asyncio
import hashlib
import io
import zipfile
from contextlib import aclosing
from datetime import UTC, date, datetime
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import orjson
from typing_extensions import override

from gateway.errors import ContentSealed
from gateway.json_output import one_line
from gateway.store import audit_log
from gateway.store.content import BOUND_BY, CONTENT, pages_by_key, place_of
from gateway.store.postgres.database import turn_to
from gateway.store.tables import TABLES as ALL_TABLES
from gateway.store.tables.columns import Kept, about, columns_of, keys_of_table

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
    from uuid import UUID

    from _typeshed import ReadableBuffer

    from gateway.audit import Author
    from gateway.encryption.cipher import ContentCipher
    from gateway.store.postgres.database import Database, Row
    from gateway.tenancy import Tenant, TenantId

TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    name: tuple(keys_of_table(name))
    for name, table in ALL_TABLES.items()
    if not about(table).not_exported
}
"""Exported tables, with the keys by which they are read. Not `events`: the logs repeat the items of
responses, and hold output that was taken back besides."""
SEALED: Final = {"sealed": True}
OPENED: Final = frozenset({Kept.SEALED, Kept.NAME, Kept.LOG})
ROWS_FIRST: Final = 16
ROWS_MAX: Final = 500
PAGE_BYTES: Final = 4 * 1024 * 1024


def _columns(table: str) -> list[str]:
    columns = columns_of(ALL_TABLES[table])
    return [name for name, of in columns.items() if of.info["exported"] and name != "tenant_id"]


_PAGES: Final = {table: pages_by_key(table, _columns(table)) for table in TABLES}


class ExportedPage(NamedTuple):
    table: str
    rows: Sequence[Row]
    cipher: ContentCipher
    with_content: bool

    def lines(self) -> tuple[bytes, int]:
        """Return the rows as lines of JSON, and how many have content that no key opens (`SEALED`).

        Bytes are text if they are UTF-8, else `{"hex": …}`.
        """
        shown = [self._shown(row) for row in self.rows]
        sealed = sum(SEALED in row.values() for row in shown)
        return b"".join(one_line(orjson.dumps(row)) + b"\n" for row in shown), sealed

    def _shown(self, row: Row) -> dict[str, Any]:
        kept = CONTENT[self.table]
        bound_by = [row[name] for name in BOUND_BY[self.table]]
        values: dict[str, Any] = {}
        for name in _columns(self.table):
            value, how = row[name], kept.get(name)
            if how in OPENED:
                if not self.with_content:
                    continue
                values[name] = self._opened(row, name, how, bound_by)
            else:
                values[name] = _json(value)
        return values

    def _opened(self, row: Row, name: str, how: Kept | None, bound_by: list[Any]) -> Any:
        try:
            if how is Kept.LOG:
                return _json(self.cipher.open_entries(row[name], _response(row).bytes))
            return _json(self.cipher.open(row[name], place_of(self.table, name), *bound_by))
        except ContentSealed:
            return SEALED


def rows_next(rows: int, size_bytes: int) -> int:
    """Return the rows of a page of about `PAGE_BYTES` like the last one; at most twice as many."""
    fitting = rows * PAGE_BYTES // max(size_bytes, 1)
    return max(1, min(fitting, 2 * rows, ROWS_MAX))


async def pages(
    database: Database, tenant_id: TenantId, table: str, *, with_content: bool = True
) -> AsyncIterator[ExportedPage]:
    after: dict[str, Any] = {}
    rows_max = ROWS_FIRST
    while True:
        await database.keyring.ready([tenant_id])
        async with database.owner_transaction() as connection:
            await turn_to(connection, tenant_id)
            statement = _PAGES[table][bool(after)]
            bounds = {"tenant": tenant_id, "rows_max": rows_max}
            page = await connection.execute(statement, bounds | after)
            cipher = connection.reading_cipher(tenant_id)
        if page:
            yield ExportedPage(table, page, cipher, with_content)
        if len(page) < rows_max:
            return
        after = {f"after_{name}": page[-1][name] for name in TABLES[table]}
        rows_max = rows_next(rows_max, sum(map(_size, page)))


def _size(row: Row) -> int:
    # In bytes; columns of other types are small.
    return sum(len(value) for value in row if isinstance(value, (bytes, str)))


def _response(row: Row) -> UUID:
    response_id: UUID = row["response_id"]
    return response_id


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, list):
        return list(map(_json, value))
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


class TenantArchive:
    """Zip file that is made while it is read."""

    def __init__(
        self,
        database: Database,
        tenant: Tenant,
        author: Author,
        turns: asyncio.Semaphore,
        *,
        with_content: bool,
    ) -> None:
        # `turns` bound the archives that are read at once.
        self._database = database
        self._author = author
        self._turns = turns
        self._with_content = with_content
        self.tenant = tenant
        self.files: dict[str, dict[str, object]] = {}
        """Rows, SHA-256, and rows with content that no key opens, by name."""

    async def pieces(self) -> AsyncIterator[bytes]:
        # The bytes can be read only once.
        async with self._turns, aclosing(self._generate()) as pieces:
            async for piece in pieces:
                yield piece

    async def _generate(self) -> AsyncGenerator[bytes]:
        sink = _Sink()
        with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
            for table in TABLES:
                # Whoever reads it may leave: then the file ends before its archive.
                async with aclosing(self._table(archive, sink, table)) as pieces:
                    async for piece in pieces:
                        yield piece
            manifest = {
                "tenant": {"id": str(self.tenant.id), "name": self.tenant.name},
                "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
                "content": self._with_content,
                "files": self.files,
            }
            archive.writestr("manifest.json", orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
        yield sink.taken()
        counts = {name: one["rows"] for name, one in self.files.items()}
        event = self._author.event("harmony.export.made", str(self.tenant.id), data=counts)
        async with self._database.owner_transaction() as connection:
            await audit_log.record(connection, self.tenant.id, event)

    async def _table(
        self, archive: zipfile.ZipFile, sink: _Sink, table: str
    ) -> AsyncGenerator[bytes]:
        digest, count, sealed = hashlib.sha256(), 0, 0
        with archive.open(f"{table}.jsonl", "w", force_zip64=True) as file:
            async for page in pages(
                self._database, self.tenant.id, table, with_content=self._with_content
            ):
                lines, unopened = await asyncio.to_thread(_write, file, page)
                digest.update(lines)
                count += len(page.rows)
                sealed += unopened
                if piece := sink.taken():
                    yield piece
        summary = {"rows": count, "sha256": digest.hexdigest(), "sealed": sealed}
        self.files[f"{table}.jsonl"] = summary


def _write(file: IO[bytes], page: ExportedPage) -> tuple[bytes, int]:
    lines, sealed = page.lines()
    file.write(lines)
    return lines, sealed


class _Sink(io.RawIOBase):
    """Output of an archive: it cannot seek, and `taken` returns what came since its last call."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    @override
    def writable(self) -> bool:
        return True

    @override
    def write(self, content: ReadableBuffer, /) -> int:
        self._pieces.append(bytes(content))
        return len(self._pieces[-1])

    def taken(self) -> bytes:
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken
