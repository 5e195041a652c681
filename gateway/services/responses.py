"""Create, read and delete responses: what the API means, without HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway import ids
from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.runs.live import LiveLog
from gateway.runs.runner import Run
from gateway.store import messages, responses as rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from gateway.protocol.events import Event
    from gateway.protocol.requests import CreateResponse
    from gateway.runs.archive import Archive
    from gateway.runs.runner import Engine
    from gateway.runs.specification import RunSpecification
    from gateway.runs.supervisor import Supervisor
    from gateway.services.preparation import Preparation
    from gateway.store.engine import Database
    from gateway.tenancy import Principal


class Generation:
    """A response under way, as its creator sees it."""

    def __init__(self, live: LiveLog, run: Run) -> None:
        self._live = live
        self._run = run

    def cancel(self) -> None:
        """The client is gone. Does nothing to a response that is over."""
        self._run.cancel()

    async def produced(self) -> None:
        """Wait for the first output, or the end. Raises what made it fail before any output."""
        await self._live.produced.wait()
        if self._live.failure is not None and not self._live.fold.usage.output_tokens:
            raise self._live.failure

    def follow(self) -> AsyncIterator[list[Event]]:
        """All events, as they come; the last one is terminal."""
        return self._live.follow()

    async def response(self) -> dict[str, Any]:
        """The finished Response object. Raises what made it fail."""
        await self._live.closed.wait()
        if self._live.failure is not None:
            raise self._live.failure
        return self._live.fold.response()
