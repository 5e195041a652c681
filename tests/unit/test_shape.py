"""The bounds that keep the code readable."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE_LINES_MAX = 800
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
FILES = sorted(path for part in ("gateway", "tests") for path in (ROOT / part).rglob("*.py"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=name)
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= FILE_LINES_MAX
    too_long = [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert too_long == []


def test_modules_are_named_after_what_they_do() -> None:
    assert [name(path) for path in FILES if path.stem in VAGUE] == []
