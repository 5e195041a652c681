"""The gateway that cannot have traces, which one with traces is compared with."""

from __future__ import annotations

import ast
import dis
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Final

import gateway
from tests.load.untraced import untraced

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACED: Final = """
def begin(self, record):
    if self._tracing is not None:
        record.span = self._begin_span()
"""


def test_nothing_looks_for_the_span_of_its_task() -> None:
    texts = [path.read_text("utf-8") for path in Path(gateway.__file__).parent.rglob("*.py")]
    looking = [text for text in texts if "recorded()" in text and "trace_context import" in text]
    assert len(looking) > 4
    for text in looking:
        assert "recorded" in names(ast.parse(text))
        assert "recorded" not in names(untraced(text))


def test_a_tracer_that_is_not_there_is_not_looked_for() -> None:
    assert names(ast.parse(TRACED)) > {"_tracing", "_begin_span"}
    assert names(untraced(TRACED)) == set()


def names(tree: ast.Module) -> set[str]:
    """What the instructions of its functions name."""
    return {
        instruction.argval
        for code in codes(compile(tree, "", "exec"))
        for instruction in dis.get_instructions(code)
        if isinstance(instruction.argval, str)
    }


def codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from codes(constant)
