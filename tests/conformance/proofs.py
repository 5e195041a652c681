"""Which tests are marked to prove which requirement, read from their source.

So a proof counts though it is not collected in this run: because its client is not installed, or
because it is one of `make nightly`.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[2]
MARK = "requirement"


@dataclass(frozen=True, slots=True)
class Proof:
    """A test, and the pattern of the ids that it is marked with: one id, unless the mark is put
    together from the parameters of a test.
    """

    pattern: str
    test: str
    path: str
    """Relative to the root of the project."""

    def proves(self, requirement: str) -> bool:
        """Whether the test is marked with this id."""
        return re.fullmatch(self.pattern, requirement) is not None


@cache
def proofs() -> tuple[Proof, ...]:
    """Every mark of every test, by path and place."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return tuple(proof for path in paths for proof in _of(path))


def _of(path: Path) -> Iterator[Proof]:
    """A mark in a table is one of the tests that are parametrised with the table."""
    text = path.read_text("utf-8")
    if MARK not in text:
        return
    tree = ast.parse(text)
    where = str(path.relative_to(ROOT))
    tables = dict(_tables(tree))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            marked = [*node.decorator_list, *_used(node.decorator_list, tables)]
            for pattern in dict.fromkeys(_marks(marked)):
                yield Proof(pattern, node.name, where)


def _tables(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """The constants of a module, by name."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case _:
                pass


def _used(nodes: Iterable[ast.AST], tables: dict[str, ast.expr]) -> Iterator[ast.expr]:
    """The constants that are named in decorators, and those that are named in these."""
    for node in nodes:
        for name in (one.id for one in ast.walk(node) if isinstance(one, ast.Name)):
            if name in tables:
                yield tables[name]
                rest = {other: value for other, value in tables.items() if other != name}
                yield from _used([tables[name]], rest)


def _marks(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The patterns of all `pytest.mark.requirement(…)`, or `requirement(…)` for short."""
    for node in nodes:
        for call in ast.walk(node):
            match call:
                case ast.Call(
                    func=ast.Attribute(attr="requirement") | ast.Name(id="requirement"),
                    args=arguments,
                ):
                    yield from map(_pattern, arguments)
                case _:
                    pass


def _pattern(argument: ast.expr) -> str:
    """An id as a pattern; what an f-string takes from elsewhere may be a word or a number."""
    match argument:
        case ast.Constant(value=str(text)):
            return re.escape(text)
        case ast.JoinedStr(values=parts):
            return "".join(map(_pattern, parts))
        case ast.FormattedValue():
            return r"\w+"
        case _:
            raise TypeError(f"a requirement is no string: {ast.unparse(argument)}")
