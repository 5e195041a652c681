"""A response that was asked for, as the one who asked sees it: followed, waited for, left."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import orjson
from typing_extensions import override

from gateway import ids
from gateway.engine.row_mapping import output_context
from gateway.engine.run_state import head_of
from gateway.protocol.responses.body import Outcome, response_body
from gateway.services.history_source import History

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from gateway.engine.run_spec import RunSpec
    from gateway.engine.runner import Run
    from gateway.eventlog.live_log import LiveLog
    from gateway.protocol.events import EventSink, EventSource
    from gateway.services.retrieval import Retrieval
    from gateway.store.responses import StoredResponse
    from gateway.tenancy import Principal


class Generation:
    """A response as its client sees it: followed, waited for, left.

    The defaults are those of a response that does not end with its client.
    """

    is_durable = True
    """It does not end with its client: a stream that was cut off can be resumed."""
    is_repeat = False
    """The same request was sent before, and this is its response."""
    response_id: str
    model: str

    @property
    def first_token_s(self) -> float | None:
        """Seconds from the request to the first token, if it was generated here for this request;
        None while there is none.
        """
        return None

    def cancel(self) -> None:
        """The client is gone. Does nothing to a response that is durable, or over."""

    async def produced(self, within_s: float) -> None:
        """Wait until the status of a stream is known: for the first output, or the end, but for
        `within_s` seconds at most.

        Raises what made it fail before any output. Does not wait for what others generate.
        """

    def stream(self, sink: EventSink, *, grace_s: float = 0.0) -> Awaitable[None]:
        """Send a sink all events as they come. Call it once. Returns after the terminal one, or
        when this process drains. Raises what the sink and what it returns do.

        With a `grace_s` it begins where `produced` would return, in the same call that brought the
        first output; raises what that does.
        """
        raise NotImplementedError

    def continued(self) -> History | None:
        """Once it is over: what a response begins with that continues it.

        None if that is not known here, because it is stored or nobody wanted it remembered.
        """
        return None

    async def response(self) -> bytes:
        """The Response object as JSON: of a background response as it is, otherwise finished.

        Raises what made it fail, and `Draining`.
        """
        raise NotImplementedError


class Started(NamedTuple):
    """A run of this process, and the log that it writes."""

    run: Run
    live: LiveLog

    @property
    def failure(self) -> Exception | None:
        """What made it fail, unless another process decides how it ends."""
        return None if self.live.handed_over else self.live.failure

    async def produced(self, within_s: float) -> None:
        """Wait for the first output, or the end, for so long at most. Raises what made it fail
        before any output.
        """
        is_known = await self.live.produced.within(within_s)
        if is_known and self.failure is not None and not self.live.fold.output_tokens:
            raise self.failure


class ForegroundGeneration(Generation):
    """Generated here, in memory, for this client alone: it leaves, and that was it."""

    is_durable = False

    def __init__(self, spec: RunSpec, started: Started) -> None:
        self.response_id, self.model = ids.response_id(spec.head.uuid), spec.model
        self._run, self._live = started
        self._started = started
        self._spec = spec

    @property
    @override
    def first_token_s(self) -> float | None:
        return self._run.first_token_s

    @override
    def cancel(self) -> None:
        self._run.cancel()

    @override
    async def produced(self, within_s: float) -> None:
        """Waits first until what `store: true` promises is in the database."""
        await self._run.begun.wait()
        await self._started.produced(within_s)

    @override
    def stream(self, sink: EventSink, *, grace_s: float = 0.0) -> Awaitable[None]:
        """Raises why what `store: true` promises is not in the database, with a `grace_s` or
        without.
        """
        if grace_s:
            return self._live.stream(sink, grace_s=grace_s)
        return self._stream_recorded(sink)

    async def _stream_recorded(self, sink: EventSink) -> None:
        await self.produced(0.0)
        await self._live.stream(sink)

    @override
    def continued(self) -> History | None:
        """Its context and what it said, as they would come back from the database."""
        spec = self._spec
        if spec.inherited is None:
            return None
        said = (output_context(item) for item in self._live.fold.items())
        own = tuple(replace(item, parsed=None) for item in (*spec.added, *said))
        items = (*spec.inherited, *own)
        # What hangs on no stored response would be lost to whoever stores what continues it.
        unstored = own if spec.parent is not None else items
        return History(spec.parent, items, spec.root_created_at, unstored=unstored)

    @override
    async def response(self) -> bytes:
        await self._live.closed.wait()
        if self._live.failure is not None:
            raise self._live.failure
        return self._live.fold.encoded_response()


class AcceptedGeneration(Generation):
    """Durable, and accepted a moment ago.

    A background response (`started` is None) is left to whichever process has a place for it; any
    other is generated here, unless another process has to go on with it.
    """

    def __init__(self, spec: RunSpec, retrieval: Retrieval, started: Started | None) -> None:
        self.response_id, self.model = ids.response_id(spec.head.uuid), spec.model
        self._head = spec.head
        self._tenant_id = spec.principal.tenant_id
        self._retrieval = retrieval
        self._started = started

    @property
    @override
    def first_token_s(self) -> float | None:
        return self._started.run.first_token_s if self._started else None

    @override
    async def produced(self, within_s: float) -> None:
        """Returns at once for a background response."""
        if self._started is not None:
            await self._started.produced(within_s)

    @override
    async def stream(self, sink: EventSink, *, grace_s: float = 0.0) -> None:
        """Sends events as soon as they are committed, wherever they are generated."""
        if grace_s:
            await self.produced(grace_s)
        await self._retrieval.follow(self._tenant_id, self._head, sink)

    @override
    async def response(self) -> bytes:
        """A background response: that it is queued. Otherwise the finished Response object."""
        if self._started is None:
            return orjson.dumps(response_body(self._head, Outcome("queued"), []))
        finished = await self._retrieval.finished(self._tenant_id, self._head)
        if self._started.failure is not None:
            raise self._started.failure
        return finished


class RepeatedGeneration(Generation):
    """The response that this request was answered with when it was sent before."""

    is_repeat = True

    def __init__(
        self,
        principal: Principal,
        stored: StoredResponse,
        retrieval: Retrieval,
        events: EventSource | None,
    ) -> None:
        """`events` are its own, if the request was for a stream."""
        self.response_id, self.model = ids.response_id(stored.uuid), stored.model
        self._principal = principal
        self._stored = stored
        self._retrieval = retrieval
        self._events = events

    @override
    async def stream(self, sink: EventSink, *, grace_s: float = 0.0) -> None:
        """Sends all events from the first on, then those to come."""
        assert self._events is not None, "the request was not for a stream"
        await self._events(sink)

    @override
    async def response(self) -> bytes:
        """A background response as it is, any other once it is over, also if it failed."""
        if self._stored.background or self._stored.is_terminal:
            return await self._retrieval.get(self._principal, self.response_id)
        return await self._retrieval.finished(self._principal.tenant_id, head_of(self._stored))
