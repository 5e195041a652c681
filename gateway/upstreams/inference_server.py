from __future__ import annotations

import asyncio
import math
import secrets
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import httpx2

from gateway.errors import (
    UpstreamError,
    UpstreamFailed,
    UpstreamLost,
    UpstreamRejected,
    UpstreamUnavailable,
)
from gateway.fair_queue import ReadTurns
from gateway.telemetry.logs import EventLog
from gateway.upstreams.backend import ServedModel, StreamLimits
from gateway.upstreams.chat_endpoint import ChatReader, binds_answer, chat_body, refused_parameter
from gateway.upstreams.engines import CHAT
from gateway.upstreams.http.client import Post, read_body
from gateway.upstreams.problems import (
    BrokeDown,
    ModelGone,
    NoConnection,
    has_no_grammars,
    is_refusal,
    may_blame_grammar,
    message_of_body,
    refusal,
    retry_after_of,
)
from gateway.upstreams.request_writer import Fields, PromptEncoder, RequestWriter, UnknownId
from gateway.upstreams.token_readers import CompletionReader, GenerateReader

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Mapping

    from gateway.generation import Constraint, TokenChunk, TokenRequest, TokenSink
    from gateway.upstreams.backend import Backend, Prefill, Timeouts
    from gateway.upstreams.engines import Capabilities, InferenceEngine, TokenEndpoint
    from gateway.upstreams.http.client import AnswerListener, Client, HttpAnswer, ResponseBody
    from gateway.upstreams.http.connection import Connection
    from gateway.upstreams.request_writer import Grammar
    from gateway.upstreams.token_readers import ReaderOptions


_SILENCE: Final = "no token in time"


class TokenStream:
    """Generation in progress. Its task wakes up only at the end, and for room in the sink.

    `heard_at` is since when the backend is waited for, in the loop's time: never (inf) while the
    sink has no room. The sink runs in the context of the task that made this, not of the
    connection's.
    """

    __slots__ = (
        "_body",
        "_changed",
        "_error",
        "_is_done",
        "_is_held",
        "_kept_back",
        "_loop",
        "_on_finish",
        "_on_first",
        "_reader",
        "_run",
        "_sink",
        "_tenant",
        "_timeout_s",
        "_timeouts",
        "_turns",
        "connection",
        "has_begun",
        "heard_at",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 - its dependencies
        self,
        sink: TokenSink,
        reader: CompletionReader,
        timeouts: Timeouts,
        turns: ReadTurns,
        *,
        tenant: Hashable = None,
        on_first: Callable[[], None] | None = None,
        on_finish: Callable[[], None] | None = None,
    ) -> None:
        # Reads are parsed in the `turns` of the `tenant`. `on_first` is called before the sink has
        # the first chunk, `on_finish` before the last.
        self.connection: Connection | None = None
        self.has_begun = False
        self._loop = asyncio.get_running_loop()
        self.heard_at = self._loop.time()
        self._timeout_s = timeouts.first_token_s
        """Seconds of silence at this stage of the answer."""
        self._sink = sink
        self._reader = reader
        self._timeouts = timeouts
        self._turns = turns
        self._tenant = tenant
        self._on_first = on_first
        self._on_finish = on_finish
        self._run = copy_context().run
        self._body: ResponseBody | None = None
        self._changed: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._is_held = False
        """The sink has no room."""
        self._is_done = False
        self._kept_back = 0
        """Ids that the reader kept back when the timeout began."""

    def attach(self, body: ResponseBody) -> None:
        self._body = body
        self.connection = body.connection

    async def complete(self, body: ResponseBody) -> None:
        """Return once the sink has the finish, or needs no more.

        Raises the reader's fault, after the sink had all ids before it, and what the sink raises.
        Cancelling closes the connection at once.
        """
        self.attach(body)
        connection = body.connection
        try:
            if not self._is_done and not connection.is_pouring:
                connection.wait_until(self.heard_at + self._timeout_s)
                connection.pour(self)
            while not self._is_done:
                if self._is_held:
                    await self._go_on(connection)
                else:
                    self._changed = self._loop.create_future()
                    await self._changed
        finally:
            self._is_done = True
            body.close()
        if self._is_held and not await self._sink.room():
            return
        if self._error is not None:
            raise self._error

    async def _go_on(self, connection: Connection) -> None:
        if not await self._sink.room():
            self._break_off()
            return
        self._is_held = False
        if self._reader.has_more:
            self._defer(connection)
        else:
            self._read_on(connection)

    def take(self, data: bytes) -> None:
        if self.connection is None or self._turns.begin(self._tenant, len(data)):
            self._pass_on(self._reader.feed(data))
        else:
            self._reader.keep(data)
            self._defer(self.connection)

    def _defer(self, connection: Connection) -> None:
        connection.defer()
        self._turns.wait(self._tenant, self._reader.slice_bytes, self._on_turn)

    def _on_turn(self) -> None:
        if self._is_done or self.connection is None:
            return
        self._pass_on(self._reader.go_on())
        if not (self._reader.has_more or self._is_held or self._is_done):
            self._read_on(self.connection)

    def _read_on(self, connection: Connection) -> None:
        reader = self._reader
        if self.heard_at == math.inf:
            self.heard_at = self._loop.time()
        if self.has_begun and (reader.ids_left <= 0 or reader.finish is not None):
            self._timeout_s = self._timeouts.tail_s
        connection.wait_until(self.heard_at + self._timeout_s)
        connection.go_on()

    def end(self, error: httpx2.TransportError | None) -> None:
        # The body ended, broke off, or has brought no id for too long (`AnswerListener`).
        if error is None:
            why = "stream ended without a finish reason"
        else:
            why = _SILENCE if isinstance(error, httpx2.ReadTimeout) else describe(error)
        self._pass_on(self._reader.end(why))

    def _pass_on(self, chunk: TokenChunk | None) -> None:
        # None if the read brought no ids; it may have brought a fault.
        reader = self._reader
        if chunk is None:
            if reader.fault is not None:
                self._fail(reader.fault)
                return
            if reader.kept_back != self._kept_back:
                self._restart_timeout()
            if reader.has_more:
                self._defer_rest()
            return
        try:
            if not self.has_begun or chunk.finish is not None:
                self._run(self._notify_edges, chunk)
            has_room = self._run(self._sink.on_tokens, chunk)
        except Exception as error:  # noqa: BLE001  it comes out of `complete`
            self._fail(error)
            return
        if not has_room or chunk.finish is not None or reader.fault is not None:
            self._stop(has_room=has_room)
            return
        self._restart_timeout()
        if reader.has_more:
            self._defer_rest()

    def _defer_rest(self) -> None:
        if self.connection is not None:
            self._defer(self.connection)

    def _restart_timeout(self) -> None:
        # Ids restart the timeout, even if they are kept back; bytes alone do not.
        reader = self._reader
        self._kept_back = reader.kept_back
        if self.connection is None:
            return
        self.heard_at = self._loop.time()
        if reader.ids_left <= 0 or reader.finish is not None:
            self._timeout_s = self._timeouts.tail_s
        self.connection.wait_until(self.heard_at + self._timeout_s)

    def _notify_edges(self, chunk: TokenChunk) -> None:
        if not self.has_begun:
            self.has_begun = True
            self._timeout_s = self._timeouts.stall_s
            if self._on_first is not None:
                self._on_first()
        if chunk.finish is not None and self._on_finish is not None:
            self._on_finish()

    def _stop(self, *, has_room: bool) -> None:
        # For good, or until there is room.
        body, reader = self._body, self._reader
        self._is_held = not has_room
        if reader.finished and not reader.overran and body is not None:
            body.drain(self._timeouts.tail_s)
            self._is_done = True
            self._wake()
        elif reader.finished:
            self._break_off()
        elif reader.fault is not None:
            self._fail(reader.fault)
        else:
            self.heard_at = math.inf
            if self.connection is not None:
                self.connection.hold()
            self._wake()

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._break_off()

    def _break_off(self) -> None:
        if self._body is not None:
            self._body.close()
        self._is_done = True
        self._wake()

    def _wake(self) -> None:
        if self._changed is None:
            if self.connection is not None:
                self.connection.wake()
        elif not self._changed.done():
            self._changed.set_result(None)


def describe(error: httpx2.TransportError) -> str:
    return f"{type(error).__name__}: {error}"


_log = EventLog(__name__)

_PROMPT_ID_BYTES = 8
"""Six digits, a comma and a space."""
_REPEATED_ID_BYTES = 64
"""Bytes of its digits, and its text in escapes."""
_LOGPROB_BYTES = 64
INLINE_CALLS = 16
"""Calls of a grammar whose structural tag is made inline, in a millisecond."""
INLINE_CHAT_IDS: Final = 64 * 1024
"""Ids of a conversation whose body is made inline, in a millisecond."""

_DEFAULT_LIMITS = StreamLimits()
_ROOM_BITS = 63
_NOT_TAKEN = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.WriteError, httpx2.WriteTimeout)
"""The backend did not get the whole request, so it did nothing there."""


@dataclass(slots=True)
class _Attempt:
    """Request in the words of one writer; never changed, but frozen ones take three times as long
    to make.
    """

    request: TokenRequest
    writer: RequestWriter
    endpoint: TokenEndpoint
    sink: TokenSink
    on_first: Callable[[], None] | None
    on_finish: Callable[[], None] | None
    on_end: Callable[[int], None] | None
    grammar: Grammar | None = None
    pair: Fields | None = None


class InferenceServer:
    """Completions of one backend, always streamed: closing the connection stops the generation.

    Before `runs` the engine is used like vLLM without optional parameters.
    """

    def __init__(
        self,
        backend: Backend,
        client: Client,
        *,
        timeouts: Timeouts,
        limits: StreamLimits = _DEFAULT_LIMITS,
        prompts: PromptEncoder | None = None,
        read_turns: ReadTurns | None = None,
    ) -> None:
        # `prompts` encodes prompts for all servers, because a conversation moves between them;
        # `read_turns` are those of all streams.
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
        self._read_turns = ReadTurns() if read_turns is None else read_turns
        self._one_grammar = asyncio.Lock()
        self._client = client
        self._posts: dict[tuple[str | None, str], Post] = {}
        self._streams: set[TokenStream] = set()
        self._writer = RequestWriter()
        self._served: Mapping[str, ServedModel] | None = None

    @property
    def can(self) -> Capabilities:
        return self._writer.can

    def runs(self, engine: InferenceEngine) -> None:
        can = engine.capabilities(
            grammars=self._backend.grammars, priorities=self._backend.priorities
        )
        self._writer = RequestWriter(engine, can)

    def serves(self, served: Mapping[str, ServedModel]) -> None:
        # Keys are public ids.
        self._served = served

    def generate(
        self,
        request: TokenRequest,
        sink: TokenSink,
        *,
        on_first: Callable[[], None] | None = None,
        on_finish: Callable[[], None] | None = None,
        on_end: Callable[[int], None] | None = None,
    ) -> Coroutine[object, object, None]:
        """Generate into the sink: one chunk for each read that brought ids; the last has `finish`.

        The finish waits for the counts of cached tokens, ids never wait. Raises
        `UpstreamUnavailable` or `UpstreamRejected` before the first id, `UpstreamFailed` after it,
        and what the sink does, which must be none of these.

        A grammar that the backend refuses is left out: the caller is not to blame, and another
        backend of its kind would refuse it too. The output is checked anyway.
        """
        # Not a coroutine of its own: it would be there as long as the stream.
        writer = self._writer
        if request.chat is not None:
            attempt = _Attempt(request, writer, CHAT, sink, on_first, on_finish, on_end)
            return self._complete_chat(attempt)
        endpoint = writer.engine.endpoint(request)
        attempt = _Attempt(request, writer, endpoint, sink, on_first, on_finish, on_end)
        if request.constraint is None:
            return self._complete(attempt)
        return self._complete_bound(attempt, request.constraint)

    async def _complete_chat(self, attempt: _Attempt) -> None:
        # Raises `InvalidRequest` if the server lacks a parameter of the request: only the caller
        # can change that.
        try:
            await self._complete(attempt)
        except UpstreamRejected as error:
            refused = refused_parameter(attempt.request, error)
            if refused is None:
                raise
            _log.warning("backend refuses a parameter", upstream=self.name, error=error)
            raise refused from error

    async def _complete_bound(self, attempt: _Attempt, constraint: Constraint) -> None:
        grammar = await self._grammar(attempt, constraint)
        try:
            await self._complete(replace(attempt, grammar=grammar))
        except UpstreamError as error:
            if grammar is None or not may_blame_grammar(error):
                raise
            refused = error
        else:
            return

        def begun() -> None:
            self._note_refusal(refused)
            if attempt.on_first is not None:
                attempt.on_first()

        request = attempt.request
        free = replace(request, request_id=f"free-{request.request_id}")
        try:
            await self._complete(replace(attempt, request=free, on_first=begun))
        except UpstreamUnavailable as error:
            if isinstance(refused, BrokeDown):
                raise refused from error  # it was the request that brought it down
            raise

    async def _grammar(self, attempt: _Attempt, constraint: Constraint) -> Grammar | None:
        # A long computation runs in a thread, one at a time: several threads would each delay the
        # event loop.
        request, writer = attempt.request, attempt.writer
        if constraint.calls <= INLINE_CALLS or writer.has_tag_for(request, constraint):
            return writer.grammar(request)
        async with self._one_grammar:
            return await asyncio.to_thread(writer.grammar, request)

    def _note_refusal(self, error: UpstreamError) -> None:
        # A backend that refuses all grammars gets none until it is described again.
        _log.warning("backend refuses a grammar", upstream=self.name, error=error)
        if has_no_grammars(error):
            self._writer = replace(self._writer, can=replace(self._writer.can, grammars="none"))

    async def _complete(self, attempt: _Attempt) -> None:
        reader = self._reader(attempt)
        stream = TokenStream(
            attempt.sink,
            reader,
            self._timeouts,
            self._read_turns,
            tenant=attempt.request.tenant,
            on_first=attempt.on_first,
            on_finish=attempt.on_finish,
        )
        self._streams.add(stream)
        try:
            if self._backend.prefill is None:
                path, body = attempt.endpoint.path, self._body(attempt)
                await stream.complete(await self._post(path, await body, listener=stream))
            else:
                await self._complete_in_pair(self._backend.prefill, attempt, stream)
        finally:
            self._streams.discard(stream)
            if attempt.on_end is not None:
                attempt.on_end(reader.tokens_taken)
            if reader.overran:
                _log.warning("backend does not stop where it should", upstream=self.name)

    async def _complete_in_pair(
        self, prefill: Prefill, attempt: _Attempt, stream: TokenStream
    ) -> None:
        # A failure of the prefill server ends the request here too, since nothing else would report
        # it. Once the answer has begun, the decode server has all that it needs.
        host, port = prefill.bootstrap_host, prefill.bootstrap_port
        room = secrets.randbits(_ROOM_BITS)
        attempt = replace(attempt, pair=attempt.writer.engine.pair_fields(host, port, room))
        try:
            async with asyncio.TaskGroup() as group:
                reading = None
                if attempt.pair:
                    reading = group.create_task(self._prefill(prefill, attempt, stream))
                path, body = attempt.endpoint.path, self._body(attempt)
                await stream.complete(await self._post(path, await body, listener=stream))
                if reading is not None:
                    reading.cancel()
        except BaseExceptionGroup as errors:
            # The first is the cause: the group cancels what is left.
            raise errors.exceptions[0] from errors

    async def _prefill(self, prefill: Prefill, attempt: _Attempt, stream: TokenStream) -> None:
        # Errors are raised only before `stream`, that of the decode server, has begun.
        try:
            await self._read_prompt(prefill, attempt)
        except UpstreamError as error:
            if not stream.has_begun:
                raise
            _log.warning("prefill server fails behind its work", upstream=self.name, error=error)

    async def _read_prompt(self, prefill: Prefill, attempt: _Attempt) -> None:
        # Read to the end: to close early would end the work. Only a refusal counts, which may come
        # in a 200.
        path, base_url = attempt.endpoint.path, prefill.base_url
        content = await self._post(path, await self._body(attempt), base_url=base_url)
        try:
            reader = self._reader(attempt)
            async for part in content:
                reader.feed(part)
                while reader.has_more:
                    reader.go_on()
                if reader.fault is not None and is_refusal(reader.fault):
                    raise reader.fault
        except httpx2.TransportError as error:
            why = f"prefill {base_url}: {describe(error)}"
            raise UpstreamLost(why, upstream=self.name) from error
        finally:
            content.close()

    def _reader(self, attempt: _Attempt) -> CompletionReader:
        request, endpoint = attempt.request, attempt.endpoint
        sampling = request.sampling
        logprobs_per_id = 0 if sampling.logprobs is None else 1 + sampling.logprobs
        # The first event may repeat the prompt, and each has the requested logprobs.
        frame_bytes_max = self._limits.event_bytes_max * (1 + logprobs_per_id)
        frame_bytes_max += _PROMPT_ID_BYTES * len(request.prompt_ids)
        if endpoint.repeats:
            id_bytes = _REPEATED_ID_BYTES + _LOGPROB_BYTES * logprobs_per_id
            frame_bytes_max += id_bytes * sampling.max_tokens
        options: ReaderOptions = {
            "stop_ids": request.stop_ids,
            "frame_bytes_max": frame_bytes_max,
            "id_end": request.id_end,
            "constrained": attempt.grammar is not None and attempt.grammar.holds,
        }
        if request.chat is not None:
            options["constrained"] = binds_answer(request)
            thought, is_open = request.chat.thought, request.chat.opens_thought
            return ChatReader(
                self.name, sampling, thought=thought, opens_thought=is_open, **options
            )
        kind = GenerateReader if endpoint.events == "generate" else CompletionReader
        return kind(self.name, sampling, **options)

    async def ask(self, path: str, body: bytes, *, bytes_max: int) -> bytes:
        """Return the body of a 200 to `POST path`.

        Raises what `generate` does before a first chunk, and UpstreamFailed for a longer body.
        """
        answer = await self._post(path, [body])
        try:
            content = await read_body(answer, bytes_max + 1)
        except httpx2.TransportError as error:
            raise UpstreamLost(describe(error), upstream=self.name) from error
        finally:
            answer.close()
        if len(content) > bytes_max:
            raise UpstreamFailed(f"its answer is longer than {bytes_max} bytes", upstream=self.name)
        return content

    def hang_up_on_silent(self, silent_s: float, *, begun_only: bool) -> int:
        """End the generations without data for `silent_s`, and return how many."""
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
        """End every generation that is connected, and return how many."""
        connections = [one.connection for one in self._streams if one.connection is not None]
        for connection in connections:
            connection.hang_up(reason)
        return len(connections)

    async def _body(self, attempt: _Attempt) -> list[bytes]:
        request, writer = attempt.request, attempt.writer
        # SGLang answers with its base model for any name, so the model must be a listed one.
        if self._served is None:
            served = ServedModel(self._backend.models.get(request.model, request.model))
        elif request.model in self._served:
            served = self._served[request.model]
        else:
            raise ModelGone(f"does not list '{request.model}' any more", upstream=self.name)
        if request.chat:
            if len(request.prompt_ids) <= INLINE_CHAT_IDS:
                return chat_body(request, served, writer.engine)
            return await asyncio.to_thread(chat_body, request, served, writer.engine)
        # An engine that dies of an unknown id is not sent one.
        id_end = request.id_end if writer.engine.dies_of_unknown_ids else None
        try:
            prompt = await self._prompts.encode(
                request.prompt_ids, owner=request.cache_salt, id_end=id_end
            )
        except UnknownId as error:
            raise UpstreamRejected(str(error), upstream=self.name) from error
        return writer.body(
            request,
            served=served,
            endpoint=attempt.endpoint,
            prompt=prompt,
            grammar=attempt.grammar,
            pair=attempt.pair or {},
        )

    async def _post(
        self,
        path: str,
        body: list[bytes],
        *,
        base_url: str | None = None,
        listener: AnswerListener | None = None,
    ) -> ResponseBody:
        # Returns the body of a 200, and raises the error of any other status. `base_url` is that of
        # another server than the backend.
        post = self._posts.get((base_url, path))
        if post is None:
            backend = self._backend if base_url is None else self._backend.at(base_url)
            headers = {**self._backend.headers(), "content-type": "application/json"}
            post = self._posts[base_url, path] = Post(self._client, backend.url(path), headers)
        posting = post(body, timeouts=self._waits, listener=listener)
        del body  # it is as long as the prompt, and a generation takes minutes
        try:
            answer = await posting
        except httpx2.PoolTimeout as error:
            raise NoConnection(describe(error), upstream=self.name) from error
        except _NOT_TAKEN as error:
            raise UpstreamUnavailable(describe(error), upstream=self.name) from error
        except httpx2.TransportError as error:
            raise UpstreamLost(describe(error), upstream=self.name) from error
        if answer.status != 200:
            raise await self._refusal(answer)
        return answer.body

    async def _refusal(self, answer: HttpAnswer) -> UpstreamError:
        try:
            async with asyncio.timeout(self._timeouts.tail_s):  # for all of it
                body = await read_body(answer.body, self._limits.error_bytes_max)
        except TimeoutError:
            message = "(its message did not come in time)"
        except httpx2.TransportError as error:
            message = f"(its message was lost: {describe(error)})"
        else:
            message = message_of_body(body)
        finally:
            answer.body.close()
        retry_after_s = retry_after_of(answer.headers)
        return refusal(self.name, answer.status, message, retry_after_s=retry_after_s)
