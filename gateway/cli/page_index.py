"""`pages`: the local index of `web_search`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import typer

from gateway.cli import terminal
from gateway.cli.command import Installation, Json, command
from gateway.errors import StartupError
from gateway.store import tenants
from gateway.store.tools import web_pages
from gateway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from gateway.settings import Settings
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId
    from gateway.tools.browser.index_loader import Loaded

commands = typer.Typer(no_args_is_help=True)

LISTED_MAX: Final = 10_000
SCHEMES: Final = ("http://", "https://")


@dataclass(frozen=True, slots=True)
class PageSource:
    """A URL, with up to `pages_max` pages, or a file or folder, cited by `url`."""

    place: str
    url: str | None = None
    pages_max: int = 1


OfTenant = Annotated[
    str | None,
    typer.Option("--tenant", help="Only for this tenant. Default: for all.", show_default=False),
]


@command(commands, "add")
async def add_pages(
    gateway: Installation,
    source: Annotated[
        str, typer.Argument(help="A URL, a file (html, md, txt, pdf) or a folder of such files.")
    ],
    url: Annotated[
        str | None,
        typer.Option(
            help="Where readers find the file, or the folder: it is cited so. "
            "Default: below https://pages.invalid/, which leads nowhere."
        ),
    ] = None,
    pages: Annotated[
        int,
        typer.Option(min=1, max=LISTED_MAX, help="Of a URL: follow links of its host, to so many."),
    ] = 1,
    tenant: OfTenant = None,
) -> None:
    """Add pages, each in the place of what its URL had before. Exit code 1: none could be added."""
    is_url = source.startswith(SCHEMES)
    if (url is not None and not _is_url(url)) or (is_url and not _is_url(source)):
        where = "SOURCE" if url is None else "--url"
        raise typer.BadParameter("expected a URL such as https://docs.example/", param_hint=where)
    database = await gateway.database()
    tenant_id = await _tenant_id(database, tenant)
    page_source = PageSource(source, url, pages)
    total = pages if is_url else None
    with terminal.progress("pages", total) as on_page:
        added = await load(
            gateway.settings, database, page_source, tenant_id=tenant_id, on_page=on_page
        )
    if added:
        await web_pages.note_documents_added(database, tenant_id, source, added)
    terminal.show(f"{added} added; see: harmony-gateway pages list")
    if not added:
        raise typer.Exit(terminal.FAILED)


@command(commands, "list")
async def list_pages(gateway: Installation, tenant: OfTenant = None, json_: Json = False) -> None:
    """List the pages of all tenants, or those that are only for one."""
    database = await gateway.database()
    tenant_id = await _tenant_id(database, tenant)
    pages = await web_pages.documents_of(database, tenant_id, rows_max=LISTED_MAX)
    names = {one.id: one.name for one in await tenants.all_tenants(database)}
    terminal.listing(
        [
            {
                "url": one.url,
                "title": one.title,
                "tenant": names[one.tenant_id] if one.tenant_id else None,
                "chars": one.chars,
                "added_at": one.added_at.isoformat(),
            }
            for one in pages
        ],
        {
            "URL": "url",
            "TITLE": "title",
            "FOR": lambda one: one["tenant"] or "all",
            "CHARS": "chars",
            "ADDED": lambda one: f"{datetime.fromisoformat(one['added_at']):%Y-%m-%d}",
        },
        as_json=json_,
    )


@command(commands, "remove")
async def remove_pages(
    gateway: Installation,
    url: Annotated[str, typer.Argument(help="A page, or what the URLs of several begin with.")],
    tenant: OfTenant = None,
) -> None:
    """Remove a page and all pages below it. Exit code 1: there is none."""
    database = await gateway.database()
    removed = await web_pages.remove_documents(database, await _tenant_id(database, tenant), url)
    terminal.show(f"{removed} removed")
    if not removed:
        raise typer.Exit(terminal.FAILED)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return text.startswith(SCHEMES) and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


async def _tenant_id(database: Database, name: str | None) -> TenantId | None:
    return None if name is None else (await tenants.tenant_named(database, name)).id


async def load(
    settings: Settings,
    database: Database,
    source: PageSource,
    *,
    tenant_id: TenantId | None = None,
    quiet: bool = False,
    on_page: Callable[[int], None] = lambda _: None,
) -> int:
    """Add pages to the index of a tenant (None: of all tenants); return how many.

    With `quiet` a line is printed only for a failure.
    """
    from gateway.tools.browser.index_loader import Loader
    from gateway.wiring.web import Workshop

    workshop = Workshop.of(settings.tools.web, Metrics())
    language = settings.tools.web.index_language
    loader = Loader(database, workshop.fetcher, workshop.reader, language, tenant_id)
    try:
        if source.place.startswith(SCHEMES):
            loading = loader.add_url(source.place, pages_max=source.pages_max)
        else:
            loading = loader.add_path(Path(source.place), source.url)
        return await _report(loading, on_page, quiet=quiet)
    except OSError as error:
        raise StartupError(
            f"cannot read {source.place}: {error.strerror}",
            remedy="Name a file, a folder, or a URL that begins with http:// or https://.",
        ) from error
    finally:
        await workshop.close()


async def _report(
    loading: AsyncIterator[Loaded], on_page: Callable[[int], None], *, quiet: bool
) -> int:
    added = 0
    async for one in loading:
        on_page(1)
        added += not one.error
        if one.error:
            terminal.step(terminal.BAD, "not added", f"{one.url}: {one.error}")
            if one.is_refused:
                terminal.show("      A host of your own has to be in tools.web.allowed_hosts.")
        elif not quiet:
            terminal.step(terminal.OK, "added", f"{one.url} {one.title}")
    return added
