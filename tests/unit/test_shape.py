"""The bounds that keep the code readable."""

from __future__ import annotations

import ast
from pathlib import Path

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
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    ]


def test_modules_are_named_after_what_they_do() -> None:
    assert [name(path) for path in FILES if path.stem in VAGUE] == []
