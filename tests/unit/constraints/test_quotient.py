"""What is left of a language behind a beginning."""

from __future__ import annotations

import json

import pytest

from gateway.constraints.gbnf import (
    Chain,
    Named,
    Quoted,
    Quotient,
    UntranslatableGrammar,
    chain,
    either,
    grammar_of,
    language_of,
    maybe,
    text,
)
from gateway.constraints.lark import input_of
from gateway.constraints.output_rules import TextGrammar
from tests.fakes.gbnf import Walker, allows_text

LISTING = 'start: "ls" FLAG* | e\nFLAG: " -" /[a-zé😀]{1,3}/\ne: "(" e ")" | "1"'


def test_all_of_a_text_leaves_nothing() -> None:
    assert Quotient(text("ab"), {}).behind("ab") == Chain(())
    assert Quotient(text("ab"), {}).behind("") == Chain((text("ab"),))


@pytest.mark.parametrize("beginning", ["b", "abc", "\\"])
def test_what_does_not_begin_so_is_refused(beginning: str) -> None:
    with pytest.raises(UntranslatableGrammar, match="begin so"):
        Quotient(language_of("ab"), {}).behind(beginning)


@pytest.mark.slow
@pytest.mark.parametrize(
    "definition",
    ['start: start "a" | "b"', 'start: x*\nx: ("a"?) ~ 9000', "start: /(a|.)*b.{900}/"],
)
def test_what_is_too_ambiguous_is_refused(definition: str) -> None:
    root, rules = input_of(TextGrammar("lark", definition))
    with pytest.raises(UntranslatableGrammar):
        Quotient(root, rules).behind('{"input": "' + "ab" * 400)


@pytest.mark.parametrize("whole", ["ls -a -é😀b", "((1))", "ls"])
def test_the_input_of_a_tool_may_be_cut_anywhere(whole: str) -> None:
    root, rules = input_of(TextGrammar("lark", LISTING))
    written = json.dumps({"input": whole}, ensure_ascii=False)
    for cut in range(len(written)):
        left = Quotient(root, rules).behind(written[:cut])
        assert allows_text(grammar_of(left, rules), written[cut:])


def test_a_text_that_takes_too_much_work_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = language_of("a{0,1000}")
    Quotient(counted, {}).behind("a" * 500)
    monkeypatch.setattr("gateway.constraints.gbnf.OPENED_IN_ALL_MAX", 500)
    with pytest.raises(UntranslatableGrammar):
        Quotient(counted, {}).behind("a" * 500)


def test_a_long_text_is_read_in_pieces() -> None:
    left = Quotient(language_of("a*b"), {}).behind("a" * 1000)
    assert Walker.of_ebnf(grammar_of(left, {})).allows("aab")


@pytest.mark.parametrize("beginning", ["\\", "\\u", "\\u0", "\\u00", "\\u000", "\\ud83d\\u"])
def test_an_escape_goes_on_to_a_character_that_may_stand_there(beginning: str) -> None:
    chars = language_of("[\n\x0b😀]")
    assert not isinstance(chars, Named | Quoted)
    root, rules = input_of(TextGrammar("regex", "[\n\x0b😀]"))
    left = Quotient(root, rules).behind('{"input":"' + beginning)
    walker = Walker.of_ebnf(grammar_of(left, rules))
    ends = {"\\n": "\\n", "\\u000a": "\\u000a", "\\u000B": "x", "\\uD83D\\uDE00": "y"}
    for spelled in ends:
        is_so = spelled.lower().startswith(beginning.lower())
        assert walker.allows(spelled[len(beginning) :] + '"}') is is_so
    assert not walker.allows('"}')


def test_what_two_ways_lead_to_is_left_once() -> None:
    language = chain(either(maybe(text("a")), maybe(text("b"))), text("c"))
    left = Quotient(language, {}).behind("c")
    assert left == Chain(())
