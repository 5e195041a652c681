"""Models whose servers take a conversation and return text: Ollama, TGI, llama.cpp, hosted APIs.

Such servers return no ids. So a prompt is the conversation itself, packed as lines of JSON, one
message each, and a turn is its text, with marks between the parts (`gateway.text_ids`):

    THOUGHT text  |  ANSWER text  |  CALL name ARGUMENTS text  |  END

A turn has no prefill, and cannot be continued (`Framing.is_text`). Requests with images to models
of format `chat` are sent in this way, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import orjson

from gateway.errors import ConfigError
from gateway.generation import (
    AnyText,
    Constraint,
    FinishReason,
    Framing,
    ParserPosition,
    Prompt,
    SegmentEnded,
    SegmentKind,
    SegmentStarted,
    SegmentText,
    Where,
)
from gateway.models.chat.call_syntax import THINK, Rule, called_tool, offered_name
from gateway.models.chat.chat_messages import (
    ANY,
    call_id_of,
    chat_conversation,
    functions,
    object_of,
    require_some,
    with_summary_text,
)
from gateway.models.chat.chat_parser import Prose, Unit, text_kind
from gateway.models.chat.families import NO_EFFORT, NONE, REASONING, preset_for
from gateway.models.chat.image_gallery import Gallery
from gateway.models.format import (
    RAW,
    SEES,
    TAKEN_BACK_BY,
    UNTHINKS,
    FixedFormat,
    ImageLimits,
    ServerRenderedFormat,
    TokenPiece,
    count_recoveries,
)
from gateway.models.history import message_text
from gateway.models.json_values import ValueScanner, escaped
from gateway.protocol.items import Message
from gateway.text_ids import (
    ANSWER,
    ARGUMENTS,
    CALL,
    END,
    TEXT_IDS,
    TEXT_IDS_END,
    TEXT_STATE,
    THOUGHT,
    ids_of,
    is_text,
    packed_lines,
    prompt_tokens,
    text_of,
    unpacked_lines,
)

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gateway.constraints.output_rules import AnswerFormat, OutputRules
    from gateway.generation import SegmentEvent, TokenParser
    from gateway.models.chat.chat_messages import ChatMessage
    from gateway.models.format import (
        FormatOptions,
        GrammarOptions,
        RenderOptions,
        RepeatedHistory,
        TokenPart,
        Turn,
    )
    from gateway.protocol.context_item import ContextItem

    Switched = Callable[[str | None, str], dict[str, Any]]
    """Requested effort, and the effort in its place → template arguments."""

_MARKS: Final = frozenset({THOUGHT, ANSWER, CALL, ARGUMENTS, END})
NO_ARGUMENTS: Final = "{}"


class TextParser:
    """Parser of one turn of text (`gateway.generation.TokenParser`).

    It accepts any input, however its ids are cut into chunks.
    """

    __slots__ = (
        "_call", "_ended_by", "_events", "_has_arguments", "_has_called", "_is_finished",
        "_is_over", "_is_value_over", "_name", "_position", "_prose", "_rules", "_scanner",
        "_start", "_trace", "_visible", "reasoning_tokens", "recoveries",
    )  # fmt: skip

    def __init__(self, rules: OutputRules, *, trace: bool = False) -> None:
        self._trace = trace
        self.recoveries: dict[str, int] = {}
        self.reasoning_tokens = 0
        self._rules = rules
        self._events: list[SegmentEvent] = []
        self._position = 0
        self._start = 0  # of the message that is open
        self._prose: Prose | None = None
        self._name: str | None = None  # of a call whose arguments have not begun
        self._call: SegmentStarted | None = None
        self._scanner = ValueScanner()  # of the arguments
        self._is_value_over = False
        self._has_arguments = self._has_called = self._visible = False
        self._ended_by = ""  # the hosted tool that was called
        self._is_over = self._is_finished = False

    @property
    def place(self) -> ParserPosition:
        start, called = self._start, self._has_called
        if self._is_over:
            kind = SegmentKind.FUNCTION_CALL if self._ended_by else None
            return ParserPosition(Where.OVER, self._position, kind, self._ended_by)
        if self._call is not None:
            return ParserPosition(Where.BODY, start, self._call.kind, self._call.name)
        if self._prose is not None:
            return ParserPosition(Where.BODY, start, self._prose.kind, called=called)
        return ParserPosition(Where.HEADER, start, called=called)

    def piece(self, token: int) -> bytes:
        return text_of((token,)).encode("utf-8", "replace")

    def feed(self, ids: Sequence[int]) -> list[SegmentEvent]:
        for begin, end in _runs(ids):
            if self._is_over:
                self._note(Rule.AFTER_TURN_END, times=end - begin)
            elif ids[begin] in _MARKS:
                self._mark(ids[begin])
            elif ids[begin] in TEXT_IDS:
                self._write(text_of(ids[begin:end]), end - begin)
            else:
                self._note(Rule.RESERVED_ID, times=end - begin)
            self._position += end - begin
        return self._take()

    def feed_each(self, ids: Sequence[int]) -> list[str]:  # noqa: ARG002 - logs of text have no single ids
        return []

    def finish(self, reason: FinishReason | None) -> list[SegmentEvent]:
        if not self._is_over:
            self._close(self._position, complete=reason is FinishReason.STOP, at_mark=False)
        is_whole = reason not in {None, FinishReason.CUT}
        if is_whole and not self._visible and not self._is_finished:
            self._note(Rule.NO_VISIBLE_OUTPUT)
        self._is_over = self._is_finished = True
        return self._take()

    def _take(self) -> list[SegmentEvent]:
        events = list(self._events)
        self._events.clear()  # which what is open has, too
        return events

    def _note(self, *rules: Rule, times: int = 1) -> None:
        count_recoveries(self.recoveries, rules, times)

    def _write(self, text: str, size: int) -> None:
        prose = self._prose
        if self._name is not None:
            self._name += text
        elif self._call is not None:
            self._has_arguments = True
            self._events.append(SegmentText(self._escaped(text)))
        else:
            if prose is None:  # without a mark it is an answer
                prose = self._begin(text_kind(self._rules), self._position)
            if prose.kind is SegmentKind.REASONING:
                self.reasoning_tokens += size
            end = self._position + size
            prose.write(Unit(text, self._position, end, is_exact=self._trace))
            is_shown = prose.is_started and prose.kind is not SegmentKind.REASONING
            self._visible = self._visible or is_shown

    def _escaped(self, text: str) -> str:
        # Control characters in strings of the arguments: else they would be no JSON.
        if self._is_value_over:
            return text
        end = self._scanner.end(text)
        self._is_value_over = end is not None
        if not self._scanner.controls:
            return text
        if Rule.CONTROL_CHARACTER not in self.recoveries:
            self._note(Rule.CONTROL_CHARACTER)
        return escaped(text, self._scanner.controls)

    def _begin(self, kind: SegmentKind, start: int) -> Prose:
        self._start = start
        # With `trace` white space at the front of a token is part of its text.
        trace = self._trace
        self._prose = Prose(kind, start, self._events, keeps_front=trace, trace=trace)
        return self._prose

    def _mark(self, mark: int) -> None:
        if mark == ARGUMENTS:
            self._begin_arguments()
            return
        self._close(self._position, complete=True, at_mark=mark != END)
        if self._is_over:
            return
        self._start = self._position
        if mark == END:
            self._is_over = True
        elif mark == CALL:
            self._name = ""
        else:
            self._begin(
                SegmentKind.REASONING if mark == THOUGHT else text_kind(self._rules), self._position
            )

    def _begin_arguments(self) -> None:
        if self._name is None:
            self._note(Rule.MARKER_IN_BODY)
            return
        tool, rules = called_tool(self._name, self._rules.tools)
        self._note(*rules)
        self._name, self._has_arguments = None, False
        self._scanner, self._is_value_over = ValueScanner(), False
        self._call = SegmentStarted(SegmentKind.FUNCTION_CALL, tool)
        self._visible = True
        self._events.append(self._call)

    def _close(self, end: int, *, complete: bool, at_mark: bool) -> None:
        prose, call, self._prose, self._call = self._prose, self._call, None, None
        if self._name is not None:
            self._name = None
            self._note(Rule.ABANDONED_CALL)
        if prose is not None:
            prose.close(end, complete=complete, at_marker=at_mark)
        if call is None:
            return
        if complete and not self._has_arguments:
            self._note(Rule.EMPTY_ARGUMENTS)
            self._events.append(SegmentText(NO_ARGUMENTS))
        self._has_called = True
        self._events.append(SegmentEnded(self._start, end, complete))
        if complete and call.name in self._rules.hosted:
            self._ended_by, self._is_over = call.name, True


def _runs(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(ids):
        end = at
        while end < len(ids) and ids[end] in TEXT_IDS:
            end += 1
        if end > at:
            yield at, end
        if end < len(ids):
            yield end, end + 1
        at = end + 1


class EitherParser:
    """Parser of turns of ids or text: the first id of a turn decides which."""

    __slots__ = ("_parser", "_text_parser", "recoveries")

    def __init__(self, parser: TokenParser, text_parser: TokenParser) -> None:
        self.recoveries = parser.recoveries
        self._parser = parser
        self._text_parser: TokenParser | None = text_parser

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    @property
    def place(self) -> ParserPosition:
        return self._parser.place

    def piece(self, token: int) -> bytes:
        return self._parser.piece(token)

    def feed(self, ids: Sequence[int]) -> list[SegmentEvent]:
        self._decide(ids)
        return self._parser.feed(ids)

    def feed_each(self, ids: Sequence[int]) -> list[str]:
        self._decide(ids)
        return self._parser.feed_each(ids)

    def finish(self, reason: FinishReason | None) -> list[SegmentEvent]:
        return self._parser.finish(reason)

    def _decide(self, ids: Sequence[int]) -> None:
        if ids and self._text_parser is not None:
            self._parser = self._text_parser if is_text(ids) else self._parser
            self._text_parser = None
            self.recoveries = self._parser.recoveries


_BEHIND_NAME: Final = "\0"


def turn_line(ids: Sequence[int]) -> array[int]:
    """Return the line with the assistant's message of a finished turn; empty without content.

    Thoughts and a call that was cut off are left out.
    """
    answer, calls = "", list[dict[str, Any]]()
    for mark, text, is_closed in _parts(ids):
        if mark == CALL and is_closed:
            name, _, arguments = text.partition(_BEHIND_NAME)
            calls.append(_tool_call(f"call {len(calls)}", name.strip(), arguments))
        elif mark == ANSWER:
            answer = f"{answer}\n\n{text}" if answer else text
    if not (answer or calls):
        return packed_lines(())
    return assistant_line(answer, calls)


def assistant_line(text: str, calls: Sequence[dict[str, Any]]) -> array[int]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = calls
    return packed_lines((orjson.dumps(message),))


def _tool_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": offered_name(name), "arguments": object_of(name, arguments or NO_ARGUMENTS)}
    return {"id": call_id_of(call_id), "type": "function", "function": function}


def _parts(ids: Sequence[int]) -> Iterator[tuple[int, str, bool]]:
    mark, text, begun = ANSWER, "", 0
    for at, one in enumerate([*ids, END]):
        if one in TEXT_IDS:
            continue
        text += text_of(ids[begun:at])
        begun = at + 1
        if one == ARGUMENTS:
            text += _BEHIND_NAME
            continue
        if text:
            yield mark, text, at < len(ids)
        mark, text = one, ""


_THOUGHTS: Final = ("reasoning", "reasoning_content")
_SPEAKING: Final = frozenset({"user", "system", "tool"})
_ABILITIES: Final = ("structured_outputs", "streaming", "background")
FRAMING: Final = Framing((), END, END, stores_ids=False, is_text=True, marks_answers=False)


_MARK_NAMES: Final = {
    THOUGHT: b"<thought>",
    ANSWER: b"<answer>",
    CALL: b"<call>",
    ARGUMENTS: b"<arguments>",
    END: b"<end>",
}


def text_piece(token: int) -> TokenPiece:
    name = _MARK_NAMES.get(token)
    if name is None:
        return TokenPiece(text_of((token,)).encode(), "body", "body")
    return TokenPiece(name, "marker", "body")


@dataclass(frozen=True, eq=False)
class PassThroughFormat(FixedFormat, ServerRenderedFormat):
    """Format of one model.

    `thought` are the markers of thoughts that the server does not separate from an answer.
    `switched` makes template arguments of an effort; None: the server gets the effort itself.
    `opens_thought`: the output begins within a thought.
    """

    name = "passthrough"
    has_text_headers = False
    template_state = TEXT_STATE
    questions: ClassVar[tuple[bytes, ...]] = ()
    vocabulary_size = TEXT_IDS_END
    text_ids = TEXT_IDS
    stop_ids = (END,)
    framing_tokens = 0
    header_markers = frozenset({THOUGHT, ANSWER, CALL, ARGUMENTS})

    thought: tuple[str, str] | None = None
    thinks: bool = True
    calls: bool = True
    sees: bool = False
    images: ImageLimits = field(default_factory=ImageLimits)
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    switched: Switched | None = None
    opens_thought: bool = False

    @classmethod
    def load(cls, options: FormatOptions) -> PassThroughFormat:
        if options.reasoning is not None and options.reasoning not in REASONING:
            raise ConfigError(
                f"there is no reasoning '{options.reasoning}', which '{options.model}' is given",
                where="models",
                remedy=f"Leave it out, or set it to one of: {', '.join(REASONING)}.",
            )
        if options.calls not in {None, NONE}:
            raise ConfigError(
                f"the server of the model '{options.model}' reads calls itself, so "
                f"'{options.calls}' means nothing",
                where="models",
                remedy="Leave its calls out, or set it to none where it makes none.",
            )
        reasoning, preset = REASONING.get(options.reasoning or NONE), preset_for(options.model)
        return cls(
            opens_thought=reasoning is THINK and preset is not None and preset.opens_thoughts,
            thought=None if reasoning is None else (reasoning.opening, reasoning.closing),
            thinks=options.reasoning != NONE,
            calls=options.calls != NONE,
            sees=options.sees,
            images=options.images,
            template_kwargs=orjson.loads(options.template_kwargs),
        )

    @property
    def abilities(self) -> tuple[str, ...]:
        # These come from the settings: servers do not report them.
        return (
            *(["reasoning", UNTHINKS] if self.thinks else []),
            *(["tools"] if self.calls else []),
            *([SEES] if self.sees else []),
            *_ABILITIES,
        )

    @cached_property
    def framing(self) -> Framing:
        return replace(FRAMING, thought=self.thought)

    # Prompts.

    def render(
        self,
        items: Sequence[ContextItem],
        options: RenderOptions,
        repeated: RepeatedHistory | None = None,  # noqa: ARG002 - ids are not stored
    ) -> Prompt:
        items = [with_summary_text(item, _summary_of) for item in items]
        see = None
        if self.sees:
            see = Gallery(items, options.rendered, self.images, options.new_items).part
        made = chat_conversation(items, options, ANY, see)
        messages = made.messages if self.switched else _without_thoughts(made.messages)
        require_some(messages)
        ids = packed_lines([orjson.dumps(self._options(options)), *map(orjson.dumps, messages)])
        tokens = prompt_tokens(ids)
        return Prompt(ids, made.spans(tokens), tokens, opens_thought=self.opens_thought)

    def _options(self, options: RenderOptions) -> dict[str, Any]:
        # The options are the first line of a packed prompt.
        fields: dict[str, Any] = {}
        if tools := functions(options):
            strict = {tool.name for tool in options.tools if tool.strict}
            for tool in tools:
                if tool["function"]["name"] in strict:
                    tool["function"]["strict"] = True  # else vLLM does not bind the arguments
            fields["tools"] = tools
        effort, template_kwargs = options.requested_effort, self.template_kwargs
        if self.switched is not None:
            template_kwargs = self.switched(effort, options.effort) | template_kwargs
        elif self.thinks and effort is not None:
            fields["reasoning_effort"] = effort if effort == NO_EFFORT else options.effort
        if template_kwargs:
            fields["chat_template_kwargs"] = template_kwargs
        return fields

    def with_result(self, ids: Sequence[int], result: Sequence[int]) -> Sequence[int]:
        return [*ids, *result]

    def render_item(self, item: ContextItem, function: str | None = None) -> Sequence[int]:  # noqa: ARG002 - a message has none
        # Other items than messages say nothing without their conversation.
        typed = item.item()
        text = message_text(typed) if isinstance(typed, Message) else ""
        return packed_lines((orjson.dumps({"role": "user", "content": text}),)) if text else ()

    def render_result(self, name: str, text: str) -> tuple[int, ...]:
        # The id of its call is filled in when it is sent.
        message = {"role": "tool", "name": offered_name(name), "content": text}
        return tuple(packed_lines((orjson.dumps(message),)))

    def render_call(self, name: str, arguments: str) -> tuple[int, ...]:
        return tuple(assistant_line("", [_tool_call("call", name, arguments)]))

    def count_ids(self, text: str) -> int:
        # An approximate number of tokens.
        return len(packed_lines((text.encode("utf-8", "replace"),)))

    def encode(self, text: str) -> Sequence[int]:
        return ids_of(text)

    # Transcripts.

    def messages(self, prompt: Prompt, *, with_ids: bool) -> list[dict[str, Any]]:  # noqa: ARG002 - there are none
        return [
            {"type": RAW, "message": line.decode().rstrip()} for line in unpacked_lines(prompt.ids)
        ]

    def messages_of_turn(
        self,
        ids: Sequence[int],
        taken_back: Sequence[tuple[str, Sequence[int]]] = (),
        *,
        with_ids: bool = False,  # noqa: ARG002 - there are none
    ) -> list[dict[str, Any]]:
        void = [
            {"type": RAW, "message": text_of(voided), TAKEN_BACK_BY: rule}
            for rule, voided in taken_back
        ]
        return [{"type": RAW, "message": text_of(ids)}, *void]

    def anatomy(self, ids: Iterable[int], part: TokenPart = "role") -> list[TokenPiece]:  # noqa: ARG002 - there are no headers
        return list(map(text_piece, ids))

    # Turns.

    def new_parser(self, rules: OutputRules, *, trace: bool = False) -> TokenParser:
        # The ids of this parser are characters.
        return TextParser(rules, trace=trace)

    def turn_ids(self, turns: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[int]:
        return [one for _, output in turns for one in turn_line(output)]

    def rerender(self, turns: Iterable[Turn], new_parser: Callable[[], TokenParser]) -> list[int]:  # noqa: ARG002 - marks tell it
        # A lost turn is left out: another turn repeats it.
        return [
            one
            for ids, finish in turns
            if finish is not FinishReason.LOST
            for one in turn_line(ids)
        ]

    def answer_opening(self, rules: OutputRules, *, attempt: int) -> tuple[int, ...]:  # noqa: ARG002 - it is asked again instead
        return ()

    def call_opening(self, rules: OutputRules) -> tuple[int, ...]:  # noqa: ARG002 - as above
        return ()

    def has_body(self, message: Sequence[int]) -> bool:
        return bool(message) and (message[0] != CALL or ARGUMENTS in message)

    def turn_constraint(
        self,
        rules: OutputRules,
        place: ParserPosition,  # noqa: ARG002 - a turn is asked for from its beginning on
        message: Sequence[int],  # noqa: ARG002 - as above
        options: GrammarOptions,  # noqa: ARG002 - there is no grammar
    ) -> Constraint | None:
        """Return the rules for the server, which may not keep to them."""
        fields: dict[str, Any] = {}
        may_call = bool(rules.allowed) and rules.calls != "none"
        if rules.tools and not may_call:
            fields["tool_choice"] = "none"
        elif rules.allowed != rules.tools.keys():
            fields["allowed"] = sorted(map(offered_name, rules.allowed))
        if may_call and rules.calls == "required":
            fields["tool_choice"] = "required"
        elif rules.answer is not None and not may_call:
            fields["response_format"] = _response_format(rules.answer)
        return Constraint(AnyText(()), exact=False, chat=fields) if fields else None


def _without_thoughts(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    bare = [
        {name: value for name, value in message.items() if name not in _THOUGHTS}
        for message in messages
    ]
    return [
        one for one in bare if one["content"] or one["role"] in _SPEAKING or "tool_calls" in one
    ]


def _summary_of(ids: Sequence[int]) -> str:
    return "".join(orjson.loads(line)["content"] for line in unpacked_lines(ids))


def _response_format(answer: AnswerFormat) -> dict[str, Any]:
    if answer.kind == "json_object":
        return {"type": "json_object"}
    about = {"name": answer.name or "answer", "schema": answer.schema, "strict": answer.strict}
    return {"type": "json_schema", "json_schema": about}
