"""Gateways in front of backends of vLLM versions that hold a model to a grammar, or do not."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.observation import Backends
from tests.fakes.serving import serving
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions
from tests.integration.api.tools.asking import Asker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.postgres import PostgresServer

WITH_GRAMMARS = "0.33.0"
WITHOUT = "0.10.2"
FLEETS = {"grammars": (WITH_GRAMMARS,), "no grammars": (WITHOUT,), "both": (WITHOUT, WITH_GRAMMARS)}


@asynccontextmanager
async def asker_of(
    postgres: PostgresServer, template: str, versions: tuple[str, ...], **sections: Any
) -> AsyncIterator[Asker]:
    """A client of a new gateway with backends `b0`, `b1` … of these versions."""
    database = await postgres.create(template)
    async with AsyncExitStack() as stack:
        urls = [
            await stack.enter_async_context(
                serving(create_simulator(WaywardOptions(name=f"b{at}", version=version)))
            )
            for at, version in enumerate(versions)
        ]
        settings = gateway_settings(postgres.database_url(database), urls, **sections)
        running = await stack.enter_async_context(running_gateway(settings))
        client = await stack.enter_async_context(http_client(running.url, headers=running.headers))
        observer = await stack.enter_async_context(http_client())
        yield Asker(
            client,
            Backends(tuple(urls), observer),
            running.process.foundation.database,
            holds=WITH_GRAMMARS in versions,
        )
    await postgres.drop(database)
