"""A second model format: its vocabulary is the 256 bytes and five markers.

A prompt is `<user>…<end>` and `<model>…<end>`, one behind the other, and `<model>` at its end. The
model may think first (`<think>…<end>`); its answer is over at `<stop>`.
"""

from __future__ import annotations

import json
from array import array
from codecs import getincrementaldecoder
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from gateway.generation import (
    PREAMBLE,
    FinishReason,
    Framing,
    ParserPosition,
    Prompt,
    SegmentEnded,
    SegmentKind,
    SegmentStarted,
    SegmentText,
    Span,
    Where,
)
from gateway.models.format import TokenPiece
from gateway.models.history import (
    PlacedItem,
    in_call_order,
    message_text,
    since_compaction,
    without_stale_reasoning,
)
from gateway.protocol.items import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from starlette.requests import Request

    from gateway.constraints.output_rules import OutputRules
    from gateway.generation import Constraint, SegmentEvent, TokenParser
    from gateway.models.format import (
        FormatOptions,
        GrammarOptions,
        Rendering,
        RenderOptions,
        RepeatedHistory,
        TokenPart,
        Turn,
    )
    from gateway.protocol.context_item import Columns, ContextItem

USER, MODEL, THINK, END, STOP = range(256, 261)
SIZE: Final = 261


class ByteParser:
    """Reads one turn."""

    def __init__(self, *, trace: bool) -> None:
        self.recoveries: dict[str, int] = {}
        self.reasoning_tokens = 0
        self._trace = trace
        self._at = self._start = 0
        self._kind: SegmentKind | None = None
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._pending: tuple[int, ...] = ()
        self._is_over = False

    @property
    def place(self) -> ParserPosition:
        if self._is_over:
            return ParserPosition(Where.OVER, self._at)
        if self._kind is None:
            return ParserPosition(Where.HEADER, self._at)
        return ParserPosition(Where.BODY, self._start, self._kind)

    def piece(self, token: int) -> bytes:
        return bytes((token,)) if token < 256 else b""

    def feed_each(self, ids: Sequence[int]) -> list[str]:
        return []

    def feed(self, ids: Sequence[int]) -> list[SegmentEvent]:
        return [event for token in ids for event in self._step(token)]

    def finish(self, reason: FinishReason | None) -> list[SegmentEvent]:
        events = list(self._close(complete=reason is FinishReason.STOP))
        self._is_over = True
        return events

    def _step(self, token: int) -> Iterator[SegmentEvent]:
        if not self._is_over:
            yield from self._read(token)
        self._at += 1

    def _read(self, token: int) -> Iterator[SegmentEvent]:
        if token >= 256:
            yield from self._close(complete=True, end=self._at + 1)
            self._is_over = token == STOP
            if token == THINK:
                yield self._open(SegmentKind.REASONING)
            return
        if self._kind is None:
            yield self._open(SegmentKind.FINAL)
        self.reasoning_tokens += self._kind is SegmentKind.REASONING
        self._pending += (self._at,)
        if text := self._decoder.decode(bytes((token,))):
            tokens, self._pending = self._pending, ()
            yield SegmentText(text, tokens if self._trace else ())

    def _open(self, kind: SegmentKind) -> SegmentStarted:
        self._kind, self._start = kind, self._at
        return SegmentStarted(kind)

    def _close(self, *, complete: bool, end: int | None = None) -> Iterator[SegmentEvent]:
        if self._kind is not None:
            if rest := self._decoder.decode(b"", final=True):
                yield SegmentText(rest)
            self._pending, self._kind = (), None
            yield SegmentEnded(self._start, self._at if end is None else end, complete)


class ByteFormat:
    """A `ModelFormat` in which everything is spelled out."""

    name: Final = "bytes"
    abilities: Final = ("reasoning",)
    template_state: Final = b""
    questions: Final[tuple[bytes, ...]] = ()
    vocabulary_size: Final = SIZE
    text_ids: Final = range(256)
    stop_ids: Final = (STOP,)
    framing: Final = Framing(opening=(MODEL,), turn_end=STOP, message_end=END, stores_ids=False)
    framing_tokens: Final = 2
    header_markers: Final = frozenset({THINK})
    has_text_headers: Final = False
    plain_header_ids_max: Final = 0

    @classmethod
    def load(cls, options: FormatOptions) -> ByteFormat:
        return cls()

    def misfits(self, rendered: Mapping[bytes, Rendering]) -> tuple[str, ...]:
        return ()

    def relearn(self) -> None:
        """Nothing is learned."""

    def with_state(self, template_state: bytes) -> ByteFormat:
        return self

    def check(self) -> None:
        """Nothing else renders it."""

    def render(
        self,
        items: Sequence[ContextItem],
        options: RenderOptions,
        repeated: RepeatedHistory | None = None,
    ) -> Prompt:
        ids = array("I", list((options.instructions or "").encode()))
        spans = [Span(PREAMBLE, 0, len(ids))]
        placed = since_compaction(PlacedItem(at, item) for at, item in enumerate(items))
        for one in in_call_order(without_stale_reasoning(placed)):
            made = self.render_item(one.item) if one.item.ids is None else one.item.ids
            spans.append(Span(one.source, len(ids), len(ids) + len(made)))
            ids.extend(made)
        ids.append(MODEL)
        return Prompt(ids, tuple(spans))

    def render_item(self, item: ContextItem, function: str | None = None) -> Sequence[int]:
        typed = item.item()
        if not isinstance(typed, Message):
            return ()
        who = MODEL if typed.role == "assistant" else USER
        return [who, *message_text(typed).encode(), END]

    def prefill_size(self, prompt_ids: Sequence[int]) -> int:
        return 0

    def with_result(self, ids: Sequence[int], result: Sequence[int]) -> Sequence[int]:
        return [*ids[:-1], *result, MODEL]

    def render_result(self, name: str, text: str) -> tuple[int, ...]:
        return (USER, *text.encode(), END)

    def render_call(self, name: str, arguments: str) -> tuple[int, ...]:
        return (MODEL, *arguments.encode(), END)

    def count_ids(self, text: str) -> int:
        return len(text.encode())

    def encode(self, text: str) -> Sequence[int]:
        return list(text.encode())

    def repeated_ids(self, history: Columns, *, is_answered: bool) -> None:
        return None

    def messages(self, prompt: Prompt, *, with_ids: bool) -> list[dict[str, Any]]:
        return [{"text": spelled(prompt.ids[:-1])}]

    def messages_of_turn(
        self,
        ids: Sequence[int],
        taken_back: Sequence[tuple[str, Sequence[int]]] = (),
        *,
        with_ids: bool = False,
    ) -> list[dict[str, Any]]:
        return [{"text": spelled(ids)}]

    def anatomy(self, ids: Iterable[int], part: TokenPart = "role") -> list[TokenPiece]:
        return [
            TokenPiece(bytes((token,)), "body", "body")
            if token < 256
            else TokenPiece(b"<%d>" % token, "marker", "body")
            for token in ids
        ]

    def new_parser(self, rules: OutputRules, *, trace: bool = False) -> TokenParser:
        return ByteParser(trace=trace)

    def turn_ids(self, turns: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[int]:
        return [token for prefill, said in turns for token in (*prefill, *said)]

    def rerender(self, turns: Iterable[Turn], new_parser: Callable[[], TokenParser]) -> list[int]:
        return [token for ids, _ in turns for token in (*ids, END, MODEL) if token != STOP]

    def answer_opening(self, rules: OutputRules, *, attempt: int) -> tuple[int, ...]:
        return ()

    def call_opening(self, rules: OutputRules) -> tuple[int, ...]:
        return ()

    def message_opening(self) -> tuple[int, ...]:
        return ()

    def plain_header(self, ids: Sequence[int], at: int) -> int:
        return 0

    def has_body(self, message: Sequence[int]) -> bool:
        return True

    def turn_constraint(
        self,
        rules: OutputRules,
        place: ParserPosition,
        message: Sequence[int],
        options: GrammarOptions,
    ) -> Constraint | None:
        return None


def spelled(ids: Iterable[int]) -> str:
    """The text of ids, a marker as a line break."""
    return bytes(token if token < 256 else 10 for token in ids).decode("utf-8", "replace")


def byte_backend(asked: list[dict[str, Any]]) -> Starlette:
    """A server whose model thinks "hm" and answers how many users spoke, and the last one's words
    in capitals. The bodies of its requests are put into `asked`.
    """

    async def complete(request: Request) -> StreamingResponse:
        body = await request.json()
        asked.append(body)
        said = "".join(map(chr, body["prompt"])).split(chr(USER))[1:]
        last = bytes(map(ord, said[-1].split(chr(END))[0])).decode()
        answer = f"{len(said)}: {last.upper()}".encode()
        ids = [THINK, *b"hm", END, *answer, STOP][: body["max_tokens"]]

        def events() -> Iterator[str]:
            for token in ids[:-1]:
                yield _event([token])
            yield _event(ids[-1:], "stop" if ids[-1] == STOP else "length")
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    def models(_: Request) -> JSONResponse:
        row = {"id": "bytes", "object": "model", "max_model_len": 4096}
        return JSONResponse({"object": "list", "data": [row]})

    return Starlette(
        routes=[
            Route("/version", lambda _: JSONResponse({"version": "0.32.0"})),
            Route("/health", lambda _: JSONResponse({})),
            Route("/v1/models", models),
            Route("/v1/completions", complete, methods=["POST"]),
        ]
    )


def _event(ids: list[int], finish: str | None = None) -> str:
    choice = {"index": 0, "text": "", "finish_reason": finish, "token_ids": ids}
    return f"data: {json.dumps({'object': 'text_completion', 'choices': [choice]})}\n\n"
