"""Names of data say what they hold, not how it came here."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).parents[2] / "gateway"
VAGUE = frozenset({"told", "asked", "said", "found", "given", "known"})
OF_A_STANDARD = re.compile("not_?found", re.IGNORECASE)
"""HTTP's 404 and JSON-RPC's -32601."""
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of all that a module binds or defines."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store(), lineno=line):
                yield line, name
            case ast.Attribute(attr=name, ctx=ast.Store(), lineno=line):
                yield line, name
            case ast.arg(arg=name, lineno=line):
                yield line, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name, lineno=line):
                yield line, name
            case ast.alias(asname=str(name), lineno=line):
                yield line, name
            case ast.ExceptHandler(name=str(name), lineno=line):
                yield line, name
            case (
                ast.MatchAs(name=str(name), lineno=line)
                | ast.MatchStar(name=str(name), lineno=line)
                | ast.MatchMapping(rest=str(name), lineno=line)
            ):
                yield line, name
            case _:
                pass


def vague(source: str) -> list[tuple[int, str]]:
    return [
        (line, name)
        for line, name in names(ast.parse(source))
        if not VAGUE.isdisjoint(map(str.lower, WORD.findall(OF_A_STANDARD.sub("", name))))
    ]


def complaints(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return [f"{path.relative_to(PACKAGE)}:{line}: {name}" for line, name in vague(text)]


def test_names_say_what_they_hold() -> None:
    modules = sorted(PACKAGE.rglob("*.py"))
    assert len(modules) > 100
    assert [line for path in modules for line in complaints(path)] == []


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "is_told: bool = False",
        "self._asked_at = 1",
        "def is_known(): ...",
        "async def asked(): ...",
        "class SaidAnew: ...",
        "ALL_KNOWN = 1",
        "f = lambda given: given",
        "def f(**given): ...",
        "import rows as found",
        "for told, _ in rows: ...",
        "match row:\n    case [said, *_]: ...",
        "match row:\n    case {**told}: ...",
        "try: ...\nexcept OSError as found: ...",
    ],
)
def test_a_vague_name_is_noticed(source: str) -> None:
    assert len(vague(source)) == 1


@pytest.mark.parametrize(
    "source", ["not_found = 1", "NOT_FOUND = 1", "class NotFound: ...", "is_unknown = 1"]
)
def test_other_names_are_not(source: str) -> None:
    assert vague(source) == []
