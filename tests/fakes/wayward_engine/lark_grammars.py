"""EBNF (GBNF) and structural tags of requests as grammars of the matcher, in Lark.

Source of the names: the structural tags of xgrammar 0.2. The string forms may be spelled with the
markers' ids or, as an engine allows, with the ids of ordinary text.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from gateway.errors import GatewayError
from gateway.models.harmony.tokenizer import NAMED_SPECIALS, VOCABULARY_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_UNICODE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|\\)")
_EMPTY_RULE: Final = re.compile(r"::=\s*(?:\Z|[\w-]+\s*::=)")
_OPTIONS: Final = "%llguidance {}"
_ASCII_END: Final = 0x80


class BadGrammar(GatewayError):
    """Refusal of a grammar that the matcher does not take; the message tells the reason."""


def lark_of_ebnf(ebnf: str) -> str:
    """Translate a grammar whose first rule is `root` to Lark, with the first rule `start`.

    A grammar without recursion becomes one token, which the matcher follows exactly; otherwise the
    matcher cuts the text into the longest literals and classes that fit. Raises `BadGrammar`.
    """
    if _EMPTY_RULE.search(ebnf):
        raise BadGrammar("a rule without a body")
    try:  # what is no grammar makes the translator raise whatever comes, a bare Exception too
        rules = gbnf_to_lark(_UNICODE.sub(_character, ebnf)).replace(_OPTIONS, "")
    except Exception as error:
        raise BadGrammar(str(error)) from error
    whole = "start: START\n" + rules.replace("\nstart:", "\nSTART:", 1)
    if not LLMatcher.validate_grammar(whole):
        return whole
    if message := LLMatcher.validate_grammar(rules):
        raise BadGrammar(message)
    return rules


def _character(escape: re.Match[str]) -> str:
    if escape[0] == r"\\":
        return escape[0]
    code = int(escape[1] or escape[2], 16)
    return f"\\x{code:02x}" if code < _ASCII_END else chr(code)


ANY_TEXT: Final = "/(?s:.*)/"
_DEPTH_MAX: Final = 64
_MARKERS: Final = re.compile("(" + "|".join(map(re.escape, NAMED_SPECIALS)) + ")")


class BadTag(GatewayError):
    """Refusal of a value that is no structural tag."""


def lark_of_tag(tag: object) -> str:
    # The older form of triggers leaves all text free, as it does until a trigger comes. Raises
    # `BadTag` for an invalid tag, `BadGrammar` for an invalid grammar in it.
    match tag:
        case {"type": "structural_tag", "format": dict(form)}:
            return _Compiler().grammar(form)
        case {"type": "structural_tag", "structures": list(), "triggers": list()}:
            return f"start: {ANY_TEXT}"
        case _:
            raise BadTag("neither a format nor structures with triggers")


def json_rule(schema: object, whitespace_max: int | None) -> str:
    """Return the body of a rule: a JSON value that the schema describes.

    `whitespace_max` bounds the whitespace characters between two tokens of JSON. Keywords that the
    matcher does not know are not enforced. Raises `BadTag` for an invalid schema.
    """
    if not isinstance(schema, dict):
        if schema is not True:
            raise BadTag("a schema is an object or true")
        schema = {}
    options: dict[str, Any] = {"lenient": True}
    if whitespace_max is not None:
        options["whitespace_pattern"] = rf"[ \n\r\t]{{0,{whitespace_max}}}"
    return f"%json {json.dumps(schema | {'x-guidance': options})}"


class _Compiler:
    """Compiler of formats to expressions; schemas and grammars become rules of their own."""

    def __init__(self) -> None:
        self._rules: list[str] = []
        self._forms: Mapping[str, Callable[[Mapping[str, Any], int], str]] = {
            "token": self._token,
            "const_string": self._const_string,
            "any_tokens": self._any_tokens,
            "any_text": self._any_text,
            "json_schema": self._json_schema,
            "grammar": self._grammar,
            "regex": self._regex,
            "sequence": self._sequence,
            "or": self._or,
            "optional": lambda form, depth: self._content(form, depth) + "?",
            "star": lambda form, depth: self._content(form, depth) + "*",
            "plus": lambda form, depth: self._content(form, depth) + "+",
            "repeat": self._repeat,
            "tag": self._tag,
        }

    def grammar(self, form: Mapping[str, Any]) -> str:
        start = self._expression(form, 0)
        return "\n".join([f"start: {start}", *self._rules, ""])

    def _expression(self, form: object, depth: int) -> str:
        if not isinstance(form, dict) or depth > _DEPTH_MAX:
            raise BadTag("a format is an object, and not nested endlessly")
        compile_form = self._forms.get(str(form.get("type")))
        if compile_form is None:
            raise BadTag(f"an unknown type of format: {form.get('type')}")
        return compile_form(form, depth + 1)

    def _rule(self, prefix: str, body: str) -> str:
        name = f"{prefix}{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name

    def _token(self, form: Mapping[str, Any], _: int) -> str:
        return f"<[{_id(form.get('token'))}]>"

    def _const_string(self, form: Mapping[str, Any], _: int) -> str:
        if not form.get("value"):
            raise BadTag("a string is missing or empty")
        return _literal(form["value"])

    def _any_tokens(self, form: Mapping[str, Any], _: int) -> str:
        excluded = ",".join(str(_id(one)) for one in _list(form.get("exclude_tokens", [])))
        return f"<[^{excluded}]>*" if excluded else "<[*]>*"

    def _any_text(self, form: Mapping[str, Any], _: int) -> str:
        return self._text_without([_text(one) for one in _list(form.get("excludes", []))])

    def _text_without(self, excluded: Sequence[str]) -> str:
        words = "|".join(_slashed(re.escape(one)) for one in excluded if one)
        if not words:
            return self._rule("TEXT", ANY_TEXT)
        return self._rule("TEXT", f"{ANY_TEXT} & ~/(?s:.*({words}).*)/")

    def _json_schema(self, form: Mapping[str, Any], _: int) -> str:
        blanks = form.get("max_whitespace_cnt")
        if blanks is not None and type(blanks) is not int:
            raise BadTag("max_whitespace_cnt is a number")
        return self._rule("json", json_rule(form.get("json_schema"), blanks))

    def _grammar(self, form: Mapping[str, Any], _: int) -> str:
        return self._rule("lark", f"%lark {{\n{lark_of_ebnf(_text(form.get('grammar')))}\n}}")

    def _regex(self, form: Mapping[str, Any], _: int) -> str:
        return self._rule("REGEX", f"/{_slashed(_text(form.get('pattern')))}/")

    def _sequence(self, form: Mapping[str, Any], depth: int) -> str:
        return f"({' '.join(self._elements(form, depth))})"

    def _or(self, form: Mapping[str, Any], depth: int) -> str:
        return f"({' | '.join(self._elements(form, depth))})"

    def _elements(self, form: Mapping[str, Any], depth: int) -> list[str]:
        elements = [self._expression(one, depth) for one in _list(form.get("elements"))]
        if not elements:
            raise BadTag("elements are missing")
        return elements

    def _content(self, form: Mapping[str, Any], depth: int) -> str:
        return f"({self._expression(form.get('content'), depth)})"

    def _repeat(self, form: Mapping[str, Any], depth: int) -> str:
        least, most = form.get("min"), form.get("max")
        if type(least) is not int or type(most) is not int or least < 0:
            raise BadTag("a repetition has two bounds")
        return f"{self._content(form, depth)}{{{least},{most if most >= 0 else ''}}}"

    def _tag(self, form: Mapping[str, Any], depth: int) -> str:
        ends = form.get("end")
        ends = ends if isinstance(ends, list) else [ends]
        begin = self._edge(form.get("begin"), depth)
        content = form.get("content")
        if isinstance(content, dict) and content.get("type") == "any_text":
            return f"({begin} ({' | '.join(self._closed_text(ends, depth))}))"
        closing = " | ".join(self._edge(end, depth) for end in ends)
        return f"({begin} {self._expression(content, depth)} ({closing}))"

    def _closed_text(self, ends: Sequence[object], depth: int) -> Iterator[str]:
        # Ends that are text form one terminal with the text before them: it may begin like one.
        words = [end for end in ends if isinstance(end, str)]
        text = self._text_without(words)
        if words:
            closing = " | ".join(json.dumps(word, ensure_ascii=False) for word in words)
            yield self._rule("TEXT", f"{text} ({closing})")
        marks = [f"<[{NAMED_SPECIALS[word]}]>" for word in words if word in NAMED_SPECIALS]
        others = [self._edge(end, depth) for end in ends if not isinstance(end, str)]
        yield from (f"{text} {end}" for end in (*marks, *others))

    def _edge(self, edge: object, depth: int) -> str:
        return self._expression(edge, depth) if isinstance(edge, dict) else _literal(edge)


def _literal(value: object) -> str:
    parts = [part for part in _MARKERS.split(_text(value)) if part]
    return " ".join(map(_spelled, parts)) or '""'


def _spelled(part: str) -> str:
    quoted = json.dumps(part, ensure_ascii=False)
    marker = NAMED_SPECIALS.get(part)
    return quoted if marker is None else f"(<[{marker}]> | {quoted})"


def _slashed(pattern: str) -> str:
    return re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern).replace("\n", r"\n")


def _id(token: object) -> int:
    one = NAMED_SPECIALS.get(token) if isinstance(token, str) else token
    if type(one) is not int or not 0 <= one < VOCABULARY_SIZE:
        raise BadTag(f"no token: {token}")
    return one


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BadTag("text is missing")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise BadTag("a list is missing")
    return value
