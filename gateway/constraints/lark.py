"""Lark grammars of custom tools, translated for the engines.

A text is allowed if the grammar's rules allow it letter by letter: the decisions of Lark's lexer
(longest terminal, priorities) are ignored. Sources: Lark's grammar reference and its `common.lark`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gateway.constraints.gbnf import (
    COUNTS,
    GROUP_DEPTH_MAX,
    Chain,
    Chars,
    Choice,
    Language,
    Named,
    Rules,
    Space,
    Times,
    UntranslatableGrammar,
    cased,
    grammar_of,
    language_of,
    quoted,
    text,
    unescaped,
)
from gateway.constraints.output_rules import INPUT_OBJECT
from gateway.generation import Ebnf, Json

if TYPE_CHECKING:
    from gateway.constraints.output_rules import OutputRules, TextGrammar
    from gateway.generation import Node

_COMMON: Final = {
    "CR": r"/\r/",
    "LF": r"/\n/",
    "NEWLINE": r"/(\r?\n)+/",
    "WS": r"/[ \t\f\r\n]+/",
    "WS_INLINE": r"/[ \t]+/",
    "DIGIT": "/[0-9]/",
    "HEXDIGIT": "/[0-9a-fA-F]/",
    "INT": "/[0-9]+/",
    "SIGNED_INT": r"/[+-]?[0-9]+/",
    "DECIMAL": r"/[0-9]+\.[0-9]*|\.[0-9]+/",
    "FLOAT": r"/[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?/",
    "NUMBER": r"FLOAT | INT",
    "SIGNED_FLOAT": r"/[+-]?/ FLOAT",
    "SIGNED_NUMBER": r"/[+-]?/ NUMBER",
    "LCASE_LETTER": "/[a-z]/",
    "UCASE_LETTER": "/[A-Z]/",
    "LETTER": "/[a-zA-Z]/",
    "WORD": "/[a-zA-Z]+/",
    "CNAME": "/[a-zA-Z_][a-zA-Z0-9_]*/",
    "ESCAPED_STRING": r"""/"([^"\\\n]|\\[^\n])*"/""",
    "SH_COMMENT": r"/#[^\n]*/",
    "CPP_COMMENT": r"/\/\/[^\n]*/",
    "SQL_COMMENT": r"/--[^\n]*/",
}

_TOKEN: Final = re.compile(
    r"""(?P<skip>\s+|(?://|\#)[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*"i?)
    |(?P<regexp>/(?![/*])(?:[^/\\\n]|\\.)+/[a-z]*)
    |(?P<head>[?!]{0,2}[A-Za-z_][A-Za-z0-9_]*(?:\.-?\d+)?\s*:)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<directive>%[a-z]+)
    |(?P<alias>->\s*[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>\d{1,9})
    |(?P<mark>\.\.|[()\[\]|?*+~.,])
    """,
    re.VERBOSE,
)
_IGNORED: Final = "ignored"
_LANGUAGES: Final = "languages"


def languages_of(rules: OutputRules) -> dict[TextGrammar, Node]:
    """Translate the grammars of the tools. CPU work, for a thread."""
    return rules.derive(
        _LANGUAGES, lambda: {grammar: _language(grammar) for grammar in rules.grammars}
    )


def are_translated(rules: OutputRules) -> bool:
    return _LANGUAGES in rules.derived


def ebnf_of(grammar: TextGrammar) -> str:
    return grammar_of(*input_of(grammar))


def input_of(grammar: TextGrammar) -> tuple[Language, Rules]:
    """Return the language of `{"input": "<text of this grammar>"}`, and its rules.

    Raises `UntranslatableGrammar`.
    """
    if grammar.syntax == "regex":
        return _wrapped(language_of(grammar.definition)), {}
    rules = _Reader(grammar.definition).read()
    return _wrapped(_start(rules)), {name: quoted(rule) for name, rule in rules.items()}


def _language(grammar: TextGrammar) -> Node:
    # Any text where the engines cannot express the grammar.
    try:
        return Ebnf(ebnf_of(grammar))
    except UntranslatableGrammar:
        return Json(INPUT_OBJECT)


def _wrapped(language: Language) -> Language:
    opened = (text("{"), Space(), text('"input"'), Space(), text(":"), Space(), text('"'))
    return Chain((*opened, quoted(language), text('"'), Space(), text("}")))


def _start(rules: dict[str, Language]) -> Language:
    if "start" not in rules:
        raise UntranslatableGrammar("it has no rule `start`")
    return Chain((Named(_IGNORED), Named("start"))) if _IGNORED in rules else Named("start")


def _tokens(source: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if not match:
            raise UntranslatableGrammar(f"it holds `{source[at : at + 20]}`")
        if match.lastgroup != "skip":
            tokens.append((str(match.lastgroup), match.group()))
        at = match.end()
    return [*tokens, ("end", "")]


class _Reader:
    def __init__(self, definition: str) -> None:
        self._tokens = _tokens(definition)
        self._at = 0
        self._rules: dict[str, Language] = {}
        self._used: set[str] = set()
        self._ignores = any(kind == "directive" and t == "%ignore" for kind, t in self._tokens)
        self._ignored: list[Language] = []
        self._in_rule = False

    def read(self) -> dict[str, Language]:
        while self._kind != "end":
            if self._kind == "head":
                self._definition()
            elif self._text == "%import":
                self._import()
            elif self._text == "%ignore":
                self._take()
                self._in_rule = False
                self._ignored.append(self._choice(GROUP_DEPTH_MAX))
            else:
                raise UntranslatableGrammar(f"it holds `{self._text[:20]}` out of place")
        if self._ignores:
            self._add(_IGNORED, Times(Choice(tuple(self._ignored)), 0, None))
        if unknown := sorted(self._used - self._rules.keys()):
            raise UntranslatableGrammar(f"it uses `{unknown[0]}`, which it does not define")
        return self._rules

    @property
    def _kind(self) -> str:
        return self._tokens[self._at][0]

    @property
    def _text(self) -> str:
        return self._tokens[self._at][1]

    def _take(self, kind: str = "") -> str:
        token_kind, token = self._tokens[self._at]
        if kind and token_kind != kind:
            raise UntranslatableGrammar(f"it holds `{token[:20]}` out of place")
        self._at += 1
        return token

    def _took(self, mark: str) -> bool:
        taken = self._text == mark and self._kind == "mark"
        self._at += taken
        return taken

    def _add(self, name: str, rule: Language) -> None:
        if name in self._rules:
            raise UntranslatableGrammar(f"it defines `{name}` twice")
        self._rules[name] = rule

    def _definition(self) -> None:
        name = self._take().rstrip(": \t\r\n").lstrip("?!").partition(".")[0]
        self._in_rule = not name.isupper()
        self._add(name, self._choice(GROUP_DEPTH_MAX))

    def _import(self) -> None:
        self._take()
        if self._take("name") != "common":
            raise UntranslatableGrammar("it imports from another grammar than `common`")
        if self._took("("):
            names = [self._take("name")]
            while self._took(","):
                names.append(self._take("name"))
            if not self._took(")"):
                raise UntranslatableGrammar("an import has no end")
            for name in names:
                self._add_common(name, name)
            return
        if not self._took("."):
            raise UntranslatableGrammar("it imports all of a grammar")
        name = self._take("name")
        shown = self._take().removeprefix("->").strip() if self._kind == "alias" else name
        self._add_common(name, shown)

    def _add_common(self, name: str, shown: str) -> None:
        if name not in _COMMON:
            raise UntranslatableGrammar(f"it imports `{name[:40]}`")
        self._add(shown, _common(name))

    def _choice(self, depth: int) -> Language:
        self._took("|")
        options = [self._chain(depth)]
        while self._took("|"):
            options.append(self._chain(depth))
        return Choice(tuple(options)) if len(options) > 1 else options[0]

    def _chain(self, depth: int) -> Language:
        parts = []
        while self._kind in {"string", "regexp", "name"} or self._text in {"(", "["}:
            parts.append(self._counted(depth))
        if self._kind == "alias":
            self._take()
        return Chain(tuple(parts))

    def _counted(self, depth: int) -> Language:
        part = self._item(depth)
        least, most = self._count()
        return part if (least, most) == (1, 1) else Times(part, least, most)

    def _count(self) -> tuple[int, int | None]:
        if self._kind == "mark" and self._text in COUNTS:
            return COUNTS[self._take()]
        if not self._took("~"):
            return 1, 1
        least = int(self._take("number"))
        return least, int(self._take("number")) if self._took("..") else least

    def _item(self, depth: int) -> Language:
        if self._kind == "name":
            name = self._take()
            self._used.add(name)
            return self._spaced(Named(name)) if name.isupper() else Named(name)
        if self._kind == "string":
            return self._spaced(self._string())
        if self._kind == "regexp":
            return self._spaced(_pattern(self._take()))
        if not depth:
            raise UntranslatableGrammar("its groups are nested too deeply")
        opening = self._take()
        inner = self._choice(depth - 1)
        if not self._took(")" if opening == "(" else "]"):
            raise UntranslatableGrammar(f"a `{opening}` has no end")
        return inner if opening == "(" else Times(inner, 0, 1)

    def _spaced(self, terminal: Language) -> Language:
        # Ignored text may follow each terminal of a rule.
        follows = self._ignores and self._in_rule
        return Chain((terminal, Named(_IGNORED))) if follows else terminal

    def _string(self) -> Language:
        characters, ignores_case = _string_parts(self._take())
        if not self._took(".."):
            if ignores_case:
                return Chain(tuple(Chars(cased(ord(one))) for one in characters))
            return text(characters)
        last, _ = _string_parts(self._take("string"))
        if len(characters) != 1 or len(last) != 1 or last < characters:
            raise UntranslatableGrammar("a range is not between two characters")
        return Chars(((ord(characters), ord(last)),))


def _common(name: str) -> Language:
    definition = _COMMON[name]
    for other in ("NUMBER", "FLOAT", "INT"):
        if other in definition:
            definition = definition.replace(other, f"({_COMMON[other]})")
    [language] = _Reader(f"TERMINAL: {definition}").read().values()
    return language


def _string_parts(token: str) -> tuple[str, bool]:
    body = token.removesuffix("i")[1:-1]
    characters, at = "", 0
    while at < len(body):
        character, at = unescaped(body, at + 1) if body[at] == "\\" else (body[at], at + 1)
        characters += character
    return characters, token.endswith("i")


def _pattern(token: str) -> Language:
    body, _, flags = token[1:].rpartition("/")
    if set(flags) - set("imsu"):
        raise UntranslatableGrammar(f"a pattern has the flags `{flags}`")
    return language_of(body, flags)
