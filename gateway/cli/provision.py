from __future__ import annotations

import os
import re
import secrets
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import IO, TYPE_CHECKING, Final

from gateway.errors import StartupError
from gateway.store.migration.verification import missing, summary
from gateway.store.schema import REVISION, is_older
from gateway.store.tenant_keys import TenantKeys
from gateway.wiring.databases import connect, keys_database, new_keyring

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path

    from gateway.settings import Settings
    from gateway.store.postgres.database import Database

PEPPER_BYTES = 32
BASE_URL: Final = "OPENAI_BASE_URL"
API_KEY: Final = "OPENAI_API_KEY"
ADMIN_KEY: Final = "OPENAI_ADMIN_KEY"
PROJECT_KEY: Final = "DEMO_PROJECT_API_KEY"
"""Variable of the key of the demo's second project."""
_EXPORT: Final = re.compile(r"^export (\w+)=(\S+)$", re.MULTILINE)


@asynccontextmanager
async def provisioned(settings: Settings, *, is_lasting: bool = False) -> AsyncIterator[Settings]:
    """Yield settings with the URL of a migrated database and with the pepper.

    Without a URL the embedded PostgreSQL runs during the block; with `is_lasting` not that of
    another process, which may end before.
    """
    if settings.database.url is None:
        with embedded_database(settings.data_dir, is_lasting=is_lasting) as url:
            pepper = load_pepper(settings.data_dir)
            complete = settings.with_database_url(url).with_pepper(pepper)
            await bring_up_to_date(complete)
            yield complete
        return
    _ = settings.pepper
    async with connected(settings) as database:
        await require_schema(database)
    yield settings


async def bring_up_to_date(settings: Settings) -> None:
    """Migrate the database if needed: only that imports Alembic, which takes long."""
    async with connected(settings) as database:
        if await database.revision() == REVISION and not await missing(database):
            return
    from gateway.store.migration.migrate import upgrade

    await upgrade(settings.database_url)


async def require_schema(database: Database) -> None:
    """Raise `StartupError` for a schema that this release cannot serve from.

    A newer one will do if it lacks nothing: a replica may be restarted in the middle of an upgrade.
    """
    revision = await database.revision()
    if revision is None or is_older(revision):
        raise StartupError(
            "the database's schema is not the one of this release",
            remedy="Run: harmony-gateway db upgrade",
        )
    lacking = [fact for fact in await missing(database) if fact.stops]
    if not lacking:
        return
    if revision == REVISION:
        raise StartupError(
            f"the database's schema has the right revision, but lacks: {summary(lacking)}",
            remedy="Run: harmony-gateway db upgrade",
        )
    raise StartupError(
        f"the database's schema is that of a newer release, and lacks: {summary(lacking)}",
        remedy="Start the release that the database was upgraded with, or a newer one.",
    )


@contextmanager
def embedded_database(data_dir: Path, *, is_lasting: bool = False) -> Iterator[str]:
    """Yield the URL of the embedded PostgreSQL, which ends here if it was started here.

    Raises `DatabaseInUse` if `is_lasting` and another process runs it.
    """
    from gateway.devdb.embedded import EmbeddedPostgres

    make_folder(data_dir)
    with EmbeddedPostgres(data_dir / "postgres", is_lasting=is_lasting) as server:
        yield server.url


@asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[Database]:
    keys = keys_database(settings)
    keyring = new_keyring(settings, keys)
    database = connect(settings, keyring=keyring)
    try:
        yield database
    finally:
        await database.close()
        await keyring.close()
        if keys is not None:
            await keys.close()


@asynccontextmanager
async def prepared_keys(settings: Settings) -> AsyncIterator[TenantKeys | None]:
    database = keys_database(settings)
    if database is None:
        yield None
        return
    try:
        keys = TenantKeys(database)
        await keys.prepare()
        yield keys
    finally:
        await database.close()


def load_pepper(data_dir: Path) -> str:
    path = data_dir / "pepper"
    with suppress(FileExistsError), new_file(path) as file:
        file.write(f"{secrets.token_hex(PEPPER_BYTES)}\n".encode())
    pepper = path.read_text(encoding="ascii").strip()
    if not pepper:  # the process that made the file was killed
        raise StartupError(
            f"{path} is empty",
            remedy="Restore it from a backup, or remove it: then no key works that was made with "
            "the pepper that it had.",
        )
    return pepper


def make_folder(path: Path) -> None:
    # Other users can pass through the folder but not list it: PostgreSQL may run as another user.
    try:
        path.mkdir(mode=0o711, parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(
            f"cannot make the folder {path}: {error.strerror}",
            remedy="Name another with GATEWAY_DATA_DIR, or use a database of yours: DATABASE_URL.",
        ) from error


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Make a file that nobody else can read; without what the block writes there is none."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        try:
            yield file
            file.flush()
        except BaseException:
            path.unlink()
            raise


def write_private(path: Path, text: str) -> None:
    """Write a file that nobody else can read at any time."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, mode=0o600)

    with open(path, "w", encoding="utf-8", opener=opener) as file:
        file.write(text)


def demo_file(data_dir: Path) -> Path:
    # Base URL and key of the demo, for OpenAI's clients and for `launch`. Written by the process
    # that holds the folder's database; it stays, so that the next demo finds its key.
    return data_dir / "demo.env"


def demo_examples_file(data_dir: Path) -> Path:
    return data_dir / "demo-examples.txt"


def write_demo(data_dir: Path, variables: Mapping[str, str]) -> Path:
    path = demo_file(data_dir)
    lines = (f"export {name}={value}\n" for name, value in variables.items())
    write_private(path, "".join(lines))
    return path


def saved_demo(data_dir: Path) -> dict[str, str]:
    try:
        text = demo_file(data_dir).read_text(encoding="utf-8")
    except OSError:
        return {}
    return dict(_EXPORT.findall(text))
