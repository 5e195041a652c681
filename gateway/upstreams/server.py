"""An inference server as an `Upstream`: token ids in, token ids out."""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx2

from gateway.errors import UpstreamError, UpstreamLost, UpstreamUnavailable
from gateway.telemetry import EventLog
from gateway.upstreams.backend import StreamLimits
from gateway.upstreams.client import read_body
from gateway.upstreams.completions import CompletionReader
from gateway.upstreams.dialects import Dialect
from gateway.upstreams.engines import capabilities
from gateway.upstreams.problems import (
    BrokeDown,
    has_no_grammars,
    may_blame_grammar,
    message_of_body,
    refusal,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

    from gateway.generation import TokenChunk, TokenRequest
    from gateway.upstreams.backend import Backend, Timeouts
    from gateway.upstreams.client import Client
    from gateway.upstreams.connection import Connection
    from gateway.upstreams.dialects import Grammar
    from gateway.upstreams.engines import Capabilities, Engine

_log = EventLog("gateway.upstreams")

_DEFAULT_LIMITS = StreamLimits()
_SILENCE = "no token in time"
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


class _Exchange:
    """One generation under way, and the connection it goes over.

    `heard_at` is since when it is waited for, in the loop's time: never, while its last words are
    still being listened to.
    """

    __slots__ = ("connection", "has_begun", "heard_at")

    def __init__(self, now: float) -> None:
        self.connection: Connection | None = None
        self.has_begun = False
        self.heard_at = now

    def goes_over(self, connection: Connection) -> None:
        self.connection = connection


class InferenceServer:
    """`POST /v1/completions` of one backend.

    Always streamed, because closing the connection is what makes the server stop generating.
    `stop_ids` end a turn; a stream that breaks after one of them has lost nothing. Until it is
    known which engine it `runs` it is spoken to as vLLM, and asked for nothing that is optional.
    """

    def __init__(
        self,
        backend: Backend,
        client: Client,
        *,
        stop_ids: Sequence[int],
        timeouts: Timeouts,
        limits: StreamLimits = _DEFAULT_LIMITS,
    ) -> None:
        self.name = backend.name
        self._backend = backend
        self._client = client
        self._stop_ids = tuple(stop_ids)
        self._timeouts = timeouts
        self._limits = limits
        self._url = backend.url("/v1/completions")
        self._headers = {**backend.headers(), "content-type": "application/json"}
        self._exchanges: set[_Exchange] = set()
        self._dialect = Dialect()

    @property
    def can(self) -> Capabilities:
        """What may be asked of it."""
        return self._dialect.can

    def runs(self, engine: Engine) -> None:
        """It was found out which engine it is."""
        can = capabilities(
            engine, grammars=self._backend.grammars, priorities=self._backend.priorities
        )
        self._dialect = Dialect(engine, can)

    def generate(self, request: TokenRequest) -> AsyncGenerator[TokenChunk, None]:
        """One chunk for each read that brought ids; the last one has `finish`, often without ids.

        The counts of cached tokens come after the finish reason, so the finish waits for them; ids
        never wait. Once exhausted the connection is free for the next request.
        """
        grammar = self._dialect.grammar(request)
        return self._stream(request) if grammar is None else self._bound(request, grammar)

    async def _bound(
        self, request: TokenRequest, grammar: Grammar
    ) -> AsyncGenerator[TokenChunk, None]:
        """The same with a grammar, or without it where the backend refuses that.

        A grammar has been understood by this gateway before, so the caller is not to blame, nor
        would another backend of its kind do better. Without one the output is still checked.
        """
        try:
            async with aclosing(self._stream(request, grammar)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except UpstreamError as error:
            if not may_blame_grammar(error):
                raise
            refused = error
        else:
            return
        free = replace(request, request_id=f"{request.request_id}-free")
        began = False
        try:
            async with aclosing(self._stream(free)) as chunks:
                async for chunk in chunks:
                    if not began:
                        began = True
                        self._note_refusal(refused)
                    yield chunk
        except UpstreamUnavailable as error:
            if isinstance(refused, BrokeDown):
                raise refused from error  # it was the request that brought it down
            raise

    def _note_refusal(self, error: UpstreamError) -> None:
        """The grammar was to blame. Whoever refuses all is not sent another until asked anew."""
        _log.warning("backend refuses a grammar", upstream=self.name, error=error)
        if has_no_grammars(error):
            self._dialect = replace(self._dialect, can=replace(self._dialect.can, grammars="none"))

    async def _stream(
        self, request: TokenRequest, grammar: Grammar | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        clock = asyncio.get_running_loop().time
        waits: dict[str, float | None] = {
            "connect": self._timeouts.connect_s,
            "write": self._timeouts.write_s,
            "read": self._timeouts.first_token_s,
        }
        patient_until = clock() + self._timeouts.first_token_s
        with self._watched(clock()) as exchange:
            response = await self._open(request, grammar, waits, exchange)
            reader = self._reader(request, grammar)
            async with aclosing(response.aiter_raw()) as parts:
                while reader.fault is None and not reader.finished:
                    waits["read"] = max(patient_until - clock(), 0.0)
                    chunk = await _next_chunk(parts, reader)
                    if chunk is None and clock() > patient_until:
                        chunk = reader.end(_SILENCE)  # bytes keep coming, but no ids among them
                    if chunk is not None:
                        exchange.has_begun, exchange.heard_at = True, math.inf
                        yield chunk
                        exchange.heard_at = now = clock()
                        patient_until = now + self._patience_s(reader)
                if reader.fault is not None:
                    raise reader.fault
                await self._drain(parts)

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

    @contextmanager
    def _watched(self, now: float) -> Iterator[_Exchange]:
        exchange = _Exchange(now)
        self._exchanges.add(exchange)
        try:
            yield exchange
        finally:
            self._exchanges.discard(exchange)

    def _patience_s(self, reader: CompletionReader) -> float:
        return self._timeouts.tail_s if reader.ending else self._timeouts.stall_s

    def _reader(self, request: TokenRequest, grammar: Grammar | None) -> CompletionReader:
        return CompletionReader(
            self.name,
            request.sampling,
            stop_ids=self._stop_ids,
            frame_bytes_max=self._limits.frame_bytes_max,
            constrained=grammar is not None and grammar.holds,
        )

    async def _open(
        self,
        request: TokenRequest,
        grammar: Grammar | None,
        waits: dict[str, float | None],
        exchange: _Exchange,
    ) -> httpx2.Response:
        body = self._dialect.body(
            request,
            served_model=self._backend.served_name(request.model),
            stop_ids=self._stop_ids,
            grammar=grammar,
        )
        http_request = self._client.build_request(
            "POST",
            self._url,
            content=body,
            headers=self._headers,
            extensions={"timeout": waits, "on_connection": exchange.goes_over},
        )
        try:
            response = await self._client.send(http_request, stream=True)
        except _NOT_TAKEN as error:
            raise UpstreamUnavailable(_describe(error), upstream=self.name) from error
        except httpx2.TransportError as error:
            raise UpstreamLost(_describe(error), upstream=self.name) from error
        if response.status_code != 200:
            waits["read"] = self._timeouts.tail_s
            raise await self._refusal(response)
        return response

    async def _refusal(self, response: httpx2.Response) -> UpstreamError:
        try:
            body = await read_body(response, self._limits.error_bytes_max)
        except httpx2.TransportError as error:
            message = f"(its message was lost: {_describe(error)})"
        else:
            message = message_of_body(body)
        return refusal(self.name, response.status_code, message)

    async def _drain(self, parts: AsyncIterator[bytes]) -> None:
        """Read the few bytes after the last word, for the sake of the connection alone."""
        try:
            async with asyncio.timeout(self._timeouts.tail_s):
                async for _ in parts:
                    pass
        except (TimeoutError, httpx2.TransportError):
            return


async def _next_chunk(parts: AsyncIterator[bytes], reader: CompletionReader) -> TokenChunk | None:
    try:
        data = await anext(parts, b"")
    except httpx2.ReadTimeout:
        return reader.end(_SILENCE)
    except httpx2.TransportError as error:
        return reader.end(_describe(error))
    return reader.feed(data) if data else reader.end("stream ended without a finish reason")


def _describe(error: httpx2.TransportError) -> str:
    return f"{type(error).__name__}: {error}"
