"""`data`: what is kept of tenants: retention, erasure, deletion and archives."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, TypeVar

import typer

from gateway.cli import terminal
from gateway.cli.options import Config, Json, with_database
from gateway.protocol.request_errors import validated
from gateway.store import tenants

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from gateway.retention.tenant_data import TenantData
    from gateway.settings import Settings
    from gateway.store.postgres.database import Database

commands = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Which tenant.")]
NewFile = Annotated[Path, typer.Argument(help="A zip file that is not there yet.")]
T = TypeVar("T")


def _ask(config: Path | None, question: Callable[[TenantData, Database], Awaitable[T]]) -> T:
    async def answer(settings: Settings, database: Database) -> T:
        from gateway.cli.provision import prepared_keys
        from gateway.retention.tenant_data import TenantData

        async with prepared_keys(settings) as keys:
            data = TenantData(database, keys, end_user_secret=_end_user_secret(settings))
            return await question(data, database)

    return with_database(config, answer)


def _end_user_secret(settings: Settings) -> bytes | None:
    # None: the secret is not configured here.
    if settings.auth.key_pepper is None and settings.cache_salt_secret is None:
        return None
    return settings.cache_salt_key


@commands.command()
def retention(
    name: Name,
    type_: Annotated[
        str | None, typer.Argument(metavar="[none|zero_data_retention]", help="The new type.")
    ] = None,
    config: Config = None,
) -> None:
    """Show or set what is kept of a tenant. Its projects may have types of their own."""

    async def ask(_: TenantData, database: Database) -> str:
        from gateway.admin.data_retention import (
            DataRetentionUpdate,
            RetentionControls,
            organization_body,
        )
        from gateway.admin.transactions import AdminCaller, Transactions

        found = await tenants.tenant_named(database, name)
        transactions = Transactions(database, lambda: None)
        controls = RetentionControls(database, transactions, lambda: None)
        if type_ is not None:
            body = validated(DataRetentionUpdate, {"retention_type": type_})
            await controls.set_of_organization(AdminCaller(found.id), body)
        return str(organization_body(await controls.of_organization(found.id))["type"])

    terminal.show(f"tenant {name}: {_ask(config, ask)}")


@commands.command()
def erase(
    name: Name,
    person: Annotated[str, typer.Argument(help="A safety_identifier or user of requests.")],
    config: Config = None,
    json_: Json = False,
) -> None:
    """Erase a person: all stored responses that were for it, what continues them for nobody else,
    and what they used and nobody else does.
    """
    erased = _ask(config, lambda data, _: data.erase_person(name, person))
    if json_:
        told = {
            "responses": erased.responses,
            "conversations": erased.conversations,
            "sealed": erased.sealed,
            "busy": erased.busy,
            "rows": dict(erased.rows),
        }
        terminal.show(json.dumps(told))
        return
    terminal.show(f"{erased.responses} responses and {erased.conversations} conversations erased")
    if erased.rows:
        terminal.show(", ".join(f"{count} of {name}" for name, count in erased.rows.items()))
    if erased.sealed:
        terminal.show(f"{erased.sealed} responses could not be opened: their key is gone")
    if erased.busy:
        terminal.show(
            f"{erased.busy} conversations are left: a response of somebody else is being added to "
            "each; erase again when it has ended"
        )


@commands.command()
def delete(name: Name, config: Config = None) -> None:
    """Delete a tenant: its keys stop working, and its data is removed after seven days."""
    _ask(config, lambda data, _: data.delete(name))
    terminal.show(
        f"tenant {name} deleted; for seven days: harmony-gateway data restore {name}; then:"
        " harmony-gateway data purge"
    )


@commands.command()
def restore(name: Name, config: Config = None) -> None:
    """Take the deletion of a tenant back, within seven days."""
    _ask(config, lambda data, _: data.restore(name))
    terminal.show(f"tenant {name} restored")


@commands.command()
def hold(
    name: Name,
    release: Annotated[bool, typer.Option("--release", help="Hold it no more.")] = False,
    config: Config = None,
) -> None:
    """Keep all data of a tenant from being removed, as the law may ask for: nothing expires, is
    erased, shredded or purged, and clients can delete nothing.
    """
    _ask(config, lambda data, _: data.hold(name, is_held=not release))
    terminal.show(f"tenant {name} is {'not held any more' if release else 'held'}")


@commands.command()
def purge(config: Config = None, json_: Json = False) -> None:
    """Remove the data of tenants that were deleted seven days ago. Run it once a day.

    Their keys are destroyed first, so that what was encrypted is unreadable in backups, too.
    """
    removed = _ask(config, lambda data, _: data.purge())
    if json_:
        rows = [{"tenant": one.tenant, "keys": one.keys, "rows": one.rows} for one in removed]
        terminal.show(json.dumps(rows))
        return
    for one in removed:
        terminal.show(f"tenant {one.tenant}: {one.keys} keys, {sum(one.rows.values())} rows")
    if not removed:
        terminal.show("nothing is due")


@commands.command()
def export(
    name: Name,
    path: NewFile,
    config: Config = None,
) -> None:
    """Write an archive of all that a tenant has, its content in the clear: JSON lines by table."""

    async def ask(data: TenantData, _: Database) -> dict[str, dict[str, object]]:
        with _new_file(path) as file:
            archive = await data.export(name)
            async for piece in archive.pieces():
                file.write(piece)
        return archive.files

    try:
        files = _ask(config, ask)
    except FileExistsError as error:
        raise typer.BadParameter("that file is there already", param_hint="PATH") from error
    except OSError as error:
        why = f"it cannot be written: {error.strerror or error}"
        raise typer.BadParameter(why, param_hint="PATH") from error
    rows = sum(int(str(one["rows"])) for one in files.values())
    terminal.show(f"{rows} rows of tenant {name} are in {path}")
    if sealed := sum(int(str(one["sealed"])) for one in files.values()):
        terminal.show(f"{sealed} of them have content that could not be opened: its key is gone")


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    # The file must not exist, and only its owner can read it. It is deleted if writing fails.
    # Raises `OSError`.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        try:
            yield file
        except BaseException:
            path.unlink()
            raise
