"""Requests and events of `POST /v1/chat/completions`.

A conversation becomes a prompt in Harmony, as servers of gpt-oss do it. `stop`, `n`,
`response_format` and `chat_template_kwargs` have no effect on a script.

Source: vLLM 0.32 with its parsers of gpt-oss. SGLang calls thoughts `reasoning_content`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from typing_extensions import override

from gateway.context.assembly import assemble
from gateway.errors import InvalidRequest
from gateway.generation import FinishReason, SegmentKind, SegmentStarted, SegmentText, Where
from gateway.models.format import RenderOptions
from gateway.models.harmony.harmony_format import HarmonyFormat
from gateway.models.harmony.vocabulary import FIRST_SPECIAL
from gateway.protocol.chat_conversion import parse_chat
from gateway.protocol.json_body import InputLimits
from gateway.protocol.responses.response_object import echo
from gateway.protocol.responses.response_rules import rules_of
from gateway.protocol.tool_types import declared
from gateway.simulator.errors import bad_request
from gateway.simulator.wire.frames import EventWriter, alternatives, event
from gateway.simulator.wire.requests import Fields, json_object, request_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gateway.constraints.output_rules import OutputRules
    from gateway.generation import SegmentEvent, TokenParser
    from gateway.models.harmony.vocabulary import Vocabulary
    from gateway.protocol.responses.create_request import CreateResponse
    from gateway.simulator.options import SimulatorOptions
    from gateway.simulator.wire.frames import Ending
    from gateway.simulator.wire.requests import CompletionRequest

    Json = dict[str, Any]

PATH: Final = "/v1/chat/completions"
_LIMITS: Final = InputLimits(
    json_depth_max=128,
    items_max=10_000,
    tools_max=1024,
    schema_bytes_max=1_000_000,
    text_chars_max=32 * 1024 * 1024,
    json_containers_max=1_000_000,
)
_SAME: Final = (
    *("model", "request_id", "stream", "stream_options", "temperature", "top_p", "top_k", "min_p"),
    *("presence_penalty", "frequency_penalty", "seed", "cache_salt", "priority"),
)
_NOBODY: Final = UUID(int=0)


class Conversations:
    """Reader of these requests, with the gateway's own rendering and limits for gpt-oss."""

    def __init__(self, vocabulary: Vocabulary, *, context_length: int) -> None:
        self.format = HarmonyFormat(vocabulary)
        self._context_length = context_length

    def as_completion(
        self, members: dict[str, Any], body: bytes
    ) -> tuple[dict[str, Any], OutputRules]:
        """Return the equivalent completion request, and the rules to read its output by.

        Raises `SimulatedError`.
        """
        try:
            request = parse_chat(body, limits=_LIMITS).request
            prompt = self._prompt(request)
        except InvalidRequest as error:
            raise bad_request(str(error), error.param) from error
        rules = rules_of(echo(request))
        wished = members.get("max_completion_tokens") or members.get("max_tokens")
        completion = {name: members[name] for name in _SAME if name in members} | {
            "prompt": prompt,
            "max_tokens": wished or max(self._context_length - len(prompt), 1),
            "logprobs": (members.get("top_logprobs") or 0) if members.get("logprobs") else None,
        }
        return completion, rules

    def read(self, body: bytes, options: SimulatorOptions) -> CompletionRequest:
        """Return the request of a body. CPU work that grows with the prompt; raises as above."""
        members, rules = self.as_completion(json_object(body), body)
        return replace(request_of(Fields(members), options), chat_rules=rules)

    def parser(self, rules: OutputRules) -> TokenParser:
        # Reads one turn.
        return self.format.new_parser(rules)

    def _prompt(self, request: CreateResponse) -> list[int]:
        context = assemble((), request.input, stored={}, unsealed={}, response=_NOBODY)
        options = RenderOptions(
            instructions=None,
            tools=declared(request.tools) if request.tools else (),
            effort=echo(request)["reasoning"]["effort"],
            current_date=None,
            model_identity="You are ChatGPT, a large language model trained by OpenAI.",
            knowledge_cutoff="2024-06",
            commentary_without_tools=False,
            answer=rules_of(echo(request)).answer,
        )
        return list(self.format.render(context.items, options).ids)


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
