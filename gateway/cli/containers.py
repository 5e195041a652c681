from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.command import Config, run
from gateway.errors import ConfigError, StartupError
from gateway.server.server import Server, listen, stopped_by_signals, until_stopped
from gateway.settings import Server as ServerSettings
from gateway.settings import load_settings
from gateway.settings.sections import PORT_MAX
from gateway.telemetry.logs import EventLog, configure_logging

if TYPE_CHECKING:
    from gateway.settings import Settings

commands = typer.Typer(no_args_is_help=True)


@commands.callback()
def root() -> None:
    """Containers that run Python, for gateways elsewhere."""


@commands.command()
def serve(
    config: Config = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=PORT_MAX, help="Port to listen on; 0: a free one.")
    ] = 8200,
) -> None:
    """Run containers on this machine for gateways that have this URL as tools.python.remote_url.

    They show tools.python.remote_token, which must be set here, too. Code is run in bubblewrap, or
    nothing is: at the start everything is tried that it must not be able to do. The network between
    it and the gateways must be a private one.
    """
    settings = load_settings(config)
    configure_logging(settings.log.level, settings.log.format)
    run(_serve(settings, host, port))


async def _serve(settings: Settings, host: str, port: int) -> None:
    from gateway.tools.python.self_test import choose
    from gateway.tools.python.worker_server import WorkerServer, WorkerServerLimits
    from gateway.wiring.python import linux_engine

    python = settings.tools.python
    if python.remote_token is None:
        raise ConfigError(
            "there is no token that gateways would show",
            where="tools.python.remote_token",
            remedy="Set GATEWAY_TOOLS__PYTHON__REMOTE_TOKEN to the output of: openssl rand -hex 32",
        )
    log = EventLog(__name__)
    chosen = await choose([linux_engine(python)])
    if chosen.engine is None:
        raise StartupError(
            str(chosen), remedy="Run it where bubblewrap may make user namespaces: docs/python.md."
        )
    log.info(str(chosen))
    limits = WorkerServerLimits(
        containers_max=python.open_max, body_bytes_max=python.file_bytes_max + 1024
    )
    app = WorkerServer(chosen.engine, python.remote_token.get_secret_value(), limits)
    bounds = ServerSettings(host=host, port=port)
    with listen(host, port) as listener:
        server = Server(app, listener, bounds)
        with stopped_by_signals(server):
            async with asyncio.TaskGroup() as group, server:
                sweeping = group.create_task(app.run())
                log.info("listening", url=server.url)
                await until_stopped(server)
                sweeping.cancel()
    await app.close()
    log.info("stopped")
