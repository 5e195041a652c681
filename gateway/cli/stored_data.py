"""`data` and `encryption`."""

from __future__ import annotations

import json
import re
import secrets
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.admin.data_controls import DataRetentionUpdate, organization_body
from gateway.cli import terminal
from gateway.cli.command import Installation, Json, TenantName, command
from gateway.cli.provision import new_file, prepared_keys
from gateway.protocol.request_errors import validated
from gateway.retention.tenant_data import TenantData
from gateway.services.tenant_encryption import TenantEncryption
from gateway.store import tenants

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.encryption.keyring import WrappedKey
    from gateway.tenancy import TenantId

data = typer.Typer(no_args_is_help=True)
encryption = typer.Typer(no_args_is_help=True)

NewFile = Annotated[Path, typer.Argument(help="A zip file that is not there yet.")]
_NEXT = "what is stored follows in the background; at once: harmony-gateway encryption reseal"
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,32}\Z")


async def _tenant_data(
    gateway: Installation, on_rows: Callable[[int], None] = lambda _: None
) -> TenantData:
    database = await gateway.database()
    settings = gateway.settings
    keys = await gateway.enter(prepared_keys(settings))
    is_configured = settings.auth.key_pepper is not None or settings.cache_salt_secret is not None
    secret = settings.cache_salt_key if is_configured else None
    return TenantData(database, keys, end_user_secret=secret, on_rows=on_rows)


async def _encryption_of(gateway: Installation, name: str) -> tuple[TenantEncryption, TenantId]:
    database = await gateway.database()
    keys = await gateway.enter(prepared_keys(gateway.settings))
    tenant = await tenants.tenant_named(database, name)
    return TenantEncryption(database, keys), tenant.id


@command(data, "retention")
async def retention(
    gateway: Installation,
    name: TenantName,
    type_: Annotated[
        str | None, typer.Argument(metavar="[none|zero_data_retention]", help="The new type.")
    ] = None,
) -> None:
    """Show or set what is kept of a tenant. Its projects may have types of their own."""
    services, caller = await gateway.admin(name)
    if type_ is not None:
        body = validated(DataRetentionUpdate, {"retention_type": type_})
        await services.data_controls.set_of_organization(caller, body)
    type_ = await services.data_controls.of_organization(caller.tenant_id)
    terminal.show(f"tenant {name}: {organization_body(type_)['type']}")


@command(data, "erase")
async def erase(
    gateway: Installation,
    name: TenantName,
    person: Annotated[str, typer.Argument(help="A safety_identifier or user of requests.")],
    json_: Json = False,
) -> None:
    """Erase a person: all stored responses that were for it, what continues them for nobody else,
    and what they used and nobody else does.
    """
    with terminal.progress("responses read") as on_rows:
        erased = await (await _tenant_data(gateway, on_rows)).erase_person(name, person)
    if json_:
        report = {
            "responses": erased.responses,
            "conversations": erased.conversations,
            "sealed": erased.sealed,
            "busy": erased.busy,
            "rows": dict(erased.rows),
        }
        terminal.show(json.dumps(report))
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


@command(data, "delete")
async def delete(gateway: Installation, name: TenantName) -> None:
    """Delete a tenant: its keys stop working, and its data is removed after seven days."""
    await (await _tenant_data(gateway)).delete(name)
    terminal.show(
        f"tenant {name} deleted; for seven days: harmony-gateway data restore {name}; then:"
        " harmony-gateway data purge"
    )


@command(data, "restore")
async def restore(gateway: Installation, name: TenantName) -> None:
    """Take the deletion of a tenant back, within seven days."""
    await (await _tenant_data(gateway)).restore(name)
    terminal.show(f"tenant {name} restored")


@command(data, "hold")
async def hold(
    gateway: Installation,
    name: TenantName,
    release: Annotated[bool, typer.Option("--release", help="Hold it no more.")] = False,
) -> None:
    """Keep all data of a tenant from being removed, as the law may ask for: nothing expires, is
    erased, shredded or purged, and clients can delete nothing.
    """
    await (await _tenant_data(gateway)).hold(name, is_held=not release)
    terminal.show(f"tenant {name} is {'not held any more' if release else 'held'}")


@command(data, "purge")
async def purge(gateway: Installation, json_: Json = False) -> None:
    """Remove the data of tenants that were deleted seven days ago. Run it once a day.

    Their keys are destroyed first, so that what was encrypted is unreadable in backups, too.
    """
    with terminal.progress("rows removed") as on_rows:
        removed = await (await _tenant_data(gateway, on_rows)).purge()
    if json_:
        rows = [{"tenant": one.tenant, "keys": one.keys, "rows": one.rows} for one in removed]
        terminal.show(json.dumps(rows))
        return
    for one in removed:
        terminal.show(f"tenant {one.tenant}: {one.keys} keys, {sum(one.rows.values())} rows")
    if not removed:
        terminal.show("nothing is due")


@command(data, "export")
async def export(gateway: Installation, name: TenantName, path: NewFile) -> None:
    """Write an archive of all that a tenant has, its content in the clear: JSON lines by table."""
    stored = await _tenant_data(gateway)
    try:
        with new_file(path) as file, terminal.progress("bytes written") as on_bytes:
            archive = await stored.export(name)
            async for piece in archive.pieces():
                on_bytes(file.write(piece))
    except FileExistsError as error:
        raise typer.BadParameter("that file is there already", param_hint="PATH") from error
    except OSError as error:
        why = f"it cannot be written: {error.strerror or error}"
        raise typer.BadParameter(why, param_hint="PATH") from error
    rows = sum(int(str(one["rows"])) for one in archive.files.values())
    terminal.show(f"{rows} rows of tenant {name} are in {path}")
    if sealed := sum(int(str(one["sealed"])) for one in archive.files.values()):
        terminal.show(f"{sealed} of them have content that could not be opened: its key is gone")


@encryption.command("new-key")
def new_key(
    id_: Annotated[
        str, typer.Option("--id", help="Its name; letters, digits, '_' and '-'.")
    ] = "k1",
) -> None:
    """Print a line for the file of encryption.file.path: the first one there wraps new keys."""
    if not _KEY_ID.match(id_):
        raise typer.BadParameter("expected 1 to 32 letters, digits, '_' and '-'")
    terminal.show_once(f"{id_} {b64encode(secrets.token_bytes(32)).decode()}")


@command(encryption, "enable")
async def enable(gateway: Installation, name: TenantName) -> None:
    """Seal what a tenant writes from now on. What is stored already: `encryption reseal`."""
    sealing, tenant_id = await _encryption_of(gateway, name)
    key = await sealing.enable(tenant_id)
    terminal.show(f"tenant {name} has key {key.number}; {_NEXT} {name}")


@command(encryption, "rotate")
async def rotate(gateway: Installation, name: TenantName) -> None:
    """Seal with a new key from now on; older ones go on to open what they sealed."""
    sealing, tenant_id = await _encryption_of(gateway, name)
    key = await sealing.rotate(tenant_id)
    terminal.show(f"tenant {name} has key {key.number}; {_NEXT} {name}")


@command(encryption, "disable")
async def disable(gateway: Installation, name: TenantName) -> None:
    """Seal nothing more of a tenant. What is sealed stays so until `encryption reseal`."""
    sealing, tenant_id = await _encryption_of(gateway, name)
    await sealing.disable(tenant_id)
    terminal.show(f"what tenant {name} writes is not sealed any more")


@command(encryption, "status")
async def status(gateway: Installation, name: TenantName, json_: Json = False) -> None:
    """List the keys of a tenant: which seals, which only open, which were destroyed."""
    sealing, tenant_id = await _encryption_of(gateway, name)
    progress = "" if json_ else await sealing.progress(tenant_id)
    terminal.listing(
        [
            {
                "number": str(key.number),
                "provider": key.provider,
                "wrapped_with": key.key_ref,
                "state": _key_state(key),
            }
            for key in await sealing.keys(tenant_id)
        ],
        {
            "NUMBER": "number",
            "PROVIDER": "provider",
            "WRAPPED WITH": "wrapped_with",
            "STATE": "state",
        },
        as_json=json_,
    )
    if progress:
        terminal.show(progress)


def _key_state(key: WrappedKey) -> str:
    if key.destroyed_at:
        return "destroyed"
    return "opens" if key.retired_at else "seals"


@command(encryption, "reseal")
async def reseal(
    gateway: Installation,
    name: TenantName,
    rows_per_s: Annotated[float, typer.Option(min=1, help="Rows a second at most.")] = 2_000,
    destroy_older: Annotated[
        bool, typer.Option("--destroy-older", help="Then destroy the keys before the newest.")
    ] = False,
) -> None:
    """Bring all that is stored of a tenant under the key that seals now, while it is served."""
    sealing, tenant_id = await _encryption_of(gateway, name)
    with terminal.progress("rows read") as on_rows:
        written = await sealing.reseal(
            tenant_id, rows_per_s=rows_per_s, destroys_older=destroy_older, on_rows=on_rows
        )
    terminal.show(f"{written} rows of tenant {name} were brought under its newest key")


@command(encryption, "shred")
async def shred(
    gateway: Installation,
    name: TenantName,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it: what was sealed is lost for good.")
    ] = False,
) -> None:
    """Destroy the keys of a tenant: all that they sealed is unreadable, in every backup, too."""
    if not yes:
        raise typer.BadParameter("this cannot be undone; say --yes", param_hint="--yes")
    sealing, tenant_id = await _encryption_of(gateway, name)
    destroyed = await sealing.shred(tenant_id)
    terminal.show(f"{destroyed} keys of tenant {name} were destroyed")
