"""Requests and events, in vLLM's exact form or SGLang's.

One prompt of token ids is taken, and one choice. `ignore_eos`, `min_tokens`, `logit_bias`,
`structured_outputs`, `response_format`, `stop` and `chat_template_kwargs` have no effect. Logprobs
mean nothing, but are the same for the same id.

Sources: responses of vLLM 0.32 with its parsers of gpt-oss, and of SGLang 0.5.23.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from uuid import UUID

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import override

from gateway.context.assembly import assemble
from gateway.errors import GatewayError, InvalidRequest
from gateway.generation import FinishReason, SegmentKind, SegmentStarted, SegmentText, Where
from gateway.models.format import RenderOptions
from gateway.models.harmony.harmony_format import HarmonyFormat
from gateway.models.harmony.tokenizer import (
    FIRST_SPECIAL,
    NAMED_SPECIALS,
    RETURN,
    STOP_IDS,
    VOCABULARY_SIZE,
)
from gateway.protocol.chat_conversion import parse_chat
from gateway.protocol.json_body import InputLimits
from gateway.protocol.responses.response_object import echo
from gateway.protocol.responses.response_rules import rules_of
from gateway.protocol.tool_types import declared

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gateway.constraints.output_rules import OutputRules
    from gateway.generation import SegmentEvent, TokenParser
    from gateway.models.harmony.tokenizer import Vocabulary
    from gateway.protocol.responses.create_request import CreateResponse

    Json = dict[str, Any]

PATH: Final = "/v1/completions"
LOGPROBS_MAX: Final = 20
_MAX_TOKENS_DEFAULT: Final = 16
_TokenId = Annotated[int, Field(ge=0, lt=VOCABULARY_SIZE)]


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Checked request; `max_tokens` fits into the context."""

    id: str | None
    model: str
    prompt: list[int]
    max_tokens: int
    stream: bool
    include_usage: bool
    return_token_ids: bool
    skip_special_tokens: bool
    include_stop_text: bool
    stop_ids: tuple[int, ...]
    logprobs: int | None = None
    """Alternatives for each id; None: no logprobs at all."""
    tokens_as_ids: bool = False
    """In logprobs."""
    chat_rules: OutputRules | None = None
    """None: it did not come to `/v1/chat/completions`."""


class _StreamOptions(BaseModel):
    include_usage: bool | None = None


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    prompt: list[_TokenId] = Field(min_length=1)
    model: str | None = None
    request_id: str | None = None
    rid: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    return_token_ids: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    stop_token_ids: list[_TokenId] | None = None
    logprobs: int | None = Field(None, ge=0, le=LOGPROBS_MAX)
    return_tokens_as_token_ids: bool | None = None


def request_of(members: Json, options: SimulatorOptions) -> CompletionRequest:
    try:
        body = _Body.model_validate(members)
    except ValidationError as error:
        raise bad_request(f"{error.error_count()} validation error:\n  {error}") from error
    is_sglang = options.engine == "sglang"
    model = body.model or options.models[0]
    if is_sglang:  # which answers with its model whatever `model` is
        model = options.models[0]
    elif model not in options.models:
        raise SimulatedError(404, f"The model `{model}` does not exist.", param="model")
    room = options.context_length - len(body.prompt)
    if room < 1:
        raise bad_request(
            f"This model's maximum context length is {options.context_length} tokens. However, "
            f"your prompt contains {len(body.prompt)} input tokens. Please reduce its length.",
            "input_tokens",
        )
    return CompletionRequest(
        id=body.rid if is_sglang else body.request_id,
        model=model,
        prompt=body.prompt,
        max_tokens=min(body.max_tokens or _MAX_TOKENS_DEFAULT, room),
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        return_token_ids=bool(body.return_token_ids),
        skip_special_tokens=body.skip_special_tokens is not False,
        include_stop_text=bool(body.include_stop_str_in_output),
        stop_ids=tuple(body.stop_token_ids or ()),
        logprobs=body.logprobs,
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
    )


def json_object(body: bytes) -> Json:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_shape(str(error.pos), "json_invalid", "JSON decode error", str(error)) from error
    if not isinstance(document, dict):
        raise bad_shape("", "model_attributes_type", "Input should be a valid dictionary", "")
    return document


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a stream; vLLM's `stop_reason` is None for `<|return|>` and for length."""

    finish: str
    stop_reason: int | None = None


def reply_to(request: CompletionRequest, rest: list[int]) -> tuple[list[int], Ending]:
    """Return the ids up to the first stop id or to `max_tokens`, whichever comes first."""
    stop_ids = {*STOP_IDS, *request.stop_ids}
    end = next((i for i, one in enumerate(rest, 1) if one in stop_ids), len(rest))
    ids = rest[: min(end, request.max_tokens)]
    last = ids[-1] if ids else RETURN
    if len(ids) == request.max_tokens and last not in stop_ids:
        return ids, Ending(FinishReason.LENGTH.value)
    return ids, Ending(FinishReason.STOP.value, last if last in stop_ids - {RETURN} else None)


_STEP: Final = 0.125
_STEPS: Final = 64
_SURPRISE_EVERY: Final = 5
"""One id of so many is not the likeliest at its position."""
_SPECIAL_TEXT: Final = {one: name for name, one in NAMED_SPECIALS.items()}


def logprob_of(token: int) -> float:
    # Between -8 and -0.125, exact in binary.
    return -_STEP * (1 + token % _STEPS)


def alternatives(token: int, count: int) -> dict[int, float]:
    """Return `token` and the others of the `count` likeliest ids at its position, best first."""
    own = logprob_of(token)
    others = [(token + 1 + number) % FIRST_SPECIAL for number in range(count)]
    top = {one: own - _STEP * number for number, one in enumerate(others, 1)}
    if token % _SURPRISE_EVERY == 0 and others:
        top[others[0]] = own / 2
        return {token: own} | {one: top[one] for one in others[: max(count - 1, 1)]}
    return {token: own} | {one: top[one] for one in others[: max(count - 1, 0)]}


class Likelihoods:
    """`logprobs` of a stream's events; offsets count characters."""

    def __init__(self, request: CompletionRequest, vocabulary: Vocabulary) -> None:
        self._count = request.logprobs or 0
        self._by_id = request.tokens_as_ids
        self._vocabulary = vocabulary
        self._offset = 0

    def of(self, ids: Sequence[int]) -> Json:
        names = [self._name(one) for one in ids]
        offsets = []
        for name in names:
            offsets.append(self._offset)
            self._offset += len(name)
        tops = [alternatives(one, self._count) for one in ids]
        return {
            "text_offset": offsets,
            "token_logprobs": [logprob_of(one) for one in ids],
            "tokens": names,
            "top_logprobs": [
                {self._name(one): logprob for one, logprob in top.items()} for top in tops
            ],
        }

    def _name(self, token: int) -> str:
        if self._by_id:
            return f"token_id:{token}"
        if token >= FIRST_SPECIAL:
            return _SPECIAL_TEXT.get(token, "")
        return self._vocabulary.decode([token])


DONE: Final = b"data: [DONE]\n\n"
_MIDDLE: Final = (
    b',"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,'
    b'"token_ids":['
)
_TAIL: Final = b"]}]}\n\n"


def event(document: Json) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


class EventTails:
    """Second half of an event with one id of whole characters."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._tails: dict[int, bytes | None] = {}

    def __getitem__(self, token: int) -> bytes | None:
        # None for a marker, and for an id that is not whole characters.
        try:
            return self._tails[token]
        except KeyError:
            tail = self._tails[token] = self._make(token)
            return tail

    def _make(self, token: int) -> bytes | None:
        if token >= FIRST_SPECIAL:
            return None
        try:
            text = self.vocabulary.piece(token).decode()
        except UnicodeDecodeError:
            return None
        return orjson.dumps(text) + _MIDDLE + b"%d" % token + _TAIL


class EventWriter:
    """Writer of a stream; text comes once its characters are complete."""

    def __init__(
        self, head: Json, request: CompletionRequest, tails: EventTails, options: SimulatorOptions
    ) -> None:
        self._head = head
        self._request = request
        self._vocabulary = tails.vocabulary
        self._tails = tails
        self._fingerprint = f"vllm-{options.engine_version}-simulated"
        self._is_sglang = options.engine == "sglang"
        has_logprobs = request.logprobs is not None and not self._is_sglang
        self._likelihoods = Likelihoods(request, self._vocabulary) if has_logprobs else None
        self._is_plain = request.return_token_ids and not has_logprobs and not self._is_sglang
        self._begin = b"data: " + orjson.dumps(head)[:-1] + b',"choices":[{"index":0,"text":'
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_first = True

    def events(self, ids: Sequence[int], ids_per_event: int, ending: Ending | None) -> bytes:
        """Return events of `ids_per_event` ids each; the last one carries the ending."""
        cut = max(len(ids) - 1, 0) // ids_per_event * ids_per_event if ending else len(ids)
        frames = [
            self._frame(ids[start : min(start + ids_per_event, cut)])
            for start in range(0, cut, ids_per_event)
        ]
        if ending:
            frames.append(self._event(ids[cut:], ending))
        return b"".join(frames)

    def usage(self, usage: Json) -> bytes:
        if not self._request.include_usage:
            return b""
        tail = {"choices": [], "usage": usage}
        if not self._is_sglang:
            tail["system_fingerprint"] = self._fingerprint
        return event({**self._head, **tail})

    def _frame(self, ids: Sequence[int]) -> bytes:
        if len(ids) == 1 and not self._is_first and self._is_plain:
            tail = self._tails[ids[0]]
            if tail is not None and not self._decoder.getstate()[0]:
                return self._begin + tail
        return self._event(ids, None)

    def _event(self, ids: Sequence[int], ending: Ending | None) -> bytes:
        document = {**self._head, "choices": [self.choice(ids, ending)]}
        if self._is_sglang:
            document["usage"] = None
        elif ending and not self._request.include_usage:
            document["system_fingerprint"] = self._fingerprint
        return event(document)

    def choice(self, ids: Sequence[int], ending: Ending | None) -> Json:
        """Return the choice of an event or of a response; the first echoes the prompt."""
        request = self._request
        echo = request.prompt if self._is_first and request.return_token_ids else None
        self._is_first = False
        reason = "matched_stop" if self._is_sglang else "stop_reason"
        return {
            "index": 0,
            "text": self._text(ids, ending),
            "logprobs": self._likelihoods.of(ids) if self._likelihoods else None,
            "finish_reason": ending.finish if ending else None,
            reason: self._stop_reason(ids, ending) if ending else None,
            "prompt_token_ids": echo,
            "token_ids": list(ids) if request.return_token_ids else None,
        }

    def body(self, ids: Sequence[int], ending: Ending, usage: Json) -> Json:
        choice = self.choice(ids, ending)
        echo = choice.pop("prompt_token_ids")
        choice |= {"prompt_logprobs": None, "prompt_token_ids": echo, "routed_experts": None}
        return {
            **self._head,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": self._fingerprint,
            "usage": {"prompt_tokens_details": None, **usage, "completion_tokens_details": None},
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _stop_reason(self, ids: Sequence[int], ending: Ending) -> int | None:
        # SGLang names the end-of-sequence id too.
        if self._is_sglang and ending.finish == "stop" and ids:
            return ids[-1]
        return ending.stop_reason

    def _text(self, ids: Sequence[int], ending: Ending | None) -> str:
        shown = list(ids)
        if ending and ending.finish == "stop" and not self._request.include_stop_text:
            shown = shown[:-1]
        parts = [self._text_of(one) for one in shown]
        return "".join(parts) + (self._decoder.decode(b"", final=True) if ending else "")

    def _text_of(self, token: int) -> str:
        if token < FIRST_SPECIAL:
            return self._decoder.decode(self._vocabulary.piece(token))
        broken = self._decoder.decode(b"", final=True)
        if self._request.skip_special_tokens:
            return broken
        return broken + _SPECIAL_TEXT.get(token, "")


CHAT_PATH: Final = "/v1/chat/completions"
_LIMITS: Final = InputLimits(
    json_depth_max=128,
    items_max=10_000,
    tools_max=1024,
    schema_bytes_max=1_000_000,
    text_chars_max=32 * 1024 * 1024,
    json_containers_max=1_000_000,
)
_NOBODY: Final = UUID(int=0)


class Conversations:
    def __init__(self, vocabulary: Vocabulary, *, context_length: int) -> None:
        self.format = HarmonyFormat(vocabulary)
        self._context_length = context_length

    def as_completion(self, members: Json, body: bytes) -> tuple[Json, OutputRules]:
        """Return the equivalent completion, and the rules to read its output by.

        CPU work that grows with the prompt.
        """
        try:
            request = parse_chat(body, limits=_LIMITS).request
            prompt = self._prompt(request)
        except InvalidRequest as error:
            raise bad_request(str(error), error.param) from error
        wished = members.get("max_completion_tokens") or members.get("max_tokens")
        completion = {
            **members,
            "prompt": prompt,
            "max_tokens": wished or max(self._context_length - len(prompt), 1),
            "logprobs": (members.get("top_logprobs") or 0) if members.get("logprobs") else None,
        }
        return completion, rules_of(echo(request))

    def read(self, body: bytes, options: SimulatorOptions) -> CompletionRequest:
        members, rules = self.as_completion(json_object(body), body)
        return replace(request_of(members, options), chat_rules=rules)

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


_VISIBLE: Final = (SegmentKind.FINAL, SegmentKind.COMMENTARY)


class ChatWriter(EventWriter):
    """Writer of the ids that `parser` reads."""

    def __init__(
        self,
        head: Json,
        request: CompletionRequest,
        tails: EventTails,
        options: SimulatorOptions,
        parser: TokenParser,
    ) -> None:
        super().__init__(head, request, tails, options)
        self._parser = parser
        self._kind: SegmentKind | None = None
        self._calls = 0
        self._unspelled: list[int] = []
        """Ids of an answer whose text was not sent yet."""

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
            if place.where is Where.BODY and place.kind in _VISIBLE and token < FIRST_SPECIAL:
                self._unspelled.append(token)
            yield from self._event_deltas(self._parser.feed([token]))
        if ending is not None:
            is_over = ending.finish == FinishReason.STOP.value
            yield from self._event_deltas(
                self._parser.finish(FinishReason.STOP if is_over else FinishReason.LENGTH)
            )

    def _event_deltas(self, events: Iterable[SegmentEvent]) -> Iterator[tuple[Json, list[Json]]]:
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
        if self._kind in _VISIBLE:
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


_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    500: "InternalServerError",
    503: "Service Unavailable",
}

_SGLANG_TYPES = {400: "BadRequest", 500: "InternalServerError", 503: "SERVICE_UNAVAILABLE"}


class SimulatedError(GatewayError):
    """Answer to a request with `status` and `body()`."""

    def __init__(
        self, status: int, message: str, *, kind: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind or _TYPES.get(status, "InternalServerError")
        self.param = param

    def body(self, engine: str = "vllm") -> dict[str, Any]:
        return self._flat() if engine == "sglang" else self._nested()

    def _flat(self) -> dict[str, Any]:
        return {
            "object": "error",
            "message": self.message,
            "type": _SGLANG_TYPES.get(self.status, str(self.status)),
            "param": None,
            "code": self.status,
        }

    def _nested(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.status,
            }
        }


def bad_request(message: str, param: str | None = None) -> SimulatedError:
    return SimulatedError(400, message, param=param)


def bad_shape(place: str, kind: str, message: str, value: object) -> SimulatedError:
    """Return the error of vLLM's request validation."""
    detail = {"type": kind, "loc": f"body.{place}", "msg": message, "input": str(value)[:100]}
    return SimulatedError(
        400, f"1 validation error:\n  {detail}", kind="Bad Request", param=f"body.{place}"
    )


Engine = Literal["vllm", "sglang"]
_RECENT: Final[dict[Engine, str]] = {"vllm": "0.32.0", "sglang": "0.5.23"}
_READY_SINCE: Final = (0, 5, 20)
"""The SGLang that has `/ready`."""


@dataclass(frozen=True, slots=True)
class SimulatorOptions:
    models: tuple[str, ...] = ("gpt-oss-20b", "gpt-oss-120b")
    """Served names; a request without a model gets the first."""
    engine: Engine = "vllm"
    version: str | None = None
    """Version that it claims to be; None: a recent one."""
    context_length: int = 131_072
    """Ids of prompt and output together."""
    body_bytes_max: int = 32 * 1024 * 1024

    @property
    def engine_version(self) -> str:
        return self.version or _RECENT[self.engine]

    @property
    def release(self) -> tuple[int, ...]:
        numbers = re.match(r"\d+(?:\.\d+)*", self.engine_version)
        return tuple(map(int, numbers[0].split("."))) if numbers else ()

    @property
    def has_ready(self) -> bool:
        return self.engine == "sglang" and self.release >= _READY_SINCE
