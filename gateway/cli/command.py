"""Common parts of commands."""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
from contextlib import AsyncExitStack
from functools import cached_property
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    ParamSpec,
    TypeAlias,
    TypeVar,
    get_type_hints,
)

import typer
import uvloop

from gateway.cli import terminal
from gateway.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable
    from contextlib import AbstractAsyncContextManager

    from gateway.admin.resources import AdminServices
    from gateway.admin.tenants import Tenants
    from gateway.admin.transactions import AdminCaller
    from gateway.services.access import Access
    from gateway.settings import Settings
    from gateway.store.postgres.database import Database

Result = TypeVar("Result")
Params = ParamSpec("Params")

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="Configuration file. Default: GATEWAY_CONFIG, then ./gateway.yaml if there is one.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
TenantName = Annotated[str, typer.Argument(help="Which tenant.")]


class Installation:
    """Gateway that a command works on.

    The database is made ready at its first use: a command that refuses its arguments needs none.
    """

    def __init__(self, config: Path | None, stack: AsyncExitStack) -> None:
        self._config = config
        self._stack = stack
        self._database: Database | None = None

    @cached_property
    def settings(self) -> Settings:
        from gateway.settings import load_settings

        return load_settings(self._config)

    async def enter(self, context: AbstractAsyncContextManager[Result]) -> Result:
        # It is left when the command ends.
        return await self._stack.enter_async_context(context)

    async def database(self) -> Database:
        """Return the database; `settings` then have its URL and the pepper."""
        from gateway.cli.provision import connected, provisioned

        if self._database is None:
            self.settings = await self.enter(provisioned(self.settings))
            self._database = await self.enter(connected(self.settings))
        return self._database

    async def access(self) -> Access:
        from gateway.wiring.databases import access

        database = await self.database()
        return access(self.settings, database)

    async def tenants(self) -> Tenants:
        from gateway.wiring.admin import tenants

        access = await self.access()
        return tenants(self.settings, await self.database(), access)

    async def admin(self, tenant: str) -> tuple[AdminServices, AdminCaller]:
        from gateway.admin.transactions import AdminCaller
        from gateway.store import tenants
        from gateway.wiring.admin import admin_services

        database = await self.database()
        tenant_row = await tenants.tenant_named(database, tenant)
        services = admin_services(self.settings, database, await self.access())
        return services, AdminCaller(tenant_row.id)


Main: TypeAlias = "Callable[Concatenate[Installation, Params], Awaitable[None]]"


def command(
    group: typer.Typer, name: str, more: Iterable[Parameter] = ()
) -> Callable[[Main[Params]], Main[Params]]:
    """Register a coroutine function; `--config` takes the place of its `Installation`.

    Its other parameters are typer's; those of `more` arrive as `**options`.
    """

    def register(main: Main[Params]) -> Main[Params]:
        def run_main(config: Path | None = None, **options: Any) -> None:
            async def opened() -> None:
                async with AsyncExitStack() as stack:
                    await main(Installation(config, stack), **options)  # type: ignore[call-arg]

            run(opened())

        hints = get_type_hints(main, include_extras=True)
        _, *own = signature(main).parameters.values()
        parameters = [
            *(
                one.replace(annotation=hints[one.name])
                for one in own
                if one.kind != one.VAR_KEYWORD
            ),
            *more,
            Parameter("config", Parameter.KEYWORD_ONLY, default=None, annotation=Config),
        ]
        parameters = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in parameters]
        run_main.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run_main.__annotations__ = {one.name: one.annotation for one in parameters}
        group.command(name, help=main.__doc__)(run_main)
        return main

    return register


async def show_key(text: str, disable: Callable[[], Awaitable[object]]) -> None:
    """Print a new key, or disable it if it cannot be printed."""
    try:
        terminal.show_once(text)
    except StartupError:
        await disable()
        raise


def user_name() -> str:
    """Return the user's name, or the number of one without a name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run on uvloop. SIGTERM before the server listens ends it cleanly, like Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)
    finally:
        signal.signal(signal.SIGTERM, before)
