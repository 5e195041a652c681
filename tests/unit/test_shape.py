"""The bounds that keep the code readable."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FILE_LINES_MAX = 1200
FUNCTION_LINES_MAX = 70
VAGUE = {
    "base_utils",
    "common",
    "handler",
    "handlers",
    "helper",
    "helpers",
    "manager",
    "util",
    "utils",
}
PARTS = ("gateway", "scripts", "tests")
FILES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.slow
def test_files_and_functions_are_short() -> None:
    too_long = []
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        lines = text.count("\n")
        if lines > FILE_LINES_MAX:
            too_long.append(f"{name(path)}: {lines} lines")
        if lines >= FUNCTION_LINES_MAX:
            too_long += [f"{name(path)}: {function}" for function in long_functions(text)]
    assert too_long == []


def long_functions(text: str) -> list[str]:
    # What is shorter holds no function that is long: most of the tree is not walked.
    found: list[str] = []
    nodes: list[ast.AST] = [ast.parse(text)]
    while nodes:
        for node in ast.iter_child_nodes(nodes.pop()):
            if getattr(node, "end_lineno", 0) - getattr(node, "lineno", 0) < FUNCTION_LINES_MAX:
                continue
            nodes.append(node)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(node.name)
    return found


def test_modules_are_named_after_what_they_do() -> None:
    assert [name(path) for path in FILES if path.stem in VAGUE] == []


@pytest.mark.slow
def test_brackets_and_backticks_of_prose_are_paired() -> None:
    """A replacement of names that runs over sentences leaves halves of code in them."""
    broken = []
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        for line, text in prose(path.read_text(encoding="utf-8")):
            outside = re.sub(r"`[^`]*`", "", text)
            unpaired = [pair for pair in ("()", "[]", "{}") if not is_paired(outside, pair)]
            broken += [f"{name(path)}:{line}: {mark}" for mark in unpaired]
            broken += [f"{name(path)}:{line}: `"] if "`" in outside else []
    assert broken == []


def is_paired(text: str, pair: str) -> bool:
    return text.count(pair[0]) == text.count(pair[1])


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings, the strings that follow a constant, and comments on lines of their own."""
    nodes: list[ast.AST] = [ast.parse(source)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            nodes += node.body
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)
    for comment in re.finditer(r"^ *#.*(?:\n *#.*)*", source, re.MULTILINE):
        yield source.count("\n", 0, comment.start()) + 1, comment[0]
