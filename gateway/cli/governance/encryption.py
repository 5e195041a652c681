"""`encryption`: keys of tenants, and what is stored under them."""

from __future__ import annotations

import json
import re
import secrets
from base64 import b64encode
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gateway.cli import terminal
from gateway.cli.options import Config, Json, with_database
from gateway.store import tenants

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from gateway.encryption.keyring import WrappedKey
    from gateway.services.encryption import Progress, TenantEncryption
    from gateway.settings import Settings
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

commands = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Which tenant.")]
T = TypeVar("T")
_NEXT = "what is stored follows in the background; at once: harmony-gateway encryption reseal"
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,32}\Z")


def _ask(
    config: Path | None,
    name: str,
    question: Callable[[TenantEncryption, TenantId], Awaitable[T]],
) -> T:
    async def answer(settings: Settings, database: Database) -> T:
        from gateway.cli.provision import prepared_keys
        from gateway.services.encryption import TenantEncryption

        async with prepared_keys(settings) as keys:
            found = await tenants.tenant_named(database, name)
            return await question(TenantEncryption(database, keys), found.id)

    return with_database(config, answer)


@commands.command("new-key")
def new_key(
    id_: Annotated[
        str, typer.Option("--id", help="Its name; letters, digits, '_' and '-'.")
    ] = "k1",
) -> None:
    """Print a line for the file of encryption.file.path: the first one there wraps new keys."""
    if not _KEY_ID.match(id_):
        raise typer.BadParameter("expected 1 to 32 letters, digits, '_' and '-'")
    terminal.show(f"{id_} {b64encode(secrets.token_bytes(32)).decode()}")


@commands.command()
def enable(name: Name, config: Config = None) -> None:
    """Seal what a tenant writes from now on. What is stored already: `encryption reseal`."""
    key = _ask(config, name, lambda encryption, tenant_id: encryption.enable(tenant_id))
    terminal.show(f"tenant {name} has key {key.number}; {_NEXT} {name}")


@commands.command()
def rotate(name: Name, config: Config = None) -> None:
    """Seal with a new key from now on; older ones go on to open what they sealed."""
    key = _ask(config, name, lambda encryption, tenant_id: encryption.rotate(tenant_id))
    terminal.show(f"tenant {name} has key {key.number}; {_NEXT} {name}")


@commands.command()
def disable(name: Name, config: Config = None) -> None:
    """Seal nothing more of a tenant. What is sealed stays so until `encryption reseal`."""
    _ask(config, name, lambda encryption, tenant_id: encryption.disable(tenant_id))
    terminal.show(f"what tenant {name} writes is not sealed any more")


@commands.command()
def status(name: Name, config: Config = None, json_: Json = False) -> None:
    """List the keys of a tenant: which seals, which only open, which were destroyed."""

    async def ask(
        encryption: TenantEncryption, tenant_id: TenantId
    ) -> tuple[list[WrappedKey], str]:
        return await encryption.keys(tenant_id), await encryption.progress(tenant_id)

    found, progress = _ask(config, name, ask)
    rows = [
        (
            str(key.number),
            key.provider,
            key.key_ref,
            "destroyed" if key.destroyed_at else "opens" if key.retired_at else "seals",
        )
        for key in found
    ]
    columns = ("NUMBER", "PROVIDER", "WRAPPED WITH", "STATE")
    if json_:
        names = [column.lower().replace(" ", "_") for column in columns]
        terminal.show(json.dumps([dict(zip(names, row, strict=True)) for row in rows]))
        return
    terminal.table(columns, rows)
    if progress:
        terminal.show(progress)


@commands.command()
def reseal(
    name: Name,
    rows_per_s: Annotated[float, typer.Option(min=1, help="Rows a second at most.")] = 2_000,
    destroy_older: Annotated[
        bool, typer.Option("--destroy-older", help="Then destroy the keys before the newest.")
    ] = False,
    config: Config = None,
) -> None:
    """Bring all that is stored of a tenant under the key that seals now, while it is served."""
    last: dict[str, Progress] = {}

    def tell(progress: Progress) -> None:
        last[progress.table] = progress

    written = _ask(
        config,
        name,
        lambda encryption, tenant_id: encryption.reseal(
            tenant_id, rows_per_s=rows_per_s, destroys_older=destroy_older, tell=tell
        ),
    )
    terminal.show(f"{written} rows of tenant {name} were brought under its newest key")


@commands.command()
def shred(
    name: Name,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it: what was sealed is lost for good.")
    ] = False,
    config: Config = None,
) -> None:
    """Destroy the keys of a tenant: all that they sealed is unreadable, in every backup, too."""
    if not yes:
        raise typer.BadParameter("this cannot be undone; say --yes", param_hint="--yes")
    destroyed = _ask(config, name, lambda encryption, tenant_id: encryption.shred(tenant_id))
    terminal.show(f"{destroyed} keys of tenant {name} were destroyed")
