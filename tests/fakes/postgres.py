"""A real PostgreSQL for tests: the embedded server without its durability, and its databases."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from gateway.devdb.embedded import EmbeddedPostgres
from tests.fakes import janitor

if TYPE_CHECKING:
    from collections.abc import Iterator

FAST: Final = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    # Many gateways share one server.
    "max_connections": "300",
}
MEMORY_NEEDED_BYTES: Final = 4 * 2**30
_counter = itertools.count(1)


def server_programs() -> Path | None:
    """The `bin` folder in TEST_POSTGRES_BIN, to test another version; None: the wheel's."""
    chosen = os.environ.get("TEST_POSTGRES_BIN")
    return Path(chosen) if chosen else None


@contextmanager
def reachable_folder() -> Iterator[Path]:
    """A temporary folder that the server's account can pass through; pytest's own are private."""
    folder = Path(tempfile.mkdtemp(prefix=janitor.folder_prefix(), dir=_memory()))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _memory() -> Path | None:
    """Where files cost no disk, if there is room for some hundred small databases."""
    folder = Path("/dev/shm")
    roomy = folder.is_dir() and shutil.disk_usage(folder).free > MEMORY_NEEDED_BYTES
    return folder if roomy else None


def embedded(data_dir: Path, *, is_lasting: bool = False) -> EmbeddedPostgres:
    """Not started. Forgets what it promised when the machine stops."""
    return EmbeddedPostgres(
        data_dir, bin_dir=server_programs(), settings=FAST, is_lasting=is_lasting
    )


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A running server; `url` is its superuser's, of a database that tests leave alone."""

    url: str

    def database_url(self, name: str, *, user: str | None = None) -> str:
        """The URL of another database, for the superuser or for a user without a password."""
        parts = urlsplit(self.url)
        authority = parts.netloc if user is None else f"{user}:secret@"
        rest = urlunsplit(("", "", f"/{name}", parts.query, ""))
        return f"postgresql://{authority}{rest}"

    async def execute(self, statement: str, *, database: str = "postgres") -> None:
        """One statement as the superuser, outside of a transaction."""
        connection = await asyncpg.connect(self.database_url(database))
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    async def fetch(self, query: str, *, url: str | None = None) -> list[Any]:
        """Rows of a query as the superuser, or as whoever `url` names."""
        connection = await asyncpg.connect(url or self.url)
        try:
            return list(await connection.fetch(query))
        finally:
            await connection.close()

    async def create(self, template: str = "template1", *, owner: str | None = None) -> str:
        """The name of a new database. Copying files takes half as long as logging blocks."""
        name = f"test_{next(_counter)}"
        owned = f" OWNER {owner}" if owner else ""
        await self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY{owned}")
        return name

    async def drop(self, name: str) -> None:
        """Whoever is still connected is thrown out."""
        await self.execute(f"DROP DATABASE {name} WITH (FORCE)")
