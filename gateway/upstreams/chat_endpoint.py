"""Chat endpoints of servers: a conversation becomes a request, and answers become ids of text.

Hosted APIs refuse unknown parameters, so only values other than OpenAI's defaults are sent. vLLM,
SGLang, llama.cpp, Ollama, TGI and hosted APIs agree in little about answers:

* thoughts are `reasoning_content` or `reasoning` (vLLM since 0.11, Ollama), or parts of a content
  that is a list (Mistral);
* calls come whole (Ollama, TGI) or in fragments; their index may be missing, or be 0 of each; their
  id may be missing, come late, be repeated, or be another one in each fragment; arguments may be an
  object; an API of before 2023-11 has one `function_call`;
* the usage stands in the last choice, or behind it in an event without choices, or nowhere; one
  that comes earlier covers what came until then;
* `choices[0].logprobs.content` has tokens with their text, and bytes where the server knows them.
  Half a character comes with an event whose text is empty, or with the next one;
* errors come with a status, or as an event of a 200.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson
from typing_extensions import Unpack, override

from gateway.errors import ContextOverflow, InvalidRequest
from gateway.generation import IN_TOKEN, UNTOLD, FinishReason, ReportedUsage, TextLogprob, TextToken
from gateway.text_ids import (
    ANSWER,
    ARGUMENTS,
    ASSISTANT_START,
    CALL,
    END,
    MESSAGE_START,
    THOUGHT,
    estimated_tokens,
    ids_of,
    unpacked_lines,
)
from gateway.upstreams.engines import TOP_P_MIN, optional_sampling
from gateway.upstreams.problems import as_json, code_of, message_of
from gateway.upstreams.token_readers import CompletionReader, finite

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gateway.errors import UpstreamRejected
    from gateway.generation import Sampling, TokenChunk, TokenRequest
    from gateway.upstreams.backend import ServedModel
    from gateway.upstreams.engines import InferenceEngine
    from gateway.upstreams.token_readers import ReaderOptions


TOKEN_BYTES_MAX: Final = 256
"""No token is longer."""


def tokens_of(logprobs: object, alternatives: int) -> list[TextToken] | None:
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list):
        return None
    return [_token(one, alternatives) for one in content if isinstance(one, dict)]


def _token(entry: dict[str, Any], alternatives: int) -> TextToken:
    others = entry.get("top_logprobs")
    top = others[:alternatives] if isinstance(others, list) else ()
    return TextToken(
        _piece(entry),
        finite(entry.get("logprob")),
        tuple((_piece(one), finite(one.get("logprob"))) for one in top if isinstance(one, dict)),
    )


def _piece(entry: dict[str, Any]) -> bytes:
    # The bytes of the token's text if `bytes` is missing.
    numbers, token = entry.get("bytes"), entry.get("token")
    try:
        if isinstance(numbers, list):
            return bytes(numbers)[:TOKEN_BYTES_MAX]
    except (TypeError, ValueError):
        pass  # they are no bytes
    return token.encode("utf-8", "replace")[:TOKEN_BYTES_MAX] if isinstance(token, str) else b""


def spelled(text: str, tokens: Sequence[TextToken]) -> Iterator[tuple[str, list[TextToken]]]:
    """Yield the text in parts, each with the tokens that begin in it.

    The text is one part if the tokens do not spell it, byte for byte.
    """
    content = text.encode("utf-8", "replace")
    if b"".join(token.piece for token in tokens) != content:
        yield text, list(tokens)
        return
    begun: list[TextToken] = []
    start = end = 0
    for token in tokens:
        # Not in the middle of a character, nor behind all of them.
        if start < end < len(content) and content[end] & 0xC0 != 0x80:
            yield content[start:end].decode(), begun
            start, begun = end, []
        begun.append(token)
        end += len(token.piece)
    yield content[start:].decode(), begun


_RESULT: Final = b'{"role":"tool"'
FORMAT: Final = "response_format"
_OF_A_FORMAT: Final = re.compile(
    r"response_?format|json_?schema|json_?object|grammar|guided|structured", re.IGNORECASE
)
_OF_LOGPROBS: Final = re.compile("log_?prob", re.IGNORECASE)


def chat_body(request: TokenRequest, served: ServedModel, engine: InferenceEngine) -> list[bytes]:
    lines = unpacked_lines(request.prompt_ids)
    options: dict[str, Any] = {}
    for line in lines:
        if not line.startswith(MESSAGE_START):
            options |= orjson.loads(line)
    bound = dict(request.constraint.chat or {}) if request.constraint is not None else {}
    allowed = bound.pop("allowed", None)
    if allowed is not None:
        options["tools"] = _select_tools(options.get("tools", ()), allowed)
    body = {
        "model": served.name,
        "stream": True,
        "stream_options": {"include_usage": True},
        **_sampling(request),
        **_logprobs(request.sampling.logprobs),
        **options,
        **bound,
        **engine.chat_fields(request),
    }
    messages = b",".join(_answering(line for line in lines if line.startswith(MESSAGE_START)))
    return [b'{"messages":[', messages, b"],", orjson.dumps(body)[1:]]


def _logprobs(alternatives: int | None) -> dict[str, Any]:
    if alternatives is None:
        return {}
    return {"logprobs": True, **({"top_logprobs": alternatives} if alternatives else {})}


def binds_answer(request: TokenRequest) -> bool:
    # True if the server must hold the model to a format; all servers that take formats support
    # this.
    return request.constraint is not None and FORMAT in (request.constraint.chat or ())


def refused_parameter(request: TokenRequest, error: UpstreamRejected) -> InvalidRequest | None:
    """Return the error for the caller if a server lacks a parameter."""
    if isinstance(error, ContextOverflow):
        return None
    if request.sampling.logprobs is not None and _OF_LOGPROBS.search(error.reason):
        return InvalidRequest(
            "The server of this model tells no log probabilities, or not so many. Leave "
            "'message.output_text.logprobs' out of include, and top_logprobs out of the request.",
            code="unsupported_parameter",
            param="include",
        )
    if binds_answer(request) and _OF_A_FORMAT.search(error.reason):
        return InvalidRequest(
            "The server of this model does not take this format of an answer. Leave 'text.format' "
            "out, or use another schema, or another model.",
            code="unsupported_parameter",
            param="text.format",
        )
    return None


def _select_tools(tools: Iterable[dict[str, Any]], names: Iterable[str]) -> list[dict[str, Any]]:
    wanted = set(names)
    return [tool for tool in tools if tool["function"]["name"] in wanted]


def _sampling(request: TokenRequest) -> dict[str, Any]:
    sampling = request.sampling
    fields: dict[str, Any] = {"temperature": sampling.temperature}
    if request.chat is not None and request.chat.limits_output:
        fields["max_tokens"] = sampling.max_tokens
    if sampling.top_p != 1.0:  # which TGI refuses
        fields["top_p"] = max(sampling.top_p, TOP_P_MIN)
    if sampling.presence_penalty:
        fields["presence_penalty"] = sampling.presence_penalty
    if sampling.frequency_penalty:
        fields["frequency_penalty"] = sampling.frequency_penalty
    return fields | optional_sampling(sampling)


def _answering(lines: Iterable[bytes]) -> Iterator[bytes]:
    # A tool result that names no call answers the last assistant message before it.
    assistant = b""
    for line in lines:
        if line.startswith(ASSISTANT_START):
            assistant = line
        elif line.startswith(_RESULT) and assistant:
            message = orjson.loads(line)
            if "tool_call_id" not in message:
                calls = orjson.loads(assistant).get("tool_calls") or [{"id": ""}]
                yield orjson.dumps({"role": "tool", "tool_call_id": calls[-1]["id"], **message})
                continue
        yield line.rstrip()


COUNT_LIMIT: Final = 1 << 24
"""No turn has so many tokens; all of a response fit into its row."""
_FINISH: Final = {
    "stop": FinishReason.STOP,
    "tool_calls": FinishReason.STOP,
    "function_call": FinishReason.STOP,
    "eos_token": FinishReason.STOP,  # TGI
    "stop_sequence": FinishReason.STOP,  # TGI
    "eos": FinishReason.STOP,  # Together
    "end_turn": FinishReason.STOP,  # xAI, and what translates from Anthropic's API
    "tool_use": FinishReason.STOP,  # the latter
    "length": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,  # Mistral
    "max_tokens": FinishReason.LENGTH,  # Anthropic
    "content_filter": FinishReason.FILTERED,
    "repetition": FinishReason.LENGTH,  # vLLM
}
"""Every other reason ("abort", "error", …) is a failure."""
_THOUGHTS: Final = ("reasoning_content", "reasoning")
_DONE: Final = b"[DONE]"
CHARACTERS_PER_TOKEN_MAX: Final = 64
"""Servers count tokens, and one that never ends must end somewhere."""
CALLS_MAX: Final = 128


_STRUCTURE: Final = re.compile(r'\\.|["{}\[\]]', re.DOTALL)
"""Parts of a JSON text that show where values end; an escape is one match."""
DUE_TOKENS_MAX: Final = 64
"""Tokens without a text, each a part of a character."""
ID_CHARACTERS_MAX: Final = 256
"""Characters of the id of a call, which clients never see."""


class CallArguments:
    """Arguments of a call, each character of which is scanned once."""

    __slots__ = (
        "_depth", "_escape", "_in_string", "_is_object", "_looked_at", "_parts", "_untold",
        "is_blank",
    )  # fmt: skip

    def __init__(self) -> None:
        self.is_blank = True
        self._parts: list[str] = []
        self._untold: list[str] = []
        self._looked_at = 0
        self._depth = 0
        self._in_string = False
        self._escape = ""
        """A backslash at the end of what was scanned."""
        self._is_object: bool | None = None
        """True: what closed is an object, and only white space follows; None: nothing closed."""

    def add(self, text: str) -> None:
        self.is_blank = self.is_blank and not text.strip()
        self._parts.append(text)
        self._untold.append(text)

    def untold(self) -> str:
        text = "".join(self._untold)
        self._untold.clear()
        return text

    @property
    def is_whole(self) -> bool:
        while self._looked_at < len(self._parts):
            part = self._parts[self._looked_at]
            self._looked_at += 1
            self._look_at(part)
        return self._is_object is True

    def _look_at(self, part: str) -> None:
        if self._is_object is not None:
            self._is_object = self._is_object and not part.strip()
            return
        text, self._escape = self._escape + part, ""
        end = 0
        for match in _STRUCTURE.finditer(text):
            end = match.end()
            if self._closes(match[0]):
                self._is_object = self._has_object()
                return
        if text.endswith("\\") and end < len(text):
            self._escape = "\\"

    def _closes(self, mark: str) -> bool:
        if mark == '"':
            self._in_string = not self._in_string
        elif not self._in_string and mark in "{[":
            self._depth += 1
        elif not self._in_string and mark in "}]":
            self._depth -= 1
            return self._depth <= 0
        return False

    def _has_object(self) -> bool:
        text = "".join(self._parts[: self._looked_at])
        try:
            return isinstance(orjson.loads(text), dict)
        except orjson.JSONDecodeError:
            return False


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    arguments: CallArguments = field(default_factory=CallArguments)
    is_announced: bool = False


@dataclass(slots=True)
class _Calls:
    """Calls of one turn in their order; `kept_back` characters wait until their call is `open`."""

    begun: list[_Call] = field(default_factory=list)
    by_index: dict[int, _Call] = field(default_factory=dict)
    open: _Call | None = None
    kept_back: int = 0

    def of(self, fragment: dict[str, Any], name: str) -> _Call:
        """Return the call that a fragment belongs to, perhaps a new one."""
        index, call_id = fragment.get("index"), fragment.get("id")
        call_id = call_id[:ID_CHARACTERS_MAX] if isinstance(call_id, str) else ""
        if type(index) is int:
            call = self.by_index.get(index)
        else:
            call = self.begun[-1] if self.begun and not (name and call_id) else None
            call = next((one for one in self.begun if call_id and one.id == call_id), call)
        if call is not None and self._is_another(call, call_id, name):
            call = None
        if call is None:
            call = _Call()
            self.begun.append(call)
        if type(index) is int:
            self.by_index[index] = call
        call.id = call.id or call_id
        if name and not call.name:
            call.name = name
            self.kept_back += len(name)
        return call

    def add(self, call: _Call, arguments: str) -> None:
        call.arguments.add(arguments)
        if not call.is_announced:
            self.kept_back += len(arguments)

    def tell(self, call: _Call) -> str:
        """Open a call, and return its arguments so far."""
        self.open, call.is_announced = call, True
        text = call.arguments.untold()
        self.kept_back -= len(call.name) + len(text)
        return text

    def next(self) -> _Call | None:
        """Return the next call to open, if the open call is complete.

        A call without any arguments is complete once the arguments of a later call begin.
        """
        waiting = next((one for one in self.begun if one.name and not one.is_announced), None)
        if waiting is None or self.open is None or self.open.arguments.is_whole:
            return waiting
        return waiting if self._is_passed(self.open) else None

    def _is_passed(self, call: _Call) -> bool:
        if not call.arguments.is_blank:
            return False
        behind = self.begun[self.begun.index(call) + 1 :]
        return any(not one.arguments.is_blank for one in behind)

    def _is_another(self, call: _Call, call_id: str, name: str) -> bool:
        # Ollama gave all calls the index 0, and other servers give none. A name begins a call.
        if not name:
            return False
        if call_id and call.id and call_id != call.id:
            return True
        if not call.name or call_id:
            return False
        return name != call.name or call.arguments.is_whole


_BARE: Final = re.compile(r"\S")


class TaggedThought:
    """Content that may begin with thoughts between two tags, taken apart.

    `is_open`: the prompt had the first tag. Tags elsewhere are text: they speak of thoughts.
    """

    __slots__ = ("_closing", "_front", "_front_size", "_held", "_mark", "_opening", "is_open")

    def __init__(self, opening: str, closing: str, *, is_open: bool = False) -> None:
        self.is_open = is_open
        self._opening = opening
        self._closing = closing
        self._front: list[str] = []
        """White space that may be followed by a tag."""
        self._held = ""
        """Text that may be the beginning of a tag."""
        self._mark: int | None = None
        """Thought or answer, once it is certain."""
        self._front_size = 0

    @property
    def kept_back(self) -> int:
        return self._front_size + len(self._held)

    def feed(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the parts that can be classified, each with its mark."""
        text, at = self._held + text, 0
        self._held = ""
        while True:
            if self._mark is None:
                at = self._skip_front(text, at)
                begun = text[at : at + len(self._opening)]
                if begun == self._opening:
                    self._mark, at = THOUGHT, at + len(begun)
                elif self._opening.startswith(begun):
                    self._held = begun
                    return
                else:
                    self._mark = self._open_mark
            if self._mark != THOUGHT:
                self._held = text[at:]
                yield self.release()
                return
            self._take_front()
            end = text.find(self._closing, at)
            if end < 0:
                thought = text[at:]
                held = _front_at_end(thought, self._closing)
                self._held = thought[len(thought) - held :]
                yield THOUGHT, thought[: len(thought) - held]
                return
            yield THOUGHT, text[at:end]
            self._mark, self.is_open = None, False
            at = end + len(self._closing)

    def _skip_front(self, text: str, at: int) -> int:
        bare = _BARE.search(text, at)
        end = len(text) if bare is None else bare.start()
        self._front.append(text[at:end])
        self._front_size += end - at
        return end

    def release(self) -> tuple[int, str]:
        """End the search for a tag, and return the rest with its mark."""
        held, self._held = self._take_front() + self._held, ""
        return self._open_mark if self._mark is None else self._mark, held

    @property
    def _open_mark(self) -> int:
        return THOUGHT if self.is_open else ANSWER

    def _take_front(self) -> str:
        front = "".join(self._front)
        self._front.clear()
        self._front_size = 0
        return front


def _front_at_end(text: str, tag: str) -> int:
    return next((size for size in range(len(tag) - 1, 0, -1) if text.endswith(tag[:size])), 0)


class ChatReader(CompletionReader):
    """A `CompletionReader` for chat completions, whose text becomes ids of text."""

    __slots__ = ("_calls", "_content", "_due", "_is_untold", "_mark", "_reported_usage")

    def __init__(
        self,
        upstream: str,
        sampling: Sampling,
        *,
        thought: tuple[str, str] | None = None,
        opens_thought: bool = False,
        **options: Unpack[ReaderOptions],
    ) -> None:
        # `thought` has the tags around a thought in the content, and with `opens_thought` the
        # content begins within one; None: the server reports thoughts separately.
        super().__init__(upstream, sampling, **options)
        # An id is a character, or a mark: see `tokens_taken`.
        self.ids_left = self._ids_max = CHARACTERS_PER_TOKEN_MAX * (1 + sampling.max_tokens)
        self._ids_left_before = self._ids_max
        self._due: list[TextToken] = []
        """Tokens whose text has not been reported."""
        self._is_untold = False
        self._mark: int | None = None
        self._content = None if thought is None else TaggedThought(*thought, is_open=opens_thought)
        self._calls = _Calls()
        self._reported_usage: ReportedUsage | None = None
        """Counts of all that came; None if more has come since."""

    @property
    @override
    def tokens_taken(self) -> int:
        # The server's count, or an estimate from the number of characters.
        came = self._ids_max - self.ids_left + self.kept_back
        usage = self._reported_usage
        return estimated_tokens(came) if usage is None else min(usage.output_tokens, self._ids_max)

    @property
    @override
    def kept_back(self) -> int:
        # Characters of calls after the open one, and of what may become a tag.
        content = 0 if self._content is None else self._content.kept_back
        return content + self._calls.kept_back

    @override
    def _chunk(self) -> TokenChunk | None:
        chunk = super()._chunk()
        if chunk is not None and chunk.finish is not None:
            chunk.usage = self._reported_usage
        return chunk

    @override
    def _event(self, payload: bytes) -> None:
        if payload == _DONE:
            self._done()
        elif isinstance(event := _decode_event(payload), dict):
            self._take_event(event)
        else:
            self._break("event is not a JSON object")

    def _done(self) -> None:
        if self.finish is None:
            self._break("stream ended without a finish reason")
        self._is_over = True

    def _take_event(self, event: dict[str, Any]) -> None:
        if event.get("error") is not None or event.get("object") == "error":
            self._on_refusal(code_of(event), message_of(event))
            return
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if self.finish is None and isinstance(choice, dict):
            # Whatever its index, which some servers count up: there is one choice.
            self._take_choice(choice)
        self._note_usage(event.get("usage"))
        if choice is None:
            # Behind the finish: the token counts, which come last.
            self._is_over = self.finish is not None and self._reported_usage is not None

    def _take_choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta") or choice.get("message")
        if isinstance(delta, dict):
            self._take_delta(delta, choice.get("logprobs"))
            self._bound_kept_back()
        reason = choice.get("finish_reason")
        if self._is_over or reason is None or reason == "":
            return
        finish = _FINISH.get(reason.lower()) if isinstance(reason, str) else None
        if finish is None:
            self._break(f"finish reason {message_of(reason)}")
            return
        self._tell_held()
        self._tell_waiting()
        if finish is FinishReason.STOP:
            self._say([END])
        self.finish = self.finish or finish

    def _take_delta(self, delta: dict[str, Any], likely: object) -> None:
        thought = next((delta[name] for name in _THOUGHTS if delta.get(name)), None)
        if isinstance(thought, str):
            if self._content is not None:
                self._content.is_open = False  # the server tells thoughts apart itself
            self._tell(THOUGHT, thought)
        # With a thought it is unknown which tokens belong to the answer.
        self._take_content(delta.get("content"), None if thought else likely)
        if isinstance(refusal := delta.get("refusal"), str):
            self._tell(ANSWER, refusal)
        calls = delta.get("tool_calls")
        if isinstance(calls, dict):  # TGI before 3.0
            calls = [calls]
        if isinstance(legacy := delta.get("function_call"), dict):
            calls = [{"index": 0, "function": legacy}]
        for fragment in calls if isinstance(calls, list) else ():
            if isinstance(fragment, dict) and not self._is_over:
                self._take_call(fragment)

    def _take_content(self, content: object, likely: object) -> None:
        if isinstance(content, list):
            for part in content:
                self._take_part(part)
        elif isinstance(content, str) and self._alternatives is None:
            self._tell_content(content)
        elif isinstance(content, str):
            self._tell_spelled(content, tokens_of(likely, self._alternatives or 0))

    def _take_part(self, part: object) -> None:
        # A part of a content list is `{"type": "text", "text"}`, or a thought, which is a list of
        # such.
        if not isinstance(part, dict):
            return
        if isinstance(text := part.get("text"), str):
            self._tell(ANSWER, text)
        thinking = part.get("thinking")
        if isinstance(thinking, str):
            self._tell(THOUGHT, thinking)
        for inner in thinking if isinstance(thinking, list) else ():
            if isinstance(inner, dict) and isinstance(text := inner.get("text"), str):
                self._tell(THOUGHT, text)

    def _take_call(self, fragment: dict[str, Any]) -> None:
        function = fragment.get("function")
        if not isinstance(function, dict):
            return
        self._tell_held()
        self._due.clear()
        self._reported_usage = None
        name, arguments = function.get("name"), function.get("arguments")
        call = self._calls.of(fragment, name if isinstance(name, str) else "")
        if len(self._calls.begun) > CALLS_MAX:
            self._break(f"more than {CALLS_MAX} calls in one turn")
            return
        if isinstance(arguments, dict):
            arguments = as_json(arguments)
        if isinstance(arguments, str) and arguments:
            if call.is_announced and call is not self._calls.open and arguments.strip():
                self._break("a call goes on after it was whole")
                return
            self._calls.add(call, arguments)
        self._tell_calls()

    def _tell_calls(self) -> None:
        # The next call is reported only once the open one is complete.
        calls = self._calls
        if calls.open is not None:
            self._say(ids_of(calls.open.arguments.untold()))
        while (call := calls.next()) is not None:
            self._open_call(call)

    def _open_call(self, call: _Call) -> None:
        self._mark = CALL
        arguments = self._calls.tell(call)
        self._say([CALL, *ids_of(call.name), ARGUMENTS, *ids_of(arguments)])

    def _tell_waiting(self) -> None:
        self._tell_calls()
        for call in self._calls.begun:
            if not call.is_announced and call.name:
                self._open_call(call)

    def _bound_kept_back(self) -> None:
        # Characters kept back count against the limit; beyond it they wait no longer and the turn
        # ends.
        if self._is_over or self.kept_back <= self.ids_left:
            return
        self._tell_held()
        self._tell_waiting()
        if not self._is_over:
            self._break("what it calls has no name")

    def _tell_spelled(self, text: str, tokens: list[TextToken] | None) -> None:
        # `tokens` None: logprobs of this text are unknown.
        if tokens is None or len(self._due) > DUE_TOKENS_MAX:
            self._is_untold = self._is_untold or bool(text)
            self._due.clear()
            self._tell_content(text)
            return
        tokens = [*self._due, *tokens]
        if not text:
            self._due = tokens
            return
        self._due = []
        for part, begun in spelled(text, tokens):
            self._due += begun
            self._tell_content(part)

    def _tell_content(self, text: str) -> None:
        if self._content is None:
            self._tell(ANSWER, text)
            return
        for mark, part in self._content.feed(text):
            self._tell(mark, part)

    def _tell_held(self) -> None:
        if self._content is not None:
            mark, part = self._content.release()
            self._tell(mark, part)

    def _tell(self, mark: int, text: str) -> None:
        # White space after a call is ignored: some servers send it between two fragments of a call.
        if mark == THOUGHT:
            self._due.clear()  # its tokens, and those of its tags
        if not text or (self._mark == CALL and text.isspace()):
            return
        self._reported_usage = None
        if self._mark != mark:
            self._tell_waiting()
            self._calls.open = None
            self._mark = mark
            self._say([mark])
        ids = ids_of(text)
        self._say(ids, self._likelihoods(len(ids)) if mark == ANSWER else ())

    def _likelihoods(self, characters: int) -> Sequence[TextLogprob]:
        if self._alternatives is None:
            return ()
        logprobs = [IN_TOKEN] * characters
        if self._is_untold:
            logprobs[0] = UNTOLD
        elif self._due:
            logprobs[0] = TextLogprob(tuple(self._due))
        self._due, self._is_untold = [], False
        return logprobs

    def _say(self, ids: list[int], logprobs: Sequence[TextLogprob] = ()) -> None:
        if self._is_over:
            return
        if self._alternatives is not None and not logprobs:
            logprobs = [IN_TOKEN] * len(ids)
        self._keep(ids, logprobs)

    def _note_usage(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        prompt, made = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
        if prompt is None or made is None or not (prompt or made):
            return
        cached = _count(usage.get("prompt_tokens_details"), "cached_tokens") or 0
        thought = _count(usage.get("completion_tokens_details"), "reasoning_tokens")
        thought = thought or _count(usage, "reasoning_tokens") or 0
        self._reported_usage = ReportedUsage(prompt, made, min(thought, made), min(cached, prompt))


def _count(values: object, name: str) -> int | None:
    count = values.get(name) if isinstance(values, dict) else None
    return count if type(count) is int and 0 <= count < COUNT_LIMIT else None


def _decode_event(payload: bytes) -> object:
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        pass
    try:
        # Half of a surrogate pair, as servers write it that cut text anywhere.
        return json.loads(payload)
    except (ValueError, RecursionError):
        return None
