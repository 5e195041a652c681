"""Grammars of custom tools in the notation of the engines: what they allow, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.constraints.gbnf import UntranslatableGrammar
from gateway.constraints.lark import ebnf_of
from gateway.constraints.output_rules import TextGrammar
from tests.fakes.cases import each
from tests.fakes.gbnf import allows_text

CODEX = (Path(__file__).parents[2] / "data" / "grammars" / "codex_apply_patch.lark").read_text()
PATCH = '*** Begin Patch\n*** Update File: a "q".py\n@@ def\n-x\\n\n+y\té😀\n \n*** End Patch\n'


def allows(definition: str, text: str, syntax: str = "lark") -> bool:
    grammar = ebnf_of(TextGrammar("regex" if syntax == "regex" else "lark", definition))
    return allows_text(grammar, json.dumps({"input": text}, ensure_ascii=False))


@pytest.mark.parametrize(
    "text",
    [
        PATCH,
        PATCH.removesuffix("\n"),
        "*** Begin Patch\n*** Add File: a\n+\n+b\n*** Delete File: c\n*** End Patch",
        "*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@\n-a\n"
        "*** End of File\n*** End Patch",
    ],
)
def test_the_patch_grammar_of_codex_allows_patches(text: str) -> None:
    assert allows(CODEX, text)


@pytest.mark.parametrize("text", ["", "x", PATCH.replace("End", "Ende"), PATCH + "\n", PATCH[1:]])
def test_the_patch_grammar_of_codex_allows_nothing_else(text: str) -> None:
    assert not allows(CODEX, text)


@each(
    ("definition", "right", "wrong"),
    [
        ('start: "a" | "b"', ["a", "b"], ["", "ab", "c"]),
        ('start: "a"\n  | "b" "c"\n  | ', ["a", "bc", ""], ["b"]),
        ('start: ("a" | "b")+ "c"?', ["a", "bab", "abc"], ["", "c"]),
        ('start: ["a"] "b"*', ["", "a", "abb"], ["ba"]),
        ('start: "a" ~ 2', ["aa"], ["a", "aaa"]),
        ('start: "a" ~ 1..3', ["a", "aaa"], ["", "aaaa"]),
        ('start: "a".."c" "1"', ["a1", "c1"], ["d1"]),
        ('start: "SeLect 1"i', ["select 1", "SELECT 1"], ["selekt 1"]),
        (r'start: "\n\t\"\\\x41\u00e9"', ['\n\t"\\Aé'], ["n"]),
        ("?start: x -> alias\n!x.2: Y\nY.-1: /y+/\n// comment\n# another", ["y", "yyy"], ["", "x"]),
        ("start: /ab?c/i", ["ac", "ABC"], ["b"]),
        (r"start: /a\/b/ /x.y/s", ["a/bx\ny"], ["a/bxy"]),
        ("start: /a.b/", ["axb", 'a"b', "a\\b", "a\tb", "a\x01b"], ["a\nb", "ab"]),
        ('%import common (INT, WS)\n%ignore WS\nstart: INT "+" INT', ["1+2", " 1 +\n22 "], ["1+"]),
        ('start: "a" B\nB: "b" "c"\n%ignore " "', [" a bc", "abc "], ["a b c"]),
        ("start: SIGNED_NUMBER\n%import common.SIGNED_NUMBER", ["1", "-1.5", "2e+3"], ["x", "-"]),
        ("start: X\n%import common.CNAME -> X", ["a_1"], ["1a"]),
        ("start: ESCAPED_STRING\n%import common.ESCAPED_STRING", ['"a\\"b"'], ['"', '"a"b"']),
        ('start: e\ne: e "+" e | "(" e ")" | "1"', ["1", "(1+1)+1"], ["1+", "(1"]),
    ],
)
def test_a_grammar_means_what_lark_would_mean(
    definition: str, right: list[str], wrong: list[str]
) -> None:
    assert [text for text in right if not allows(definition, text)] == []
    assert [text for text in wrong if allows(definition, text)] == []


@pytest.mark.parametrize(("space", "allowed"), [("", True), ("\n", True), ("\n ", False)])
def test_the_object_around_the_text_may_be_spaced_a_little(space: str, allowed: bool) -> None:
    grammar = ebnf_of(TextGrammar("lark", 'start: "a"'))
    assert allows_text(grammar, f'{{{space}"input":{space}"a"{space}}}') is allowed
    assert not allows_text(grammar, '{"input":"a","more":1}')


@each(
    "definition",
    [
        "",
        'rule: "a"',
        "start: missing",
        'start: "a"\nstart: "b"',
        "start: (",
        'start: ("a"',
        'start: ["a")',
        'start: "a" }',
        'start: "ab".."c"',
        'start: "c".."a"',
        'start: "a".."b".."c"',
        'start: "a" ~ x',
        'start: "a" ~ 1000000',
        'start: (("a" ~ 999) ~ 999)',
        "start: /a/x",
        r'start: "\q"',
        r'start: "\U00110000"',
        r'start: "\ud800"',
        "start{x}: x",
        "%declare X\nstart: X",
        "%import python.X\nstart: X",
        "%import common\nstart: X",
        "%import common (INT\nstart: INT",
        "%import common.NOPE\nstart: NOPE",
        '%extend start: "a"',
        'start: %json {"type": "object"}',
        "start: <|end|>",
        "start: " + "(" * 60 + '"a"' + ")" * 60,
        "start: " + "(" * 30_000,
        'start: "' + "a" * 60_000 + '"',
        "start: " + "a~50 " * 2_000 + '\na: "b"',
    ],
)
def test_what_cannot_be_said_is_refused(definition: str) -> None:
    with pytest.raises(UntranslatableGrammar):
        ebnf_of(TextGrammar("lark", definition))


def test_a_grammar_of_many_different_sets_is_too_long() -> None:
    sets = "".join(f"[\0-{chr(point)}]" for point in range(0x100, 0x600))
    with pytest.raises(UntranslatableGrammar, match="too long"):
        ebnf_of(TextGrammar("regex", sets))
