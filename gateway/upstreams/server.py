"""Generations at one inference server: token ids in, token ids out."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

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
from gateway.upstreams.token_stream import TokenStream, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from gateway.generation import Constraint, TokenRequest, TokenSink
    from gateway.upstreams.backend import Backend, Timeouts
    from gateway.upstreams.client import Client
    from gateway.upstreams.engines.engine import Capabilities, InferenceEngine
    from gateway.upstreams.http.transport import Answer, ResponseBody
    from gateway.upstreams.request_writer import Grammar

_log = EventLog("gateway.upstreams")

_PROMPT_ID_BYTES = 8
"""Six digits, a comma and a space."""
INLINE_CALLS = 16
"""The structural tag of a grammar with so many calls is made in a millisecond."""

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
        self._streams: set[TokenStream] = set()
        self._writer = RequestWriter()
        self._served: Mapping[str, Served] | None = None

    @property
    def can(self) -> Capabilities:
        """What its engine can do, as far as it is known and the operator lets it."""
        return self._writer.can

    def runs(self, engine: InferenceEngine) -> None:
        """Speak to it as to this engine from now on."""
        can = engine.capabilities(
            grammars=self._backend.grammars, priorities=self._backend.priorities
        )
        self._writer = RequestWriter(engine, can)

    def serves(self, served: Mapping[str, Served]) -> None:
        """Ask it only for these models from now on; keys are public ids."""
        self._served = served

    def generate(
        self,
        request: TokenRequest,
        sink: TokenSink,
        *,
        on_first: Callable[[], None] | None = None,
        on_finish: Callable[[], None] | None = None,
    ) -> Coroutine[object, object, None]:
        """One chunk for each read that brought ids; the last one has `finish`, often without ids.

        The counts of cached tokens come after the finish reason, so the finish waits for them; ids
        never wait. `on_first` is called before the sink has the first chunk, `on_finish` before it
        has the last. Raises `UpstreamUnavailable` or `UpstreamRejected` before the first id,
        `UpstreamFailed` after it, and what the sink does, which must be none of these.

        A grammar that the backend refuses is left out. It has been understood by this gateway
        before, so the caller is not to blame, nor would another backend of its kind do better.
        Without one the output is still checked.
        """
        # Not a coroutine of its own: it would be there as long as the stream.
        if request.constraint is None:
            return self._complete(request, sink, None, on_first, on_finish)
        return self._complete_bound(request, request.constraint, sink, on_first, on_finish)

    async def _complete_bound(
        self,
        request: TokenRequest,
        constraint: Constraint,
        sink: TokenSink,
        on_first: Callable[[], None] | None,
        on_finish: Callable[[], None] | None,
    ) -> None:
        """The same with a grammar, and once more without if the backend refuses that."""
        grammar = await self._grammar(request, constraint)
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

    async def _grammar(self, request: TokenRequest, constraint: Constraint) -> Grammar | None:
        """The grammar of a request that has a constraint; found in a thread if that takes long.

        Of several threads that have something to do each would hold up the event loop in turn.
        """
        if constraint.calls <= INLINE_CALLS or self._writer.has_tag_for(constraint):
            return self._writer.grammar(request)
        async with self._one_grammar:
            return await asyncio.to_thread(self._writer.grammar, request)

    def _note_refusal(self, error: UpstreamError) -> None:
        """Log that a grammar was refused. Who refuses all gets none until described anew."""
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
        sampling = request.sampling
        told = 0 if sampling.logprobs is None else 1 + sampling.logprobs
        # The first event may repeat the prompt, and each has the logprobs that were asked for.
        frame_bytes_max = self._limits.event_bytes_max * (1 + told)
        frame_bytes_max += _PROMPT_ID_BYTES * len(request.prompt_ids)
        reader = CompletionReader(
            self.name,
            sampling,
            stop_ids=request.stop_ids,
            frame_bytes_max=frame_bytes_max,
            id_end=request.id_end,
            constrained=grammar is not None and grammar.holds,
        )
        stream = TokenStream(sink, reader, self._timeouts, on_first=on_first, on_finish=on_finish)
        self._streams.add(stream)
        try:
            await stream.complete(await self._open(request, grammar, stream))
        finally:
            self._streams.discard(stream)
            if reader.overran:
                _log.warning("backend does not stop where it should", upstream=self.name)

    def hang_up_on_silent(self, silent_s: float, *, begun_only: bool) -> int:
        """Break off the generations that said nothing for `silent_s`; how many those are.

        With `begun_only` those that have not said anything yet are left to think.
        """
        since = asyncio.get_running_loop().time() - silent_s
        silent = [
            connection
            for stream in self._streams
            if (connection := stream.connection) is not None
            and stream.heard_at <= since
            and (stream.has_begun or not begun_only)
        ]
        for connection in silent:
            connection.hang_up("silent, and not reachable")
        return len(silent)

    def hang_up(self, reason: str) -> int:
        """Break off every generation; how many those are. One that connects is not among them."""
        connections = [one.connection for one in self._streams if one.connection is not None]
        for connection in connections:
            connection.hang_up(reason)
        return len(connections)

    async def _open(
        self, request: TokenRequest, grammar: Grammar | None, stream: TokenStream
    ) -> ResponseBody:
        # SGLang answers with its base model whatever it is asked for, so the model must be known.
        if self._served is None:
            served = Served(self._backend.models.get(request.model, request.model))
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
            listener=stream,
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
