"""Models with a chat template, as the rest of the gateway sees them.

A server of the model renders prompts (`Unrendered`); they are completed as ids. A prompt's prefill
of the answer (`<think>` and the like) is cut off, and stands in the log as the beginning of the
turn, so a turn is always read from the beginning of the assistant's message.

The turns of one response go on in one message of the assistant, except behind the result of a
hosted tool, which is framed as the template does it (`chat_template`).
"""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.errors import ConfigError, InvalidRequest, NoUpstreamAvailable
from gateway.generation import Framing, Prompt, SegmentKind, Where
from gateway.models.chat.call_syntax import Mark, offered_name
from gateway.models.chat.chat_grammar import turn_constraint
from gateway.models.chat.chat_messages import (
    ChatConversation,
    Markers,
    chat_conversation,
    functions,
    question,
    require_some,
    with_summary_text,
)
from gateway.models.chat.chat_parser import ChatParser
from gateway.models.chat.chat_template import RULES, Probes, Template, TemplateReader, opened_turn
from gateway.models.chat.families import NO_EFFORT, Family
from gateway.models.chat.image_gallery import has_images
from gateway.models.chat.passthrough import EitherParser, PassThroughFormat, text_piece
from gateway.models.chat.tokenizer import ModelConfig, Vocabulary, lexicon_of
from gateway.models.format import (
    RAW,
    SEES,
    TAKEN_BACK_BY,
    UNTHINKS,
    ServerRenderedFormat,
    TokenPiece,
    Unrendered,
)
from gateway.models.history import message_text
from gateway.protocol.items import Message
from gateway.text_ids import TEXT_BASE, TEXT_STATE, is_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gateway.constraints.output_rules import OutputRules
    from gateway.generation import Constraint, ParserPosition, TokenParser
    from gateway.models.format import (
        FormatOptions,
        GrammarOptions,
        ModelFormat,
        Rendering,
        RenderOptions,
        RepeatedHistory,
        TokenPart,
        Turn,
    )
    from gateway.protocol.context_item import ContextItem


TAIL_IDS: Final = 64
"""Last ids of a prompt that are searched for its prefill."""
SIZE_STEP: Final = 512
"""Models have more rows than their tokenizer has ids, for an even split among devices."""
_BRACE: Final = "{"
_SAMPLE: Final = (
    'def f(x):\n    return x + 1  # né en 1987, 東京 🙂\r\n\n\t"quoted", it\'s 3.14 % done'
)
"""Tokenizers that cut text of several kinds into the same ids are most likely the same."""
_SAMPLE_QUESTION: Final = orjson.dumps({"prompt": _SAMPLE, "add_special_tokens": False})


class ChatFormat(ServerRenderedFormat):
    name: Final = "chat"
    has_text_headers: Final = True
    framing_tokens: Final = 12
    """The end of a thought, white space, and the beginning of a call."""

    def __init__(  # noqa: PLR0913 - all that is known of a model
        self,
        vocabulary: Vocabulary,
        family: Family,
        *,
        model: str = "",
        size: int = 0,
        end_ids: Iterable[int] = (),
        template_kwargs: Mapping[str, Any] | None = None,
        shown_images: PassThroughFormat | None = None,
    ) -> None:
        """`end_ids` end turns, beside those that are known by their text."""
        self._format_with_images = shown_images
        self._model = model
        self.vocabulary = vocabulary
        self.syntax = family.syntax
        self._family = family
        self.vocabulary_size = size or -(-vocabulary.size // SIZE_STEP) * SIZE_STEP
        self._kwargs = dict(template_kwargs or {})
        self._lexicon = lexicon_of(vocabulary, family.syntax)
        self.stop_ids = tuple(sorted({*self._lexicon.ends, *end_ids}))
        specials = [token for token in range(vocabulary.size) if not vocabulary.piece(token)]
        self.text_ids = _longest_run({*specials, *self._lexicon.markers}, vocabulary.size)
        self._markers = Markers(filter(None, map(vocabulary.special_text, specials)))
        openers = self._openers()
        self.header_markers = frozenset(self._lexicon.ids[text] for text in openers)
        self._brace = tuple(vocabulary.encode(_BRACE))
        self._learned: Template | None = None
        self._is_outdated = False
        self.probes = Probes.with_kwargs(
            self._kwargs, family.switched(NO_EFFORT, "") | self._kwargs
        )

    @classmethod
    def load(cls, options: FormatOptions) -> ChatFormat:
        if not options.tokenizer:
            raise ConfigError(
                "a model with format chat needs the tokenizer of its servers",
                where="models",
                remedy="Set its tokenizer to the tokenizer.json of the model, or to the folder "
                "with it: the server downloaded it with the model.",
            )
        family = Family.from_options(options)
        vocabulary = Vocabulary.load(options.tokenizer)
        facts = ModelConfig.beside(options.tokenizer)
        return cls(
            vocabulary,
            family,
            model=options.model,
            size=facts.size,
            end_ids=facts.end_ids,
            template_kwargs=orjson.loads(options.template_kwargs),
            shown_images=_new_format_with_images(options, family) if options.sees else None,
        )

    @property
    def abilities(self) -> tuple[str, ...]:
        reasoning, calls = self.syntax.reasoning, self.syntax.calls
        return (
            *(["reasoning"] if reasoning else []),
            *([UNTHINKS] if reasoning and self._family.switches else []),
            *(["tools"] if calls else []),
            *([SEES] if self._format_with_images else []),
            *("structured_outputs", "streaming", "background"),
        )

    @property
    def template_state(self) -> bytes:
        return b"" if self._learned is None else self._learned.template_state

    def with_state(self, template_state: bytes) -> ModelFormat:
        if template_state == TEXT_STATE:
            # Also for a run that began before the settings took images away.
            return self._format_with_images or PassThroughFormat()
        if not template_state:
            return self
        other = copy.copy(self)  # even with what is learned here: that may be learned anew
        other._learned = Template.from_state(template_state)  # noqa: SLF001 - its own
        return other

    def relearn(self) -> None:
        # Until the probes are answered, and for runs that began before, the learned template holds.
        self._is_outdated = True

    @property
    def questions(self) -> tuple[bytes, ...]:
        return (*self.probes.questions, _SAMPLE_QUESTION)

    def misfits(self, rendered: Mapping[bytes, Rendering]) -> tuple[str, ...]:
        rendering, own = rendered[_SAMPLE_QUESTION], self.vocabulary.encode(_SAMPLE)
        if isinstance(rendering, str) or list(rendering) != own:
            return ("the server makes other ids of a text: it has another tokenizer",)
        template = self._learn(rendered)
        missing = [] if template.takes_tools or not self.syntax.calls else ["it shows no tools"]
        if not self._shows_thoughts(rendered):
            missing.append("it writes thoughts in other markers than its reasoning is set up with")
        return (*template.faults, *missing)

    def _shows_thoughts(self, rendered: Mapping[bytes, Rendering]) -> bool:
        opened, plain = (rendered[one] for one in (self.probes.opened, self.probes.unthinking))
        if self.syntax.reasoning is None or isinstance(opened, str) or isinstance(plain, str):
            return True
        return opened == plain or self.prefill_size(opened) > 0 or self.prefill_size(plain) > 0

    @property
    def framing(self) -> Framing:
        end = self.stop_ids[0] if self.stop_ids else self.vocabulary_size
        opening = () if self._learned is None else self._learned.opening
        return Framing(opening, end, end, stores_ids=False, marks_answers=False)

    # Prompts.

    def render(
        self,
        items: Sequence[ContextItem],
        options: RenderOptions,
        repeated: RepeatedHistory | None = None,  # noqa: ARG002 - ids are not stored
    ) -> Prompt:
        """Return the prompt that a server rendered; its spans are estimates."""
        items = [with_summary_text(item, self.vocabulary.decode) for item in items]
        if self._format_with_images is not None and has_images(items):
            prompt = self._format_with_images.render(items, options)
            return replace(prompt, opens_thought=self._opens_thought(options))
        template = self.template(options.rendered)
        _require(template, options)
        made = chat_conversation(items, options, template.habits)
        require_some(made.messages)
        kwargs = self._template_kwargs(options)
        request = question(made.messages, functions(options), kwargs, markers=self._markers)
        return self._prompt(made, request, options.rendered)

    def _opens_thought(self, options: RenderOptions) -> bool:
        request = opened_turn(self._template_kwargs(options))
        answer = options.rendered.get(request)
        if answer is None:
            raise Unrendered((request,))
        if isinstance(answer, str):
            return False
        parser = self.new_parser(RULES)
        parser.feed(answer[len(answer) - self.prefill_size(answer) :])
        return parser.place.kind is SegmentKind.REASONING

    def _template_kwargs(self, options: RenderOptions) -> dict[str, Any]:
        return self._family.switched(options.requested_effort, options.effort) | self._kwargs

    def template(self, rendered: Mapping[bytes, Rendering]) -> Template:
        if self._learned is None or self._is_outdated:
            questions = self.probes.questions
            lacking = tuple(one for one in questions if one not in rendered)
            if lacking:
                raise Unrendered(lacking)
            self._is_outdated = False
            self._learned = self._learn(rendered)
        return self._learned

    def _learn(self, rendered: Mapping[bytes, Rendering]) -> Template:
        return TemplateReader(
            self.probes,
            rendered,
            self.vocabulary,
            lambda: self.new_parser(RULES),
            self.prefill_size,
        ).template()

    def _prompt(
        self, made: ChatConversation, request: bytes, rendered: Mapping[bytes, Rendering]
    ) -> Prompt:
        answer = rendered.get(request)
        if answer is None:
            raise Unrendered((request,))
        if isinstance(answer, str):
            raise InvalidRequest(
                f"The chat template of this model cannot render this conversation: {answer}",
                code="invalid_value",
                param="input",
            )
        if max(answer, default=0) >= self.vocabulary_size:
            # An engine that has no such id may die of it.
            why = "its servers render ids that its tokenizer has not: see harmony-gateway doctor"
            raise NoUpstreamAvailable(self._model, why)
        return Prompt(answer, made.spans(len(answer)))

    def render_item(self, item: ContextItem, function: str | None = None) -> Sequence[int]:  # noqa: ARG002 - a message has none
        # Other items than messages say nothing without their conversation.
        typed = item.item()
        text = message_text(typed) if isinstance(typed, Message) else ""
        return self.vocabulary.encode(text) if text else ()

    def prefill_size(self, prompt_ids: Sequence[int]) -> int:
        """Count the ids from the marker of a thought on, behind the last marker of another kind."""
        reasoning = self.syntax.reasoning
        if reasoning is None:
            return 0
        tail = self._behind_markers(prompt_ids[-TAIL_IDS:])
        markers = (reasoning.opening.encode(), reasoning.closing.encode())
        spelled = [self._spelling(token) for token in tail]
        for at in range(len(tail)):
            if b"".join(spelled[at:]).startswith(markers):
                return len(tail) - at
        return 0

    def _behind_markers(self, ids: Sequence[int]) -> Sequence[int]:
        own = self._lexicon.texts
        bounds = [
            at
            for at, token in enumerate(ids)
            if token not in own and not self.vocabulary.piece(token)
        ]
        return ids[bounds[-1] + 1 :] if bounds else ids

    def with_result(self, ids: Sequence[int], result: Sequence[int]) -> Sequence[int]:
        template = self._learned or Template()
        opening = template.opening
        call_end = template.result.call_end if template.result else ()
        if opening and _ends_with(ids, opening):
            front = ids[: -len(opening)]
        elif call_end and _ends_with(ids, call_end):
            front = ids
        else:
            front = [*ids, *call_end]
        return [*front, *result, *opening]

    def render_result(self, name: str, text: str) -> tuple[int, ...]:  # noqa: ARG002 - templates name no tool
        frame = self._learned.result if self._learned is not None else None
        if frame is None:
            return tuple(self.vocabulary.encode(text))
        written = orjson.dumps(text).decode()[1:-1] if frame.is_json else text
        return (*frame.front, *self.vocabulary.encode(written), *frame.behind)

    def render_call(self, name: str, arguments: str) -> tuple[int, ...]:
        calls = self.syntax.calls
        if calls is None:
            return tuple(self.vocabulary.encode(arguments))
        return self._lexicon.encode(calls.written(((offered_name(name), arguments),)))

    def count_ids(self, text: str) -> int:
        return len(self.vocabulary.encode(text))

    def encode(self, text: str) -> Sequence[int]:
        return self.vocabulary.encode(text)

    # Transcripts.

    def messages(self, prompt: Prompt, *, with_ids: bool) -> list[dict[str, Any]]:
        """Return the prompt as one text: it cannot be taken apart here."""
        if prompt.text_tokens is not None:
            return self.with_state(TEXT_STATE).messages(prompt, with_ids=with_ids)
        return [self._message_of(prompt.ids, with_ids=with_ids)]

    def messages_of_turn(
        self,
        ids: Sequence[int],
        taken_back: Sequence[tuple[str, Sequence[int]]] = (),
        *,
        with_ids: bool = False,
    ) -> list[dict[str, Any]]:
        if is_text(ids) or any(is_text(voided) for _, voided in taken_back):
            return self.with_state(TEXT_STATE).messages_of_turn(ids, taken_back)
        void = [
            {**self._message_of(voided, with_ids=with_ids), TAKEN_BACK_BY: rule}
            for rule, voided in taken_back
        ]
        return [self._message_of(ids, with_ids=with_ids), *void]

    def anatomy(self, ids: Iterable[int], part: TokenPart = "role") -> list[TokenPiece]:  # noqa: ARG002 - there are no headers
        return [
            TokenPiece(self._spelling(token), self._part_of(token), "body")
            if token < TEXT_BASE
            else text_piece(token)
            for token in ids
        ]

    def _part_of(self, token: int) -> TokenPart:
        return "body" if self.vocabulary.special_text(token) is None else "marker"

    def _message_of(self, ids: Sequence[int], *, with_ids: bool) -> dict[str, Any]:
        text = b"".join(map(self._spelling, ids)).decode("utf-8", "replace")
        shown: dict[str, Any] = {"type": RAW, "message": text}
        return {**shown, "tokens": list(ids)} if with_ids else shown

    def _spelling(self, token: int) -> bytes:
        text = self.vocabulary.special_text(token)
        return self.vocabulary.piece(token) if text is None else text.encode()

    # Turns.

    def new_parser(self, rules: OutputRules, *, trace: bool = False) -> TokenParser:
        parser = ChatParser(self.vocabulary, self.syntax, rules, trace=trace)
        if self._format_with_images is None:
            return parser
        return EitherParser(parser, self._format_with_images.new_parser(rules, trace=trace))

    def turn_ids(self, turns: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[int]:
        ids: list[int] = []
        for prefill, output in turns[:-1]:
            ids += (*prefill, *self._without_stop_ids(output))
        for prefill, output in turns[-1:]:
            ids += (*prefill, *output)
        return ids

    def rerender(self, turns: Iterable[Turn], new_parser: Callable[[], TokenParser]) -> list[int]:
        """Return the ids to continue: an open thought is closed, a cut-off call left out."""
        rerendered: list[int] = []
        for ids, _ in turns:
            rerendered += self._close_thought(self._without_stop_ids(ids), new_parser())
        return rerendered

    def _without_stop_ids(self, ids: Sequence[int]) -> Sequence[int]:
        size = len(ids)
        while size and ids[size - 1] in self.stop_ids:
            size -= 1
        return ids[:size]

    def _close_thought(self, ids: Sequence[int], parser: TokenParser) -> Sequence[int]:
        parser.feed(ids)
        place, reasoning = parser.place, self.syntax.reasoning
        if reasoning and place.where is Where.BODY and place.kind is SegmentKind.REASONING:
            closing = (reasoning.inner, Mark(reasoning.closing), reasoning.behind)
            return [*ids, *self._lexicon.encode(closing)]
        if reasoning and ids and self._lexicon.texts.get(ids[-1]) == reasoning.closing:
            # The ids behind the thought were cut off, its white space among them.
            return [*ids, *self._lexicon.encode((reasoning.behind,))]
        return ids[: place.start] if self._is_left_out(place, ids[place.start :]) else ids

    def _is_left_out(self, place: ParserPosition, message: Sequence[int]) -> bool:
        if place.where is Where.HEADER:
            return True
        if place.where is not Where.BODY or place.kind is SegmentKind.COMMENTARY:
            return False
        return place.kind is not SegmentKind.FINAL or tuple(message) == self._brace

    def answer_opening(self, rules: OutputRules, *, attempt: int) -> tuple[int, ...]:
        """Return no ids before the second attempt: behind a closed thought the answer begins by
        itself.
        """
        wants_object = rules.answer is not None and rules.answer.demand.get("type") == "object"
        return self._brace if attempt and wants_object else ()

    def call_opening(self, rules: OutputRules) -> tuple[int, ...]:
        calls = self.syntax.calls
        if calls is None:
            return ()
        names = sorted(rules.allowed)
        return self._lexicon.encode(
            calls.front(offered_name(names[0]) if len(names) == 1 else None)
        )

    def has_body(self, message: Sequence[int]) -> bool:  # noqa: ARG002 - there are no headers
        return True

    def turn_constraint(
        self,
        rules: OutputRules,
        place: ParserPosition,
        message: Sequence[int],
        options: GrammarOptions,
    ) -> Constraint | None:
        return turn_constraint(rules, place, message, options, self.vocabulary, self.syntax)

    def _openers(self) -> list[str]:
        reasoning, calls = self.syntax.reasoning, self.syntax.calls
        openers = [*([reasoning.opening] if reasoning else ()), *(calls.openers if calls else ())]
        return [text for text in openers if text in self._lexicon.ids]


def _new_format_with_images(options: FormatOptions, family: Family) -> PassThroughFormat:
    # Servers of models that see need no parser of thoughts, but one of calls.
    syntax, thought = family.syntax, family.syntax.reasoning
    return PassThroughFormat(
        thought=None if thought is None else (thought.opening, thought.closing),
        thinks=thought is not None,
        calls=syntax.calls is not None,
        sees=options.sees,
        images=options.images,
        template_kwargs=orjson.loads(options.template_kwargs),
        switched=family.switched,
    )


def _ends_with(ids: Sequence[int], end: tuple[int, ...]) -> bool:
    return tuple(ids[-len(end) :]) == end


def _longest_run(markers: set[int], size: int) -> range:
    bounds = sorted({-1, size, *(token for token in markers if token < size)})
    start, end = max(pairwise(bounds), key=lambda run: run[1] - run[0])
    return range(start + 1, end)


def _require(template: Template, options: RenderOptions) -> None:
    if options.runs_tools and template.result is None:
        raise InvalidRequest(
            "Tools that the gateway runs cannot be used with this model: its chat template has no "
            "frame for results in the middle of a response. Use function tools, or another model.",
            code="unsupported_parameter",
            param="tools",
        )
    if (options.tools or options.runs_tools) and not template.takes_tools:
        raise InvalidRequest(
            "This model takes no tools: its chat template shows none. Leave 'tools' out, or use "
            "another model.",
            code="unsupported_parameter",
            param="tools",
        )
