"""The events of `POST /v1/chat/completions`.

Source: vLLM 0.32 with its parsers of gpt-oss. SGLang calls thoughts `reasoning_content`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from gateway.generation import FinishReason, SegmentKind, SegmentStarted, SegmentText, Where
from gateway.models.harmony.vocabulary import FIRST_SPECIAL
from gateway.simulator.wire.frames import EventWriter, alternatives, event

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gateway.generation import SegmentEvent, TokenParser
    from gateway.simulator.wire.frames import Ending

    Json = dict[str, Any]

_SAID: Final = (SegmentKind.FINAL, SegmentKind.COMMENTARY)


class ChatWriter(EventWriter):
    """Writer of the events of one stream, or of its one answer. Call `reads_by` before the first
    id.
    """

    _parser: TokenParser

    def reads_by(self, parser: TokenParser) -> ChatWriter:
        """Use `parser` to read the ids, and return this writer."""
        self._parser = parser
        self._kind: SegmentKind | None = None
        self._calls = 0
        self._unspelled: list[int] = []
        """Ids of an answer whose text is not told yet."""
        return self

    @override
    def _event(self, ids: Sequence[int], ending: Ending | None) -> bytes:
        choices = [self._choice(delta, likely) for delta, likely in self._deltas(ids, ending)]
        if self._is_first:
            self._is_first = False
            choices.insert(0, self._choice({"role": "assistant", "content": ""}))
        if ending is not None:
            choices.append(self._choice({}, finish=self._finish(ending)))
        usage = {"usage": None} if self._is_sglang else {}
        return b"".join(event({**self._head, "choices": [one], **usage}) for one in choices)

    @override
    def body(self, ids: Sequence[int], ending: Ending, usage: Json) -> Json:
        texts: dict[str, str] = {}
        calls: list[Json] = []
        content: list[Json] = []
        for delta, likely in self._deltas(ids, ending):
            content += likely
            for fragment in delta.pop("tool_calls", ()):
                if "id" in fragment:
                    calls.append({name: fragment[name] for name in ("id", "type", "function")})
                else:
                    calls[-1]["function"]["arguments"] += fragment["function"]["arguments"]
            for name, text in delta.items():
                texts[name] = texts.get(name, "") + text
        message = {"role": "assistant", "content": None, **texts, "tool_calls": calls}
        choice = self._choice(message, content, finish=self._finish(ending))
        choice["message"] = choice.pop("delta")
        head = {**self._head, "object": "chat.completion"}
        return {**head, "choices": [choice], "usage": usage}

    def _choice(
        self, delta: Json, likely: Sequence[Json] = (), *, finish: str | None = None
    ) -> Json:
        logprobs = {"content": list(likely)} if likely else None
        return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}

    def _finish(self, ending: Ending) -> str:
        return "tool_calls" if self._calls and ending.finish == "stop" else ending.finish

    def _deltas(
        self, ids: Sequence[int], ending: Ending | None
    ) -> Iterator[tuple[Json, list[Json]]]:
        # Each delta comes with the log probabilities of its tokens, which only answers have.
        for token in ids:
            place = self._parser.place
            if place.where is Where.BODY and place.kind in _SAID and token < FIRST_SPECIAL:
                self._unspelled.append(token)
            yield from self._told(self._parser.feed([token]))
        if ending is not None:
            is_over = ending.finish == FinishReason.STOP.value
            yield from self._told(
                self._parser.finish(FinishReason.STOP if is_over else FinishReason.LENGTH)
            )

    def _told(self, events: Iterable[SegmentEvent]) -> Iterator[tuple[Json, list[Json]]]:
        for one in events:
            if isinstance(one, SegmentStarted):
                self._kind = one.kind
                if one.kind is SegmentKind.FUNCTION_CALL:
                    self._calls += 1
                    yield self._call(one.name), []
            elif isinstance(one, SegmentText):
                yield self._more(one.text), self._likely()

    def _call(self, name: str) -> Json:
        index = self._calls - 1
        front = {"id": f"call-{index}-{self._head['id']}", "type": "function", "index": index}
        return {"tool_calls": [{**front, "function": {"name": name, "arguments": ""}}]}

    def _more(self, text: str) -> Json:
        if self._kind in _SAID:
            return {"content": text}
        if self._kind is SegmentKind.REASONING:
            return {"reasoning_content" if self._is_sglang else "reasoning": text}
        return {"tool_calls": [{"index": self._calls - 1, "function": {"arguments": text}}]}

    def _likely(self) -> list[Json]:
        ids, self._unspelled = self._unspelled, []
        count = self._request.logprobs
        return [] if count is None else [self._likelihood(one, count) for one in ids]

    def _likelihood(self, token: int, count: int) -> Json:
        tops = alternatives(token, count)
        top = [self._named(one, logprob) for one, logprob in tops.items()]
        return {**self._named(token, tops[token]), "top_logprobs": top if count else []}

    def _named(self, token: int, logprob: float) -> Json:
        piece = self._vocabulary.piece(token)
        text = piece.decode("utf-8", "replace")
        return {"token": text, "logprob": logprob, "bytes": list(piece)}
