"""`serve` and `simulate`."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gateway.app import AdminGateway, create_app
from gateway.cli.command import Config, run
from gateway.cli.config import require_complete
from gateway.cli.provision import provisioned
from gateway.cli.reload import Reloads, hangups
from gateway.console import BASE as CONSOLE
from gateway.errors import StartupError
from gateway.server.server import Server, listen, stopped_by_signals, until_stopped
from gateway.settings import Server as ServerSettings
from gateway.settings import Settings, load_settings
from gateway.settings.sections import PORT_MAX
from gateway.telemetry.logs import EventLog, configure_logging
from gateway.wiring.foundation import load_vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp


def serve(
    config: Config = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=PORT_MAX, help="Port to listen on; 0: a free one.")
    ] = None,
) -> None:
    """Run the gateway in front of the configured backends.

    With DATABASE_URL it uses that PostgreSQL, whose schema `db upgrade` must have brought up to
    date. Without one it runs an embedded PostgreSQL in its data folder. SIGTERM drains: other
    replicas go on with what can be resumed, the rest may finish within server.drain_grace_s.
    SIGHUP reads the configuration again: backends, limits and log take effect at once.
    """
    options = {"host": host, "port": port}
    server = {name: value for name, value in options.items() if value is not None}
    run(_serve(partial(load_settings, config, {"server": server})))


async def _serve(load: Callable[[], Settings]) -> None:
    with hangups() as hangup:
        settings = load()
        configure_logging(settings.log.level, settings.log.format)
        require_complete(settings)
        await _serve_with(settings, Reloads(settings, load, hangup))


async def _serve_with(settings: Settings, reloads: Reloads) -> None:
    listener = listen(settings.server.host, settings.server.port)
    with listener, _admin_listener(settings) as admin_listener:
        # A thread beside the start of the database, which is mostly waiting.
        loading = asyncio.get_running_loop().run_in_executor(None, _load_vocabulary)
        async with provisioned(settings, is_lasting=True) as complete:
            await loading
            await _serve_gateway(complete, reloads, listener, admin_listener)


def _load_vocabulary() -> None:
    with suppress(StartupError):  # `create_app` finds the same, and raises it
        load_vocabulary()


@contextmanager
def _admin_listener(settings: Settings) -> Iterator[socket.socket | None]:
    admin = settings.admin
    if admin.port is None:
        yield None
        return
    set_by = ("admin.host", "admin.port")
    with listen(admin.host, admin.port, set_by=set_by) as listener:
        yield listener


async def _serve_gateway(
    settings: Settings,
    reloads: Reloads,
    listener: socket.socket,
    admin_listener: socket.socket | None,
) -> None:
    # Until a signal; the settings must be complete. The server that is entered first stops last,
    # and what both use ends with it.
    # The console shows clients the port, which the system may have picked.
    with_port = settings.server.model_copy(update={"port": listener.getsockname()[1]})
    app = create_app(settings.model_copy(update={"server": with_port}))
    log = EventLog(__name__)
    servers = [Server(app, listener, settings.server, app.process, websockets=settings)]
    if admin_listener is not None:
        servers.append(Server(AdminGateway(app.process), admin_listener, settings.server))
    with stopped_by_signals(*servers):
        async with AsyncExitStack() as stack:
            for server in servers:
                await stack.enter_async_context(server)
            log.info("listening", url=servers[0].url)
            for admin in servers[1:]:
                log.info("the admin API is listening", url=admin.url)
                if settings.console.enabled:
                    log.info("the console is served", url=f"{admin.url}{CONSOLE}")
            async with asyncio.TaskGroup() as group:
                reloading = group.create_task(reloads.run(app, servers))
                await _until_stopped(*servers)
                reloading.cancel()
    log.info("stopped")


def simulate(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=PORT_MAX, help="Port to listen on; 0: a free one.")
    ] = 8100,
    model: Annotated[list[str] | None, typer.Option(help="A served model; repeatable.")] = None,
    engine: Annotated[
        Literal["vllm", "sglang"], typer.Option(help="Whose token API it speaks.")
    ] = "vllm",
    engine_version: Annotated[
        str | None, typer.Option(help="The engine's version it claims to be.")
    ] = None,
) -> None:
    """Run a scripted server that speaks vLLM's token API, or SGLang's.

    There is no model in it: what it answers is written in a script. It is for trying the gateway.
    """
    from gateway.simulator.completion_wire import SimulatorOptions
    from gateway.simulator.simulated_server import create_simulator

    configure_logging("info", "auto")
    chosen: dict[str, Any] = {"models": tuple(model)} if model else {}
    if engine_version is not None:
        chosen["version"] = engine_version
    run(_simulate(create_simulator(SimulatorOptions(engine=engine, **chosen)), host, port))


async def _simulate(app: ASGIApp, host: str, port: int) -> None:
    settings, log = ServerSettings(host=host, port=port, drain_grace_s=1), EventLog(__name__)
    with listen(host, port) as listener:
        server = Server(app, listener, settings)
        with stopped_by_signals(server):
            async with server:
                log.info("listening", url=server.url)
                await _until_stopped(server)
        log.info("stopped")


async def _until_stopped(*servers: Server) -> None:
    _notify(b"READY=1")
    await until_stopped(*servers)
    _notify(b"STOPPING=1")


def _notify(state: bytes) -> None:
    # Tells the service manager, as of systemd's `Type=notify`: its variable is no setting.
    address = os.environ.get("NOTIFY_SOCKET", "")  # noqa: TID251
    if not address:
        return
    # An address in the abstract namespace begins with a null byte.
    address = "\0" + address[1:] if address.startswith("@") else address
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        sending.sendto(state, address)
