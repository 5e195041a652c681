"""Models whose servers take a conversation and return text: Ollama, TGI, llama.cpp, hosted APIs.

There are no ids to be had from them. So a prompt is the conversation itself, packed, and a turn
the text that came, with marks between its parts (`gateway.text_ids`). Nothing is put into the
model's mouth, and nobody can go on with a turn that was begun (`Framing.is_text`).

A model of format `chat` that sees is asked in this way, too, where there is something to be seen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.errors import ConfigError
from gateway.generation import AnyText, Constraint, FinishReason, Framing, Prompt
from gateway.models.chat.callee import offered_name
from gateway.models.chat.families import NO_EFFORT
from gateway.models.chat.messages import ANY, conversation, functions, require_some
from gateway.models.chat.passthrough.lines import call_line, result_line, turn_line
from gateway.models.chat.passthrough.images import Gallery, ImageLimits
from gateway.models.chat.passthrough.parsing import TextParser
from gateway.models.chat.syntax.contract import THINK
from gateway.models.chat.syntax.presets import NONE, REASONING, preset_for
from gateway.models.format import SEES, UNTHINKS
from gateway.models.history import message_text
from gateway.protocol.items import InputText, Message
from gateway.text_ids import (
    ANSWER,
    ARGUMENTS,
    CALL,
    END,
    TEXT_IDS,
    TEXT_IDS_END,
    TEXT_STATE,
    THOUGHT,
    packed_lines,
    prompt_tokens,
    text_of,
    unpacked_lines,
)

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gateway.constraints.rules import AnswerFormat, OutputRules
    from gateway.generation import ParserPosition, TokenParser
    from gateway.models.chat.messages import ChatMessage
    from gateway.models.format import (
        FormatOptions,
        GrammarOptions,
        Rendering,
        RenderOptions,
        RepeatedHistory,
        SchemaLimits,
        Turn,
    )
    from gateway.protocol.context_item import Columns, ContextItem

    Switched = Callable[[str | None, str], dict[str, Any]]
    """An effort that was asked for, and what the gateway takes it for → template arguments."""

RAW: Final = "raw_message_tokens"
"""The shape that vLLM has for messages that it does not take apart."""
_THOUGHTS: Final = ("reasoning", "reasoning_content")
_SPEAKING: Final = frozenset({"user", "system", "tool"})
_ABILITIES: Final = ("structured_outputs", "streaming", "background")
FRAMING: Final = Framing(opening=(), turn_end=END, message_end=END, stores_ids=False, is_text=True)


class PassThroughFormat:
    """A `ModelFormat`, of one model."""

    name: Final = "passthrough"
    template_state: Final = TEXT_STATE
    questions: Final[tuple[bytes, ...]] = ()
    vocabulary_size: Final = TEXT_IDS_END
    text_ids: Final = TEXT_IDS
    stop_ids: Final = (END,)
    framing_tokens: Final = 0
    header_markers: Final = frozenset({THOUGHT, ANSWER, CALL, ARGUMENTS})
    plain_header_ids_max: Final = 0

    def __init__(  # noqa: PLR0913 - all that is known of a model
        self,
        *,
        thought: tuple[str, str] | None = None,
        thinks: bool = True,
        calls: bool = True,
        sees: bool = False,
        images: ImageLimits | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        switched: Switched | None = None,
        opens_thought: bool = False,
    ) -> None:
        """Set how the server handles thoughts and calls, and what each request sends it.
        `thought` is what thoughts stand between that it does not tell from an answer. `switched`
        makes arguments of its template of an effort; None: it is told the effort itself.
        `opens_thought`: what it says begins within a thought.
        """
        self._opens_thought = opens_thought
        self._switched = switched
        self.framing = replace(FRAMING, thought=thought)
        self._thinks = thinks
        self._calls = calls
        self._sees = sees
        self._images = images or ImageLimits()
        self._kwargs = dict(template_kwargs or {})

    @classmethod
    def load(cls, limits: SchemaLimits, options: FormatOptions) -> PassThroughFormat:  # noqa: ARG003 - the server writes schemas
        """Load the format. Raises `ConfigError` for unknown `reasoning`, or set `calls`."""
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
        return cls.of(options)

    @classmethod
    def of(cls, options: FormatOptions) -> PassThroughFormat:
        """Return the format of a model, whichever way it writes calls."""
        reasoning, preset = REASONING.get(options.reasoning or NONE), preset_for(options.model)
        return cls(
            opens_thought=reasoning is THINK and preset is not None and preset.opens_thoughts,
            thought=None if reasoning is None else (reasoning.opening, reasoning.closing),
            thinks=options.reasoning != NONE,
            calls=options.calls != NONE,
            sees=options.sees,
            images=ImageLimits(
                options.image_bytes_max, options.images_max, options.images_bytes_max
            ),
            template_kwargs=orjson.loads(options.template_kwargs),
        )

    def reading(
        self, thought: tuple[str, str] | None, switched: Switched, *, calls: bool
    ) -> PassThroughFormat:
        return PassThroughFormat(
            thought=thought,
            thinks=thought is not None,
            calls=calls,
            sees=self._sees,
            images=self._images,
            template_kwargs=self._kwargs,
            switched=switched,
        )

    @property
    def abilities(self) -> tuple[str, ...]:
        # These come from the settings: servers do not report them.
        return (
            *(["reasoning", UNTHINKS] if self._thinks else []),
            *(["tools"] if self._calls else []),
            *([SEES] if self._sees else []),
            *_ABILITIES,
        )

    def with_state(self, template_state: bytes) -> PassThroughFormat:  # noqa: ARG002 - there is nothing to know
        # This format learns nothing from a server.
        return self

    def relearn(self) -> None:
        """Do nothing: this format asks no backend for anything."""

    def misfits(self, rendered: Mapping[bytes, Rendering]) -> tuple[str, ...]:  # noqa: ARG002 - nothing is asked
        # No ids are compared.
        return ()

    def check(self) -> None:
        """Do nothing: the server makes the prompts, so there is nothing to compare."""

    # Prompts.

    def render(
        self,
        items: Sequence[ContextItem],
        options: RenderOptions,
        repeated: RepeatedHistory | None = None,  # noqa: ARG002 - ids are not stored
    ) -> Prompt:
        """Return the conversation with its images; its spans are estimates."""
        items = [_with_summary_text(item) for item in items]
        see = None
        if self._sees:
            see = Gallery(items, options.rendered, self._images, options.new_items).part
        made = conversation(items, options, ANY, see)
        messages = made.messages if self._switched else _without_thoughts(made.messages)
        require_some(messages)
        ids = packed_lines([orjson.dumps(self._options(options)), *map(orjson.dumps, messages)])
        tokens = prompt_tokens(ids)
        return Prompt(ids, made.spans(tokens), tokens, opens_thought=self._opens_thought)

    def _options(self, options: RenderOptions) -> dict[str, Any]:
        # The options are the first line of a packed prompt.
        fields: dict[str, Any] = {}
        if tools := functions(options):
            strict = {tool.name for tool in options.tools if tool.strict}
            for tool in tools:
                if tool["function"]["name"] in strict:
                    tool["function"]["strict"] = True  # else vLLM does not bind the arguments
            fields["tools"] = tools
        asked, template_kwargs = options.asked_effort, self._kwargs
        if self._switched is not None:
            template_kwargs = self._switched(asked, options.effort) | template_kwargs
        elif self._thinks and asked is not None:
            fields["reasoning_effort"] = asked if asked == NO_EFFORT else options.effort
        if template_kwargs:
            fields["chat_template_kwargs"] = template_kwargs
        return fields

    def prefill_size(self, prompt_ids: Sequence[int]) -> int:  # noqa: ARG002 - a server's template is its own
        # Prompts contain no beginning of the model's turn.
        return 0

    def with_result(self, ids: Sequence[int], result: Sequence[int]) -> Sequence[int]:
        return [*ids, *result]

    def render_item(self, item: ContextItem, function: str | None = None) -> Sequence[int]:  # noqa: ARG002 - a message has none
        """Return the line of a message; other items are empty without their conversation."""
        typed = item.item()
        text = message_text(typed) if isinstance(typed, Message) else ""
        return packed_lines((orjson.dumps({"role": "user", "content": text}),)) if text else ()

    def render_result(self, name: str, text: str) -> tuple[int, ...]:
        return tuple(result_line(name, text))

    def render_call(self, name: str, arguments: str) -> tuple[int, ...]:
        return tuple(call_line(name, arguments))

    def count_ids(self, text: str) -> int:
        # An approximate number of tokens.
        return len(packed_lines((text.encode("utf-8", "replace"),)))

    def repeated_ids(self, history: Columns, *, is_answered: bool) -> array[int] | None:  # noqa: ARG002 - none are stored
        # None: the items are rendered anew.
        return None

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
        """Return the turn as one text, then the parts of it that were taken back."""
        void = [
            {"type": RAW, "message": text_of(voided), "taken_back": rule}
            for rule, voided in taken_back
        ]
        return [{"type": RAW, "message": text_of(ids)}, *void]

    # Turns.

    def new_parser(self, rules: OutputRules, *, trace: bool = False) -> TokenParser:
        # The ids of this parser are characters.
        return TextParser(rules, trace=trace)

    def said_ids(self, turns: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[int]:
        return [one for _, said in turns for one in turn_line(said)]

    def rerender(self, turns: Iterable[Turn], new_parser: Callable[[], TokenParser]) -> list[int]:  # noqa: ARG002 - marks tell it
        # A lost turn is left out: another turn repeats it.
        return [
            one
            for ids, finish in turns
            if finish is not FinishReason.LOST
            for one in turn_line(ids)
        ]

    def answer_opening(self, rules: OutputRules, *, attempt: int) -> tuple[int, ...]:  # noqa: ARG002 - as above
        # The model is asked again instead.
        return ()

    def call_opening(self, rules: OutputRules) -> tuple[int, ...]:  # noqa: ARG002 - as above
        # The model is asked again instead.
        return ()

    def message_opening(self) -> tuple[int, ...]:
        # The server of a text model opens its message itself.
        return ()

    def plain_header(self, ids: Sequence[int], at: int) -> int:  # noqa: ARG002 - there are no headers
        # Only a mark stands before a message.
        return 0

    def has_body(self, message: Sequence[int]) -> bool:
        return bool(message) and (message[0] != CALL or ARGUMENTS in message)

    def turn_constraint(
        self,
        rules: OutputRules,
        place: ParserPosition,  # noqa: ARG002 - a turn is asked for from its beginning on
        message: Sequence[int],  # noqa: ARG002 - as above
        options: GrammarOptions,  # noqa: ARG002 - there is no grammar
    ) -> Constraint | None:
        """Return the rules as they are sent to the server, which may not keep to them."""
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


def _with_summary_text(item: ContextItem) -> ContextItem:
    # A summary made during this request has only its line so far.
    if item.kind != "compaction" or item.ids is None or item.json:
        return item
    text = "".join(orjson.loads(line)["content"] for line in unpacked_lines(item.ids))
    return replace(item, parsed=Message(role="user", content=(InputText(text=text),)))


def _response_format(answer: AnswerFormat) -> dict[str, Any]:
    if answer.kind == "json_object":
        return {"type": "json_object"}
    about = {"name": answer.name or "answer", "schema": answer.schema, "strict": answer.strict}
    return {"type": "json_schema", "json_schema": about}
