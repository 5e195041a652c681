"""An inference server as an `Upstream`: token ids in, token ids out."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx2

from gateway.errors import UpstreamError, UpstreamLost, UpstreamUnavailable
from gateway.telemetry import EventLog
from gateway.upstreams.backend import StreamLimits
from gateway.upstreams.client import Post, read_body
from gateway.upstreams.completions import CompletionReader
from gateway.upstreams.exchange import Exchange, WatchedSink, describe
from gateway.upstreams.naming import Served
from gateway.upstreams.problems import (
    BrokeDown,
    ModelGone,
    has_no_grammars,
    may_blame_grammar,
    message_of_body,
    refusal,
    retry_after_of,
)
from gateway.upstreams.prompt_json import PromptEncoder
from gateway.upstreams.request_writer import RequestWriter

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from gateway.generation import TokenRequest, TokenSink
    from gateway.upstreams.backend import Backend, Timeouts
    from gateway.upstreams.client import Client
    from gateway.upstreams.engines.engine import Capabilities, InferenceEngine
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
        spell: PromptEncoder | None = None,
    ) -> None:
        """`spell` spells the prompts of all servers: they go from one to another."""
        self.name = backend.name
        self._backend = backend
        self._timeouts = timeouts
        self._limits = limits
        self._waits = {
            "connect": timeouts.connect_s,
            "write": timeouts.write_s,
            "read": timeouts.first_token_s,
        }
        self._spell = PromptEncoder() if spell is None else spell
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

    def generate(self, request: TokenRequest, sink: TokenSink) -> Coroutine[object, object, None]:
        """One chunk for each read that brought ids; the last one has `finish`, often without ids.

        The counts of cached tokens come after the finish reason, so the finish waits for them; ids
        never wait. Raises `UpstreamUnavailable` or `UpstreamRejected` before the first id,
        `UpstreamFailed` after it, and what the sink does, which must be none of these.
        """
        # Not a coroutine of its own, which each wake-up would have to pass through.
        constraint = request.constraint
        if constraint is None:
            return self._complete(request, sink)
        if constraint.calls > INLINE_CALLS and not self._writer.has_words_for(constraint):
            return self._bound_by_many(request, sink)
        grammar = self._writer.grammar(request)
        if grammar is None:
            return self._complete(request, sink)
        return self._bound(request, sink, grammar)

    async def _bound_by_many(self, request: TokenRequest, sink: TokenSink) -> None:
        """The same with a grammar that is found in a thread, if there is one.

        Of several threads that have something to do each would hold up the event loop in turn.
        """
        async with self._one_grammar:
            grammar = await asyncio.to_thread(self._writer.grammar, request)
        if grammar is None:
            await self._complete(request, sink)
        else:
            await self._bound(request, sink, grammar)

    async def _bound(self, request: TokenRequest, sink: TokenSink, grammar: Grammar) -> None:
        """The same with a grammar, or without it where the backend refuses that.

        A grammar has been understood by this gateway before, so the caller is not to blame, nor
        would another backend of its kind do better. Without one the output is still checked.
        """
        try:
            await self._complete(request, sink, grammar)
        except UpstreamError as error:
            if not may_blame_grammar(error):
                raise
            refused = error
        else:
            return
        free = replace(request, request_id=f"{request.request_id}-free")
        watched = WatchedSink(sink, first=lambda: self._note_refusal(refused))
        try:
            await self._complete(free, watched)
        except UpstreamUnavailable as error:
            if isinstance(refused, BrokeDown):
                raise refused from error  # it was the request that brought it down
            raise

    def _note_refusal(self, error: UpstreamError) -> None:
        """The grammar was to blame. Whoever refuses all is not sent another until asked anew."""
        _log.warning("backend refuses a grammar", upstream=self.name, error=error)
        if has_no_grammars(error):
            self._writer = replace(self._writer, can=replace(self._writer.can, grammars="none"))

    async def _complete(
        self, request: TokenRequest, sink: TokenSink, grammar: Grammar | None = None
    ) -> None:
        reader = self._reader(request, grammar)
        exchange = Exchange(sink, reader, self._timeouts)
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

    def _reader(self, request: TokenRequest, grammar: Grammar | None) -> CompletionReader:
        return CompletionReader(
            self.name,
            request.sampling,
            stop_ids=request.stop_ids,
            frame_bytes_max=self._limits.frame_bytes_max(
                len(request.prompt_ids), request.sampling.logprobs
            ),
            id_end=request.id_end,
            constrained=grammar is not None and grammar.holds,
        )

    async def _open(
        self, request: TokenRequest, grammar: Grammar | None, exchange: Exchange
    ) -> ResponseBody:
        # Nothing here refers to the body once it is sent: it is as long as the prompt.
        posting = self._post(
            self._writer.body(
                request,
                served=self._named(request.model),
                prompt=await self._spell.in_steps(request.prompt_ids, owner=request.cache_salt),
                grammar=grammar,
            ),
            timeouts=self._waits,
            goes_over=exchange.goes_over,
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

    def _named(self, model: str) -> Served:
        """SGLang answers with its base model whatever it is asked for, so it must be known."""
        if self._served is None:
            return Served(self._backend.served_name(model))
        if model not in self._served:
            raise ModelGone(f"does not list '{model}' any more", upstream=self.name)
        return self._served[model]

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
