"""What the pages for contributors say of the code: the files that they name are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent.name for path in (ROOT / "gateway").glob("*/__init__.py"))
STATEMENT_LINES_MAX = 40
LONGER = {"jobs.py"}
"""Modules with a statement that has more lines."""
READING_STEPS_MAX = 4
"""Subqueries of a statement's WITH that only read; each step that writes stands for a table."""
READING_STEP = re.compile(r"\w AS (?:NOT )?(?:MATERIALIZED )?\(\s*\(?(?:SELECT|WITH)\b")
PROJECT_COLUMN = "models_mode"
PROJECT_FILES_MAX = 3
NAMED = re.compile(r"(?<![\w/*])((?:[\w-]+/)*[\w-]+\.py)\b")


@pytest.mark.parametrize("page", ["architecture.md", "contribute.md"])
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    names = set(NAMED.findall(text))
    assert len(names) > 10
    there = {path.name for path in (ROOT / "gateway").rglob("*.py")}
    for name in names:
        folders = (ROOT, ROOT / "gateway")
        found = any((folder / name).exists() for folder in folders)
        assert found or ("/" not in name and name in there), name


def test_every_package_has_a_row() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rows = " ".join(line for line in text.splitlines() if line.startswith("|"))
    assert [package for package in PACKAGES if f"`{package}`" not in rows] == []


def statements(text: str) -> Iterator[str]:
    """The SQL of a module, as it is written: one string each."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            written = "\n".join(lines[node.lineno : (node.end_lineno or 0) - 1])
            if re.search(r"\b(?:SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE)\b", written):
                yield written


@pytest.mark.slow
def test_statements_are_short() -> None:
    too_long = []
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        if path.name in LONGER:
            continue
        for statement in statements(path.read_text("utf-8")):
            lines, steps = statement.count("\n") + 1, len(READING_STEP.findall(statement))
            if lines > STATEMENT_LINES_MAX or steps > READING_STEPS_MAX:
                too_long.append(f"{path.relative_to(ROOT)}: {lines} lines, {steps} steps")
    assert too_long == []


def test_a_column_of_a_project_is_named_in_few_files() -> None:
    names = re.compile(rf"\b{PROJECT_COLUMN}\b")
    files = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "gateway").rglob("*.py"))
        if names.search(path.read_text("utf-8"))
    ]
    assert len(files) <= PROJECT_FILES_MAX, files
