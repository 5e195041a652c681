"""Regular expressions in the notation of the engines, held against Python's own."""

from __future__ import annotations

import contextlib
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.constraints.gbnf import UntranslatableGrammar, unanchored
from gateway.constraints.lark import ebnf_of
from gateway.constraints.output_rules import TextGrammar
from tests.fakes.cases import each
from tests.fakes.examples import examples
from tests.fakes.gbnf import allows_text

TIMESTAMP = (
    r"^(?P<month>January|May)\s+(?P<day>\d{1,2})(?:st|nd|rd|th)?\s+(?<year>\d{4})\s+at\s+"
    r"(?P<hour>0?[1-9]|1[0-2])(?P<ampm>AM|PM)$"
)


def allows(pattern: str, text: str) -> bool:
    grammar = ebnf_of(TextGrammar("regex", pattern))
    return allows_text(grammar, json.dumps({"input": text}, ensure_ascii=False))


@each(
    ("pattern", "right", "wrong"),
    [
        (TIMESTAMP, ["May 7th 2025 at 10AM", "January 17 1999 at 01PM"], ["May 7th 2025"]),
        (r"\d{3}-\d{2,}", ["123-45", "123-4567"], ["12-45", "123-4"]),
        (r"a{0}(?:(?:b+)?)*c", ["c", "bbc"], ["ac"]),
        (r"[a-c\d_.]+?", ["ab1_."], ["", "d"]),
        (r"[^a-c\n]", ["d", '"', "\\", "é", "\t"], ["a", "\n"]),
        (r"[]x-]", ["]", "x", "-"], ["y"]),
        (r"[\]\\\b]", ["]", "\\", "\b"], ["b"]),
        (r"\w\W\s\S\D", ["a. !x", "_-\t!."], ["ab cd"]),
        (r"\x41\u00e9\u{1F600}\n\0", ["Aé😀\n\0"], ["A"]),
        (r"\.\*\$\^", [".*$^"], ["a"]),
        (r"(?i)straße|[k-m]", ["STRAßE", "L", "k"], ["x"]),
        (r"(?s).", ["\n", "\x00", "\x1f", "😀"], ["", "ab"]),
        (r"a|", ["a", ""], ["b"]),
        ("\x7f[\x7f-é]", ["\x7fé"], ["a"]),
        (r"", [""], ["a"]),
    ],
)
def test_a_pattern_matches_whole_texts(pattern: str, right: list[str], wrong: list[str]) -> None:
    assert [text for text in right if not allows(pattern, text)] == []
    assert [text for text in wrong if allows(pattern, text)] == []


@each(
    "pattern",
    [
        *(r"(?=a)b", r"(?<!a)b", r"(a)\1", r"\bword\b", r"\p{L}", r"(?>a)", r"(?x)a b"),
        *("(", ")", "a)", "[", "[a", "[b-a]", r"[a-\d]", "[[a]]", "[a&&b]", "[a--b]"),
        *(
            "*",
            "a**",
            "a{2}{3}",
            "a{3,2}",
            "a++",
            "{2}",
            "a^b",
            "a$b",
            "\\",
            r"\u{110000}",
            "[^\\x00-\U0010ffff]",
        ),
        *("((a{1,100}){1,100}){1,100}", "(" * 60 + "a" + ")" * 60, "(" * 40_000, "\ud800"),
    ],
)
def test_what_cannot_be_said_is_refused(pattern: str) -> None:
    with pytest.raises(UntranslatableGrammar):
        ebnf_of(TextGrammar("regex", pattern))


@pytest.mark.parametrize(
    ("pattern", "bare"), [("^a$", "a"), ("a\\$", "a\\$"), ("a\\\\$", "a\\\\"), ("$", ""), ("", "")]
)
def test_anchors_at_the_ends_say_nothing(pattern: str, bare: str) -> None:
    assert unanchored(pattern) == bare


_ATOMS = st.sampled_from(["a", "b", '"', r"\\", r"\n", ".", "[ab]", "[^a]", r"\d", "é"])
_PATTERNS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=5,
)


_REPEATED_TWICE = re.compile(r"[*+?}]\)[*+?{]")


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(_PATTERNS, st.lists(st.text(alphabet='ab"\\\n1é', max_size=4), max_size=5))
def test_a_translated_pattern_agrees_with_the_one_of_python(pattern: str, texts: list[str]) -> None:
    compiled = re.compile(pattern, re.ASCII)
    for text in texts:
        matches, is_allowed = compiled.fullmatch(text) is not None, allows(pattern, text)
        # The matcher of the tests reads a repetition as far as it goes, and never goes back.
        assert is_allowed == matches or (matches and _REPEATED_TWICE.search(pattern)), text


@pytest.mark.slow
@given(st.text(alphabet="ab()[]{}|*+?.^$\\-,12sdux\"\n:'/~%>!", max_size=40))
def test_no_definition_makes_it_raise_anything_else(definition: str) -> None:
    for grammar in (TextGrammar("regex", definition), TextGrammar("lark", f"start: {definition}")):
        with contextlib.suppress(UntranslatableGrammar):
            assert ebnf_of(grammar).startswith("root ::= ")
