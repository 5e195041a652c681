"""Create, read and delete responses: what the API means, without HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from gateway import ids
from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.runs.live import LiveLog
from gateway.runs.runner import Run
from gateway.store import messages
from gateway.store import responses as rows

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from uuid import UUID

    from gateway.output.fold import Fold
    from gateway.protocol.events import Event
    from gateway.protocol.requests import CreateResponse
    from gateway.runs.runner import Engine
    from gateway.runs.specification import RunSpecification
    from gateway.runs.supervisor import Supervisor
    from gateway.services.preparation import Preparation
    from gateway.store.engine import Database
    from gateway.store.messages import ItemPage
    from gateway.tenancy import Principal


class Generation:
    """A response under way, as the one who asked for it sees it."""

    def __init__(self, specification: RunSpecification, live: LiveLog, run: Run) -> None:
        self._live = live
        self._run = run
        self.response_id = ids.response_id(specification.head.uuid)
        self.model = specification.model

    @property
    def first_token_s(self) -> float | None:
        """Seconds from the request to the first token; None while there is none."""
        return self._run.first_token_s

    def cancel(self) -> None:
        """The client is gone. Does nothing to a response that is over."""
        self._run.cancel()

    async def recorded(self) -> None:
        """Wait until what `store: true` promises is in the database. Raises why it is not."""
        await self._run.begun.wait()
        if self._live.closed.is_set() and self._live.failure is not None:
            raise self._live.failure

    async def produced(self) -> None:
        """Wait for the first output, or the end. Raises what made it fail before any output."""
        await self._live.produced.wait()
        if self._live.failure is not None and not self._live.fold.usage.output_tokens:
            raise self._live.failure

    def follow(self) -> AsyncGenerator[list[Event], None]:
        """All events, as they come; the last one is terminal."""
        return self._live.follow()

    async def response(self) -> dict[str, Any]:
        """The finished Response object. Raises what made it fail."""
        await self._live.closed.wait()
        if self._live.failure is not None:
            raise self._live.failure
        return self._live.fold.response()


class Responses:
    """The use cases of `/v1/responses`."""

    def __init__(
        self,
        *,
        database: Database,
        preparation: Preparation,
        engine: Engine,
        supervisor: Supervisor,
        new_fold: Callable[[RunSpecification], Callable[[], Fold]],
        reader_events_max: int,
    ) -> None:
        self._database = database
        self._preparation = preparation
        self._engine = engine
        self._supervisor = supervisor
        self._new_fold = new_fold
        self._reader_events_max = reader_events_max

    async def create(
        self,
        principal: Principal,
        request: CreateResponse,
        *,
        body_bytes: int,
        requested_at: float | None = None,
    ) -> Generation:
        """Start to generate a response.

        `body_bytes` is how long the request was as JSON; `requested_at` when it came, in seconds
        of `time.perf_counter` (None: now). Raises `RequestError`, `StoreUnavailable`. From here on
        the generation has an end, whether or not anybody follows it.
        """
        with self._supervisor.admitted():
            specification = await self._preparation.prepare(
                principal, request, body_bytes=body_bytes
            )
            fold = self._new_fold(specification)
            live = LiveLog(fold, reader_events_max=self._reader_events_max)
            run = Run(specification, live, self._engine, requested_at=requested_at)
            self._supervisor.start(run)
        generation = Generation(specification, live, run)
        try:
            await generation.recorded()
        except BaseException:
            generation.cancel()
            raise
        return generation

    async def get(self, principal: Principal, response_id: str) -> bytes:
        """The Response object as it was sent. Raises `ResourceNotFound`."""
        stored = await rows.load(self._database, principal.tenant_id, _uuid(response_id))
        if stored is None or stored.body is None:
            raise _not_found(response_id)
        return stored.body

    async def check_replay(self, principal: Principal, response_id: str) -> None:
        """Raise why the response cannot be streamed again (`ResourceNotFound`, `InvalidRequest`).

        Only background responses can, and this release creates none.
        """
        await self.get(principal, response_id)
        raise InvalidRequest(
            "This response cannot be streamed because it was not created with background=true. "
            "Retrieve it without `stream`.",
            param="stream",
        )

    async def delete(self, principal: Principal, response_id: str) -> None:
        """Forget a response, its items and its log. Raises `ResourceNotFound`."""
        await self.get(principal, response_id)
        if not await rows.delete(self._database, principal.tenant_id, _uuid(response_id)):
            raise _not_found(response_id)

    async def input_items(
        self,
        principal: Principal,
        response_id: str,
        *,
        limit: int,
        order: Literal["asc", "desc"],
        after: str | None,
    ) -> ItemPage:
        """What a response was generated from: resolved history, then its own input.

        Raises `ResourceNotFound`, `InvalidRequest` for an `after` that is no item of it.
        """
        await self.get(principal, response_id)
        page = await messages.input_items(
            self._database,
            principal.tenant_id,
            _uuid(response_id),
            limit=limit,
            order=order,
            after=after,
        )
        if page is None:
            raise _not_found(response_id)
        return page


def _uuid(response_id: str) -> UUID:
    uuid = ids.parse_response_id(response_id)
    if uuid is None:
        raise _not_found(response_id)
    return uuid


def _not_found(response_id: str) -> ResourceNotFound:
    return ResourceNotFound(
        f"Response with id '{response_id}' not found. Responses are kept only when `store` is "
        "true, until they are deleted or expire."
    )
