"""The glossary names code that is there, and every package."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

GATEWAY = Path(__file__).parents[2] / "gateway"
PAGE = (GATEWAY.parent / "docs" / "glossary.md").read_text(encoding="utf-8")
TERM = re.compile(r"^\* (\*\*.*?)(?=^\* |^#|\Z)", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"\*\*(.+?)\*\*")
CODE = re.compile(r"`((?:[a-z_]+\.)*\w+)`")
TERMS_MIN = 50


def entries() -> list[tuple[list[str], list[str]]]:
    """The words that each entry begins with, and the code that it names."""
    return [
        (NAME.findall(entry.partition(":")[0]), CODE.findall(entry)) for entry in TERM.findall(PAGE)
    ]


def module(path: str) -> Path | None:
    """The file of a dotted path below the package, or the folder."""
    place = GATEWAY.joinpath(*path.split("."))
    file = place.with_suffix(".py")
    return file if file.is_file() else place if place.is_dir() else None


@cache
def defined(file: Path) -> frozenset[str]:
    """All names that a module itself gives a meaning."""
    names: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Assign(targets=targets):
                names.update(target.id for target in targets if isinstance(target, ast.Name))
            case _:
                pass
    return frozenset(names)


def exists(path: str) -> bool:
    if module(path):
        return True
    above, _, name = path.rpartition(".")
    place = module(above) if above else None
    if place is None:
        return False
    return name in defined(place if place.is_file() else place / "__init__.py")


def elsewhere(path: str) -> str:
    """Where else there is something of this name."""
    name = path.rpartition(".")[2]
    files = [file for file in GATEWAY.rglob("*.py") if name in defined(file) or file.stem == name]
    found = [".".join(file.relative_to(GATEWAY).with_suffix("").parts) for file in files]
    return f"that name is in {', '.join(found)}" if found else "nothing has that name"


@pytest.mark.slow
def test_every_term_names_code_that_is_there() -> None:
    stale = [
        f"docs/glossary.md, '{', '.join(words)}': there is no {path} in gateway/; {elsewhere(path)}"
        for words, paths in entries()
        for path in paths
        if not exists(path)
    ]
    assert stale == []


def test_no_term_stands_there_twice_and_there_are_enough() -> None:
    words = Counter(word for words, _ in entries() for word in words)
    assert [word for word, count in words.items() if count > 1] == []
    assert len(words) >= TERMS_MIN


def test_every_package_is_mentioned() -> None:
    packages = {file.parent.name for file in GATEWAY.glob("*/__init__.py")}
    named = {path.partition(".")[0] for _, paths in entries() for path in paths}
    assert packages - named == set()
