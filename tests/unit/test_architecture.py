"""What the pages for contributors say of the code: the files that they name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent.name for path in (ROOT / "gateway").glob("*/__init__.py"))
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
