"""Grammars over ids and text of a turn that a model of a chat format may write.

A turn is a thought or not, then text, or calls, or JSON. Text in front of a marker that is spelled
in letters cannot be bound: there calls are bound only if nothing stands before them.

A grammar can only begin where the ids so far decide what comes next: before a thought, within one,
behind it, behind a call, at the front of a prefilled call, and in the middle of JSON.

Arguments in tags come in the order of the schema. A value that may be text is text, in which no
marker stands; any other one is JSON of its schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from gateway.constraints.json_language import body_of, remainder_of
from gateway.generation import (
    CALL_KINDS,
    NOTHING,
    AnyText,
    Constraint,
    Ebnf,
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
from gateway.models.chat.call_syntax import Mark, offered_name
from gateway.models.chat.syntax.tagged_arguments import types_of
from gateway.models.chat.tokenizer import lexicon_of
from gateway.models.grammar_parts import arguments_of, one_of, refusal, rest_of_refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gateway.constraints.output_rules import OutputRules, ToolRule
    from gateway.generation import Node, ParserPosition
    from gateway.models.chat.call_syntax import CallSyntax, Syntax, Tags, Written
    from gateway.models.chat.tokenizer import Vocabulary
    from gateway.models.format import GrammarOptions


_WHITE: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_IN_CLASS: Final = {one: f"\\{one}" for one in "\\]^-["} | _WHITE
_IN_STRING: Final = {one: f"\\{one}" for one in '\\"'} | _WHITE
DEFINITIONS: Final = ("$defs", "definitions")
KEY: Final = Ebnf('root ::= [^<>"\\n\\r]{1,128}')
"""The name of a parameter without a schema."""


def arguments_in_tags(
    tags: Tags, schema: Mapping[str, Any] | None, spelled: Callable[[Written], Node], text: Node
) -> tuple[Node, bool]:
    """Return the grammar, and True if all that it allows fits the schema. `text` is a text
    value.
    """
    properties = schema.get("properties") if schema else None
    if not schema or not _are_schemas(properties):
        any_one = (spelled(tags.before_key), KEY, spelled(tags.behind_key), text)
        return Repeated(InOrder((*any_one, spelled(tags.behind_value)))), schema is None
    required = schema.get("required", ())
    parts: list[Node] = []
    is_exact = True
    for key, property_ in properties.items():
        front = (*tags.before_key, key, *tags.behind_key)
        value, exact = _value(property_, schema, text)
        is_exact = is_exact and exact
        part = InOrder((spelled(front), value, spelled(tags.behind_value)))
        parts.append(part if key in required else Maybe(part))
    return InOrder(tuple(parts)), is_exact


def _are_schemas(properties: object) -> TypeGuard[dict[str, dict[str, Any]]]:
    if not isinstance(properties, dict):
        return False
    return all(isinstance(one, dict) for one in properties.values())


def _value(property_: dict[str, Any], root: Mapping[str, Any], text: Node) -> tuple[Node, bool]:
    options = property_.get("enum")
    if isinstance(options, list) and options and all(isinstance(one, str) for one in options):
        return OneOf(tuple(map(Literal, options))), True
    types = types_of(property_, root)
    if "string" in types:
        bounds = set(property_) - {"type", "description", "title", "default", "examples"}
        return text, not bounds and len(types) == 1
    shared = {name: root[name] for name in DEFINITIONS if name in root}
    return Json(shared | property_), True


def text_between(markers: Sequence[str], *, front: str = "") -> Node:
    """Return a grammar of text that contains none of these markers.

    It is an automaton: each rule stands for the beginning of a marker just written. With `front`
    the text is not empty and begins with none of these characters.
    """
    return Ebnf(_automaton(tuple(markers), front))


@lru_cache(maxsize=64)
def _automaton(markers: tuple[str, ...], front: str) -> str:
    begun = sorted({marker[:size] for marker in markers for size in range(len(marker))})
    names = {text: f"s{at}" for at, text in enumerate(begun)}  # the empty one is the first
    begin = _ways(_following("", markers, begun), names, without=front)
    rules = [f"root ::= {begin}" if front else "root ::= s0"]
    for text in begun:
        ways = _ways(_following(text, markers, begun), names)
        rules.append(f'{names[text]} ::= "" | {ways}')
    return "\n".join(rules)


def _ways(following: Mapping[str, str | None], names: Mapping[str, str], without: str = "") -> str:
    others = "".join(_IN_CLASS.get(one, one) for one in dict.fromkeys((*following, *without)))
    ways = [
        f'"{_IN_STRING.get(character, character)}" {names[state]}'
        for character, state in following.items()
        if state is not None and character not in without
    ]
    return " | ".join([f"[^{others}] s0", *ways])


def _following(text: str, markers: tuple[str, ...], begun: Sequence[str]) -> dict[str, str | None]:
    # None where a marker would be complete.
    following: dict[str, str | None] = {}
    for character in sorted({character for marker in markers for character in marker}):
        written = text + character
        tails = [written[at:] for at in range(len(written))]
        if any(tail in markers for tail in tails):
            following[character] = None
        elif state := next((tail for tail in tails if tail in begun), ""):
            following[character] = state
    return following


_GAP: Final = Maybe(OneOf((Literal("\n\n"), Literal("\n"))))
"""White space behind a thought."""
_CALL_BEGINS: Final = "{ \n\t\r"
"""A call without a marker may begin with these."""


def turn_constraint(
    rules: OutputRules,
    place: ParserPosition,
    message: Sequence[int],
    options: GrammarOptions,
    vocabulary: Vocabulary,
    syntax: Syntax,
) -> Constraint | None:
    """Return a grammar as `ModelFormat.turn_constraint` does.

    `message` are the ids from `place.start` on, prefill included.
    """
    if options.reasoning and not rules.is_binding:
        return None

    def made() -> Constraint | None:
        return _Turn(rules, options, vocabulary, syntax).constraint(place, tuple(message))

    if message or place.where is Where.BODY:
        return made()
    # The grammar of a turn that has not begun depends on nothing else, so it is cached.
    return rules.derive(("chat", syntax, vocabulary, place.where, place.called, options), made)


@dataclass(frozen=True, slots=True)
class _Callable:
    """Tools whose calls have the same arguments."""

    names: tuple[str, ...]
    arguments: Node


class _Turn:
    def __init__(
        self, rules: OutputRules, options: GrammarOptions, vocabulary: Vocabulary, syntax: Syntax
    ) -> None:
        allowed = () if rules.calls == "none" or syntax.calls is None else sorted(rules.allowed)
        self._rules = rules
        self._options = options
        self._vocabulary = vocabulary
        self._syntax = syntax
        self._lexicon = lexicon_of(vocabulary, syntax)
        self._tools = [rules.tools[name] for name in allowed]
        self._text = AnyText(self._lexicon.no_text)
        self._exact = True

    def constraint(self, place: ParserPosition, message: tuple[int, ...]) -> Constraint | None:
        if self._rules.calls == "required" and not self._tools:
            return None
        rest = self._rest(place, message)
        if rest is None:
            return None
        markers = tuple(sorted(self._lexicon.texts))
        return Constraint(rest, None, len(self._tools), exact=self._exact, markers=markers)

    # The rest of a turn that has begun.

    def _rest(self, place: ParserPosition, message: tuple[int, ...]) -> Node | None:
        if place.where is Where.BODY:
            return self._rest_of_body(place, message)
        if place.where is Where.OVER:
            return None
        if not self._content(message).strip() and self._lexicon.markers.isdisjoint(message):
            if place.called:
                return self._behind_calls(place)
            return self._whole() if place.where is Where.HEADER else self._behind_thought()
        return self._rest_of_front(message)

    def _behind_calls(self, place: ParserPosition) -> Node:
        calls = self._syntax.calls
        is_closed = calls is not None and calls.closed and place.where is Where.BETWEEN
        return NOTHING if is_closed else self._more_calls()

    def _rest_of_body(self, place: ParserPosition, message: tuple[int, ...]) -> Node | None:
        if place.kind is SegmentKind.REASONING:
            return self._rest_of_thought()
        if place.kind in CALL_KINDS:
            return self._rest_of_front(message) or self._rest_of_call(place.name, message)
        if self._rules.calls == "required":
            return InOrder((self._text, self._calls())) if self._is_marked else None
        if self._rules.answer is None:
            return self._free(is_begun=True)
        return self._rest_of_answer(self._content(message).lstrip())

    def _content(self, message: Sequence[int]) -> bytes:
        return b"".join(map(self._vocabulary.piece, message))

    def _rest_of_thought(self) -> Node | None:
        thought = self._syntax.reasoning
        closing = self._lexicon.ids.get(thought.closing) if thought else None
        rest = self._behind_thought()
        if closing is None or rest is None:
            return None
        return InOrder((self._text, Token(closing), _GAP, rest))

    def _rest_of_answer(self, begun: bytes) -> Node | None:
        assert self._rules.answer is not None, "else any text would be one"
        if self._options.refusals:
            rest = rest_of_refusal(begun, self._text)
            if rest is not None:
                return rest
        return self._rest_of_json(self._rules.answer.demand, begun)

    def _rest_of_json(self, schema: dict[str, Any], begun: bytes) -> Node | None:
        if not self._vocabulary.byte_ids:
            return None
        rest = remainder_of(body_of(schema), begun, self._vocabulary.byte_ids)
        if rest is None:
            return None
        self._exact = self._exact and rest.exact
        return rest.node

    def _rest_of_front(self, message: tuple[int, ...]) -> Node | None:
        calls = self._syntax.calls
        if calls is None or not self._tools:
            return None
        if message == self._lexicon.encode(calls.front(None)):
            ways = [self._named(calls, one) for one in self._callables()]
            return InOrder((one_of(ways), self._more_calls()))
        for tool in self._tools:
            if message == self._lexicon.encode(calls.front(offered_name(tool.name))):
                arguments, behind = self._arguments(tool), self._spelled(calls.behind)
                return InOrder((arguments, behind, self._more_calls()))
        return None

    def _rest_of_call(self, name: str, message: tuple[int, ...]) -> Node | None:
        # The JSON of the arguments begins with the first brace behind the name.
        calls, tool = self._syntax.calls, self._rules.tools.get(name)
        if calls is None or calls.tags is not None or tool not in self._tools or tool is None:
            return None
        content = self._content(message)
        begin = content.find(b"{", content.find(offered_name(name).encode()))
        if begin < 0 or tool.grammar is not None:
            return None
        rest = self._rest_of_json(tool.arguments, content[begin:])
        if rest is None:
            return None
        return InOrder((rest, self._spelled(calls.behind), self._more_calls()))

    # A whole turn.

    def _whole(self) -> Node | None:
        rest = self._behind_thought()
        thought = self._syntax.reasoning if self._options.reasoning else None
        if thought is None or rest is None:
            return rest
        opening = self._lexicon.ids.get(thought.opening)
        closing = self._lexicon.ids.get(thought.closing)
        if opening is None or closing is None:
            return None
        parts = (Token(opening), self._text, Token(closing), _GAP)
        return InOrder((Maybe(InOrder(parts)), rest))

    def _behind_thought(self) -> Node | None:
        if self._rules.calls == "required":
            return self._calls()
        if self._rules.answer is None:
            return self._free()
        answer: Node = Json(self._rules.answer.demand)
        ways = [answer, *([refusal(self._text)] if self._options.refusals else [])]
        return one_of([*([self._calls()] if self._tools else []), *ways])

    def _free(self, *, is_begun: bool = False) -> Node | None:
        if not self._tools:
            return self._text
        if self._is_marked:
            return InOrder((self._text, Maybe(self._calls())))
        calls = self._syntax.calls
        if calls is None or not calls.is_bare:
            return None
        if is_begun:  # a call without a marker is the first text of an answer
            return text_between(self._syntax.markers)
        text = text_between(self._syntax.markers, front=_CALL_BEGINS)
        return OneOf((self._calls(), text))

    @property
    def _is_marked(self) -> bool:
        calls = self._syntax.calls
        first = (*calls.opened, *calls.before_name)[0] if calls is not None else ""
        return isinstance(first, Mark) and first.text in self._lexicon.ids

    # Calls.

    def _calls(self) -> Node:
        calls = self._syntax.calls
        assert calls is not None, "there are tools, which a model without calls has not"
        return InOrder((self._spelled(calls.opened), self._call(calls), self._more_calls()))

    def _more_calls(self) -> Node:
        calls = self._syntax.calls
        assert calls is not None, "there was one"
        closed = self._spelled(calls.closed)
        if self._rules.one_call or not self._tools:
            return closed
        more = Repeated(InOrder((self._spelled(calls.between), self._call(calls))))
        return InOrder((more, closed))

    def _call(self, calls: CallSyntax) -> Node:
        ways = [self._named(calls, one) for one in self._callables()]
        return InOrder((self._spelled(calls.before_name), one_of(ways)))

    def _named(self, calls: CallSyntax, one: _Callable) -> Node:
        names = one_of([Literal(name) for name in one.names])
        front, behind = self._spelled(calls.behind_name), self._spelled(calls.behind)
        return InOrder((names, front, one.arguments, behind))

    def _callables(self) -> list[_Callable]:
        # Tools that take any object are one entry.
        free = [tool for tool in self._tools if tool.takes_any_object]
        bound = [
            _Callable((offered_name(tool.name),), self._arguments(tool))
            for tool in self._tools
            if not tool.takes_any_object
        ]
        if free:
            names = tuple(offered_name(tool.name) for tool in free)
            bound.append(_Callable(names, self._arguments(free[0])))
        return bound

    def _arguments(self, tool: ToolRule) -> Node:
        calls = self._syntax.calls
        assert calls is not None, "there are tools, which a model without calls has not"
        if calls.tags is None:
            return arguments_of(tool, self._rules)
        self._exact = self._exact and tool.grammar is None
        closing = next(part.text for part in calls.tags.behind_value if isinstance(part, Mark))
        is_id = closing in self._lexicon.ids
        text = self._text if is_id else text_between(self._syntax.markers)
        schema = None if tool.takes_any_object else tool.arguments
        node, exact = arguments_in_tags(calls.tags, schema, self._spelled, text)
        self._exact = self._exact and exact
        return node

    # Markers and texts.

    def _spelled(self, written: Written) -> Node:
        parts: list[Node] = []
        for part in written:
            text = part.text if isinstance(part, Mark) else part
            token = self._lexicon.ids.get(text) if isinstance(part, Mark) else None
            last = parts[-1] if parts else None
            if token is not None:
                parts.append(Token(token))
            elif isinstance(last, Literal):
                parts[-1] = Literal(last.text + text)
            else:
                parts.append(Literal(text))
        return parts[0] if len(parts) == 1 else InOrder(tuple(parts)) if parts else NOTHING
