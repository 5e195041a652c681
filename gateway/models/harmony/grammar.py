"""Grammars over ids of the rest of a turn.

A turn is any number of thoughts and preambles, and then one call or the answer, whose end is not
part of the grammar: there the engines allow any stop id. Where a call is required, or an answer in
a format, there is at most one thought and then one preamble. Headers are held to the trained forms.

A grammar can only begin where the ids so far decide what comes next: before a message, within a
text, and in the middle of JSON (`json_language.remainder_of`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from gateway.constraints.gbnf import UntranslatableGrammar
from gateway.constraints.json_language import Body, body_of, remainder_of
from gateway.constraints.lark import input_of
from gateway.constraints.output_rules import INPUT_OBJECT
from gateway.constraints.schemas import ANY_OBJECT
from gateway.generation import (
    CALL_KINDS,
    AnyText,
    Constraint,
    InOrder,
    Json,
    Literal,
    Maybe,
    OneOf,
    Repeated,
    SegmentKind,
    Token,
    Where,
)
from gateway.models.grammar_parts import arguments_of, one_of, refusal, rest_of_refusal
from gateway.models.harmony.message_headers import (
    CALL_CHANNEL,
    NAMESPACE,
    addressed,
    is_builtin,
    is_code,
)
from gateway.models.harmony.tokenizer import (
    CALL_PREFIX,
    CHANNEL,
    CONSTRAIN,
    END,
    FINAL,
    FIRST_SPECIAL,
    MESSAGE,
    NAMED_SPECIALS,
    OPENING,
    RECIPIENT_PREFIX,
    START,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gateway.constraints.output_rules import OutputRules, ToolRule
    from gateway.generation import Node, ParserPosition
    from gateway.models.format import GrammarOptions
    from gateway.models.harmony.tokenizer import Vocabulary

_TEXT: Final = AnyText(tuple(sorted(NAMED_SPECIALS.values())))
_NEXT: Final = InOrder((Token(START), Literal("assistant")))
_CLOSED_BODY: Final = InOrder((_TEXT, Token(END), _NEXT))
_THOUGHT: Final = InOrder((Literal("analysis"), Token(MESSAGE), _CLOSED_BODY))
_PREAMBLE: Final = InOrder((Literal("commentary"), Token(MESSAGE), _CLOSED_BODY))
_JSON_BEGINS: Final = OneOf(
    (
        InOrder((Literal(" "), Token(CONSTRAIN), Literal("json"), Token(MESSAGE))),
        InOrder((Literal(" json"), Token(MESSAGE))),
        Token(MESSAGE),
    )
)
_BUILTIN_BEGINS: Final = OneOf((_JSON_BEGINS, InOrder((Literal(" code"), Token(MESSAGE)))))
_CODE_BEGINS: Final = OneOf((InOrder((Literal(" code"), Token(MESSAGE))), Token(MESSAGE)))
_REFUSAL: Final = refusal(_TEXT)


def turn_constraint(
    rules: OutputRules,
    place: ParserPosition,
    message: Sequence[int],
    options: GrammarOptions,
    vocabulary: Vocabulary,
) -> Constraint | None:
    """Return a grammar as `ModelFormat.turn_constraint` does.

    `message` are the ids from `place.start` on, prefill included.
    """
    if options.reasoning and not rules.is_binding:
        return None

    def made() -> Constraint | None:
        return _Turn(rules, options, vocabulary).constraint(place, tuple(message))

    if message or place.where is Where.BODY:
        return made()
    # The grammar of a turn that has not begun depends on nothing else, so it is cached.
    return rules.derive(("harmony", place.where, options), made)


@dataclass(frozen=True, slots=True)
class _Callable:
    """Tools whose calls have the same body. Behind `namespace` the recipient is one of `names`."""

    names: Node
    body: Node
    namespace: str = NAMESPACE
    channel: str = CALL_CHANNEL
    begins: Node = _JSON_BEGINS

    def call(self, front: Node) -> Node:
        return InOrder((front, self.begins, self.body))

    @property
    def addressed(self) -> Node:
        return InOrder((self.names, Token(CHANNEL), Literal(self.channel)))

    @property
    def named(self) -> Node:
        """Return the front of a header behind ` to=`."""
        if not self.namespace:
            return self.addressed
        return InOrder((Literal(self.namespace), self.addressed))

    @property
    def on_channel(self) -> Node:
        return InOrder((Literal(f"{self.channel} to={self.namespace}"), self.names))

    @property
    def either(self) -> Node:
        return OneOf(
            (
                InOrder((Literal(f" to={self.namespace}"), self.addressed)),
                InOrder((Token(CHANNEL), self.on_channel)),
            )
        )


class _Turn:
    def __init__(self, rules: OutputRules, options: GrammarOptions, vocabulary: Vocabulary) -> None:
        allowed = () if rules.calls == "none" else sorted(rules.allowed)
        self._rules = rules
        self._tools = {name: rules.tools[name] for name in allowed}
        self._is_owing = rules.calls == "required" or rules.answer is not None
        self._thoughts = options.reasoning and not (self._is_owing and options.has_thought)
        self._options = options
        self._vocabulary = vocabulary
        self._exact = True  # the rest allows nothing but what the request demands
        self._bare = False  # no marker comes in it

    def constraint(self, place: ParserPosition, message: tuple[int, ...]) -> Constraint | None:
        rest, rules = self._rest(place, message), self._rules
        if rest is None:
            return None
        more_than_answer = rules.binds_messages or not self._options.reasoning
        answer = rules.answer.demand if rules.answer and not more_than_answer else None
        return Constraint(
            rest,
            answer,
            calls=len(rules.tools),
            exact=self._exact,
            bare=self._bare,
            markers=(START, CHANNEL, CONSTRAIN, MESSAGE, END),
            answer_opening=(CHANNEL, FINAL),
        )

    def _rest(self, place: ParserPosition, message: tuple[int, ...]) -> Node | None:
        if self._rules.calls == "required" and not self._tools:
            return None
        if place.where is Where.HEADER:
            return self._rest_of_header(message)
        if place.where is Where.BODY:
            return self._rest_of_message(place, message)
        if place.where is Where.BETWEEN and not message:
            return InOrder((_NEXT, self._behind(None)))
        return None

    def _rest_of_header(self, message: tuple[int, ...]) -> Node | None:
        header = message[len(OPENING) :] if message[: len(OPENING)] == OPENING else message
        if not header:
            return self._behind(None)
        if header == (CHANNEL,):
            return self._on_channel()
        if header == CALL_PREFIX:
            callables = [one for one in self._callables() if one.namespace == NAMESPACE]
            calls = [tools.call(tools.addressed) for tools in callables]
            return one_of(calls) if calls else None
        if header == RECIPIENT_PREFIX and self._tools:
            return one_of([tools.call(tools.named) for tools in self._callables()])
        return None

    def _rest_of_message(self, place: ParserPosition, message: tuple[int, ...]) -> Node | None:
        if place.kind in {SegmentKind.REASONING, SegmentKind.COMMENTARY}:
            return InOrder((_CLOSED_BODY, self._behind(place.kind)))
        is_answer = place.kind is SegmentKind.FINAL and self._rules.calls != "required"
        tool = self._tools.get(place.name) if place.kind in CALL_KINDS else None
        if not is_answer and tool is None:
            return None
        is_text = is_code(tool.name) if tool is not None else self._rules.answer is None
        if is_text:
            return _TEXT
        if message[-1:] == (MESSAGE,):
            return self._answer() if tool is None else arguments_of(tool, self._rules)
        content = self._body_in(message)
        return None if content is None else self._rest_of_body(content, tool)

    def _body_in(self, message: tuple[int, ...]) -> bytes | None:
        # None where the body is not only text.
        if MESSAGE not in message:
            return None
        ids = message[message.index(MESSAGE) + 1 :]
        if max(ids) >= FIRST_SPECIAL:
            return None
        return b"".join(map(self._vocabulary.piece, ids))

    def _rest_of_body(self, begun: bytes, tool: ToolRule | None) -> Node | None:
        if tool is None and self._options.refusals and (rest_of := rest_of_refusal(begun, _TEXT)):
            return rest_of
        rest = remainder_of(self._body(tool), begun, self._vocabulary.byte_ids)
        if rest is None:
            return None
        self._exact, self._bare = rest.exact, True
        return rest.node

    def _body(self, tool: ToolRule | None) -> Body:
        key = ("harmony", "body", tool and tool.name)
        return self._rules.derive(key, lambda: self._new_body(tool))

    def _new_body(self, tool: ToolRule | None) -> Body:
        if tool is not None and tool.grammar is not None:
            try:
                return Body(*input_of(tool.grammar), exact=True)
            except UntranslatableGrammar:
                return replace(body_of(INPUT_OBJECT), exact=False)
        return body_of(self._demand if tool is None else tool.arguments)

    def _behind(self, earlier: SegmentKind | None) -> Node:
        calls = [tools.call(tools.either) for tools in self._callables()]
        last = one_of([*calls, *_in_channel(self._final())])
        messages = _in_channel(self._earlier_messages(earlier).values())
        if not messages:
            return last
        if self._is_owing:
            # A model that wants to say something else would think for ever.
            return InOrder((*map(Maybe, messages), last))
        return InOrder((Repeated(one_of(messages)), last))

    def _on_channel(self) -> Node:
        messages = self._earlier_messages(None).items()
        earlier = [InOrder((closed, self._behind(kind))) for kind, closed in messages]
        calls = [tools.call(tools.on_channel) for tools in self._callables()]
        return one_of([*earlier, *calls, *self._final()])

    def _earlier_messages(self, earlier: SegmentKind | None) -> dict[SegmentKind, Node]:
        # No preambles beside a JSON answer: a client that joins all text would get invalid JSON.
        is_over = self._is_owing and earlier is not None
        messages: dict[SegmentKind, Node] = {}
        if self._thoughts and not is_over:
            messages[SegmentKind.REASONING] = _THOUGHT
        has_preamble = is_over and earlier is SegmentKind.COMMENTARY
        if self._tools and self._rules.answer is None and not has_preamble:
            messages[SegmentKind.COMMENTARY] = _PREAMBLE
        return messages

    def _final(self) -> list[Node]:
        if self._rules.calls == "required":
            return []
        if self._rules.answer is None:
            return [InOrder((Literal("final"), Token(MESSAGE), _TEXT))]
        message: Node = InOrder((_JSON_BEGINS, Json(self._rules.answer.demand)))
        refused = InOrder((Token(MESSAGE), _REFUSAL))
        return [
            InOrder(
                (Literal("final"), OneOf((message, refused)) if self._options.refusals else message)
            )
        ]

    def _answer(self) -> Node:
        answer = Json(self._demand)
        return OneOf((answer, _REFUSAL)) if self._options.refusals else answer

    def _callables(self) -> list[_Callable]:
        # Functions that take any object are one entry.
        free = [Literal(name) for name, tool in self._tools.items() if tool.takes_any_object]
        bound = [
            self._builtin(tool)
            if is_builtin(name)
            else _Callable(Literal(name), arguments_of(tool, self._rules))
            for name, tool in self._tools.items()
            if not tool.takes_any_object
        ]
        return [*bound, *([_Callable(one_of(free), Json(ANY_OBJECT))] if free else [])]

    def _builtin(self, tool: ToolRule) -> _Callable:
        channel, recipient = addressed(tool.name)
        if is_code(tool.name):
            return _Callable(Literal(recipient), _TEXT, "", channel, _CODE_BEGINS)
        body = arguments_of(tool, self._rules)
        return _Callable(Literal(recipient), body, "", channel, _BUILTIN_BEGINS)

    @property
    def _demand(self) -> dict[str, Any]:
        assert self._rules.answer is not None, "else any text would be an answer"
        return self._rules.answer.demand


def _in_channel(messages: Iterable[Node]) -> list[Node]:
    return [InOrder((Token(CHANNEL), message)) for message in messages]
