"""Generations at one inference server: token ids in, token ids out."""

from __future__ import annotations

import asyncio
import math
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import httpx2

from gateway.errors import UpstreamError, UpstreamLost, UpstreamUnavailable
from gateway.telemetry import EventLog
from gateway.upstreams.backend import Served, StreamLimits
from gateway.upstreams.client import Post, read_body
from gateway.upstreams.completions import CompletionReader
from gateway.upstreams.problems import (
    BrokeDown,
    ModelGone,
    has_no_grammars,
    may_blame_grammar,
    message_of_body,
    refusal,
    retry_after_of,
)
from gateway.upstreams.request_writer import PromptEncoder, RequestWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gateway.generation import TokenChunk, TokenRequest, TokenSink
    from gateway.upstreams.backend import Backend, Timeouts
    from gateway.upstreams.client import Client
    from gateway.upstreams.engines.engine import Capabilities, InferenceEngine
    from gateway.upstreams.http.connection import Connection
    from gateway.upstreams.http.transport import Answer, ResponseBody
    from gateway.upstreams.request_writer import Grammar

_log = EventLog("gateway.upstreams")

INLINE_CALLS = 16
"""A grammar of so many calls is put into an engine's words in a millisecond."""

_DEFAULT_LIMITS = StreamLimits()
_NOT_TAKEN = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.WriteError,
    httpx2.WriteTimeout,
    httpx2.UnsupportedProtocol,
    httpx2.LocalProtocolError,
)
"""The backend did not get the whole request, so the request did nothing to it."""


class InferenceServer:
    """`POST /v1/completions` of one backend.

    Always streamed, because closing the connection is what makes the server stop generating. Until
    it is known which engine it `runs` it is spoken to as vLLM, and asked for nothing that is
    optional; until it is known what it `serves`, for models by the names they are configured with.
    """

    def __init__(
        self,
        backend: Backend,
        client: Client,
        *,
        timeouts: Timeouts,
        limits: StreamLimits = _DEFAULT_LIMITS,
        prompts: PromptEncoder | None = None,
    ) -> None:
        """`prompts` encodes those of all servers: a conversation goes from one to another."""
        self.name = backend.name
        self._backend = backend
        self._timeouts = timeouts
        self._limits = limits
        self._waits = {
            "connect": timeouts.connect_s,
            "write": timeouts.write_s,
            "read": timeouts.first_token_s,
        }
        self._prompts = PromptEncoder() if prompts is None else prompts
        self._one_grammar = asyncio.Lock()
        headers = {**backend.headers(), "content-type": "application/json"}
        self._post = Post(client, backend.url("/v1/completions"), headers)
        self._exchanges: set[Exchange] = set()
        self._writer = RequestWriter()
        self._served: Mapping[str, Served] | None = None

    @property
    def can(self) -> Capabilities:
        """What may be asked of it."""
        return self._writer.can

    def runs(self, engine: InferenceEngine) -> None:
        """It was found out which engine it is."""
        can = engine.capabilities(
            grammars=self._backend.grammars, priorities=self._backend.priorities
        )
        self._writer = RequestWriter(engine, can)

    def serves(self, served: Mapping[str, Served]) -> None:
        """It was found out what its models are, by public id."""
        self._served = served

    async def generate(
        self,
        request: TokenRequest,
        sink: TokenSink,
        *,
        on_first: Callable[[], None] | None = None,
        on_finish: Callable[[], None] | None = None,
    ) -> None:
        """One chunk for each read that brought ids; the last one has `finish`, often without ids.

        The counts of cached tokens come after the finish reason, so the finish waits for them; ids
        never wait. `on_first` is called before the sink has the first chunk, `on_finish` before it
        has the last. Raises `UpstreamUnavailable` or `UpstreamRejected` before the first id,
        `UpstreamFailed` after it, and what the sink does, which must be none of these.

        A grammar that the backend refuses is left out. It has been understood by this gateway
        before, so the caller is not to blame, nor would another backend of its kind do better.
        Without one the output is still checked.
        """
        grammar = await self._grammar(request)
        try:
            await self._complete(request, sink, grammar, on_first, on_finish)
        except UpstreamError as error:
            if grammar is None or not may_blame_grammar(error):
                raise
            refused = error
        else:
            return

        def begun() -> None:
            self._note_refusal(refused)
            if on_first is not None:
                on_first()

        free = replace(request, request_id=f"{request.request_id}-free")
        try:
            await self._complete(free, sink, None, begun, on_finish)
        except UpstreamUnavailable as error:
            if isinstance(refused, BrokeDown):
                raise refused from error  # it was the request that brought it down
            raise

    async def _grammar(self, request: TokenRequest) -> Grammar | None:
        """The grammar of a request that has a constraint; found in a thread if that takes long.

        Of several threads that have something to do each would hold up the event loop in turn.
        """
        constraint = request.constraint
        if constraint is None:
            return None
        if constraint.calls <= INLINE_CALLS or self._writer.has_words_for(constraint):
            return self._writer.grammar(request)
        async with self._one_grammar:
            return await asyncio.to_thread(self._writer.grammar, request)

    def _note_refusal(self, error: UpstreamError) -> None:
        """The grammar was to blame. Whoever refuses all is not sent another until asked anew."""
        _log.warning("backend refuses a grammar", upstream=self.name, error=error)
        if has_no_grammars(error):
            self._writer = replace(self._writer, can=replace(self._writer.can, grammars="none"))

    async def _complete(
        self,
        request: TokenRequest,
        sink: TokenSink,
        grammar: Grammar | None,
        on_first: Callable[[], None] | None,
        on_finish: Callable[[], None] | None,
    ) -> None:
        reader = CompletionReader(
            self.name,
            request.sampling,
            stop_ids=request.stop_ids,
            frame_bytes_max=self._limits.frame_bytes_max(
                len(request.prompt_ids), request.sampling.logprobs
            ),
            id_end=request.id_end,
            constrained=grammar is not None and grammar.holds,
        )
        exchange = Exchange(sink, reader, self._timeouts, on_first=on_first, on_finish=on_finish)
        self._exchanges.add(exchange)
        try:
            await exchange.complete(await self._open(request, grammar, exchange))
        finally:
            self._exchanges.discard(exchange)
            if reader.overran:
                _log.warning("backend does not stop where it should", upstream=self.name)

    def hang_up_on_silent(self, silent_s: float, *, begun_only: bool) -> int:
        """Break off the generations that said nothing for `silent_s`; how many those are.

        With `begun_only` those that have not said anything yet are left to think.
        """
        since = asyncio.get_running_loop().time() - silent_s
        silent = [
            connection
            for exchange in self._exchanges
            if (connection := exchange.connection) is not None
            and exchange.heard_at <= since
            and (exchange.has_begun or not begun_only)
        ]
        for connection in silent:
            connection.hang_up("silent, and not reachable")
        return len(silent)

    async def _open(
        self, request: TokenRequest, grammar: Grammar | None, exchange: Exchange
    ) -> ResponseBody:
        # SGLang answers with its base model whatever it is asked for, so the model must be known.
        if self._served is None:
            served = Served(self._backend.served_name(request.model))
        elif request.model in self._served:
            served = self._served[request.model]
        else:
            raise ModelGone(f"does not list '{request.model}' any more", upstream=self.name)
        # Nothing here refers to the body once it is sent: it is as long as the prompt.
        posting = self._post(
            self._writer.body(
                request,
                served=served,
                prompt=await self._prompts.encode(request.prompt_ids, owner=request.cache_salt),
                grammar=grammar,
            ),
            timeouts=self._waits,
            listener=exchange,
        )
        try:
            answer = await posting
        except _NOT_TAKEN as error:
            raise UpstreamUnavailable(describe(error), upstream=self.name) from error
        except httpx2.TransportError as error:
            raise UpstreamLost(describe(error), upstream=self.name) from error
        if answer.status != 200:
            raise await self._refusal(answer)
        return answer.body

    async def _refusal(self, answer: Answer) -> UpstreamError:
        answer.body.timeouts = {"read": self._timeouts.tail_s}
        try:
            body = await read_body(answer.body, self._limits.error_bytes_max)
        except httpx2.TransportError as error:
            message = f"(its message was lost: {describe(error)})"
        else:
            message = message_of_body(body)
        finally:
            answer.body.close()
        told_s = retry_after_of(answer.headers)
        return refusal(self.name, answer.status, message, retry_after_s=told_s)


_SILENCE: Final = "no token in time"


class Exchange:
    """One generation under way, and the connection it goes over (an `AnswerListener`).

    Body bytes become chunks, and these are given to the sink, all in the read they came in. The
    task that asked for the generation sleeps meanwhile: it wakes up once, at the end, and once for
    each time that the sink has no room.

    `heard_at` is since when the backend is waited for, in the loop's time: never (inf) while the
    sink has no room. The sink runs in the context of the task that made this object, not of the
    one that once opened the connection.
    """

    __slots__ = (
        "_body", "_changed", "_error", "_is_held", "_is_over", "_loop", "_needs_room", "_on_finish",
        "_on_first", "_patience_s", "_reader", "_run", "_sink", "_timeouts", "connection",
        "has_begun", "heard_at",
    )  # fmt: skip

    def __init__(
        self,
        sink: TokenSink,
        reader: CompletionReader,
        timeouts: Timeouts,
        *,
        on_first: Callable[[], None] | None = None,
        on_finish: Callable[[], None] | None = None,
    ) -> None:
        """`on_first` is called before the sink has the first chunk, `on_finish` before the last."""
        self.connection: Connection | None = None
        self.has_begun = False
        """The backend has sent something that the sink was told."""
        self._loop = asyncio.get_running_loop()
        self.heard_at = self._loop.time()
        self._patience_s = timeouts.first_token_s
        """How long the backend may say nothing now."""
        self._sink = sink
        self._reader = reader
        self._timeouts = timeouts
        self._on_first = on_first
        self._on_finish = on_finish
        self._run = copy_context().run
        self._body: ResponseBody | None = None
        self._changed: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._is_held = False
        self._is_over = False
        self._needs_room = False

    def goes_over(self, body: ResponseBody) -> None:
        """The request is about to be sent, and this is where its answer will be.

        From here on it may be poured in here, while its task still waits for it to begin.
        """
        self._body = body
        self.connection = body.connection

    async def complete(self, body: ResponseBody) -> None:
        """Return once the sink has the finish, or enough; the connection is free then, or closed.

        Raises what the reader found wrong with the body, after the sink had all ids before it, and
        what the sink raises. To cancel it closes the connection at once.
        """
        self.goes_over(body)
        connection = body.connection
        try:
            if not self._is_over and not connection.is_pouring:
                connection.wait_until(self.heard_at + self._patience_s)
                connection.pour(self)
            while not self._is_over:
                if self._is_held:
                    await self._go_on(connection)
                else:
                    self._changed = self._loop.create_future()
                    await self._changed
        finally:
            body.close()
        if self._needs_room and not await self._sink.room():
            return
        if self._error is not None:
            raise self._error

    async def _go_on(self, connection: Connection) -> None:
        """Read on, once there is room, and all else that goes on in this process had its turn."""
        if self._needs_room:
            if not await self._sink.room():
                self._break_off()
                return
            self._needs_room = False
        reader = self._reader
        if reader.has_more:
            await asyncio.sleep(0)
        self._is_held = False
        if reader.has_more:
            self._pass_on(reader.go_on())
        if not (self._is_held or self._is_over):
            if self.heard_at == math.inf:
                self.heard_at = self._loop.time()
            if self.has_begun and (reader.ids_left <= 0 or reader.finish is not None):
                self._patience_s = self._timeouts.tail_s
            connection.wait_until(self.heard_at + self._patience_s)
            connection.go_on()

    def take(self, data: bytes) -> None:
        """A read of the body (`AnswerListener`)."""
        self._pass_on(self._reader.feed(data))

    def end(self, error: httpx2.TransportError | None) -> None:
        """The body ended, was broken off, or has brought no id for too long (`AnswerListener`)."""
        if error is None:
            why = "stream ended without a finish reason"
        else:
            why = _SILENCE if isinstance(error, httpx2.ReadTimeout) else describe(error)
        self._pass_on(self._reader.end(why))

    def _pass_on(self, chunk: TokenChunk | None) -> None:
        """Give the sink what a read brought; without a chunk see what else it did."""
        reader = self._reader
        if chunk is None:
            if reader.fault is not None:
                self._fail(reader.fault)
            elif reader.has_more:
                self._hold()
            return
        try:
            if not self.has_begun or chunk.finish is not None:
                self._run(self._tell_edges, chunk)
            has_room = self._run(self._sink.on_tokens, chunk)
        except Exception as error:  # noqa: BLE001  it comes out of `complete`
            self._fail(error)
            return
        if not has_room or chunk.finish is not None or reader.fault is not None:
            self._stop(has_room=has_room)
            return
        if self.connection is not None:
            # Patience begins anew: ids came, bytes alone do not count.
            self.heard_at = self._loop.time()
            if reader.ids_left <= 0 or reader.finish is not None:
                self._patience_s = self._timeouts.tail_s
            self.connection.wait_until(self.heard_at + self._patience_s)
        if reader.has_more:
            self._hold()

    def _tell_edges(self, chunk: TokenChunk) -> None:
        """Tell who asked that the first chunk has come, or the last."""
        if not self.has_begun:
            self.has_begun = True
            self._patience_s = self._timeouts.stall_s
            if self._on_first is not None:
                self._on_first()
        if chunk.finish is not None and self._on_finish is not None:
            self._on_finish()

    def _stop(self, *, has_room: bool) -> None:
        """Read no more: for good, or until there is room."""
        body, reader = self._body, self._reader
        self._needs_room = not has_room
        if reader.finished and not reader.overran and body is not None:
            body.drain(self._timeouts.tail_s)
            self._is_over = True
            self._wake()
        elif reader.finished:
            self._break_off()
        elif reader.fault is not None:
            self._fail(reader.fault)
        else:
            self.heard_at = math.inf
            self._hold()

    def _hold(self) -> None:
        """Have the task take what comes next, and nothing else come meanwhile."""
        if self.connection is not None:
            self._is_held = True
            self.connection.hold()
            self._wake()

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._break_off()

    def _break_off(self) -> None:
        if self._body is not None:
            self._body.close()
        self._is_over = True
        self._wake()

    def _wake(self) -> None:
        if self._changed is None:
            if self.connection is not None:
                self.connection.wake()
        elif not self._changed.done():
            self._changed.set_result(None)


def describe(error: httpx2.TransportError) -> str:
    """What went wrong with a connection, for operators."""
    return f"{type(error).__name__}: {error}"
