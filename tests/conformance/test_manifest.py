"""The manifest and the tests name the same requirements."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from tests.conformance.requirements import REQUIREMENTS

TESTS = Path(__file__).parent.parent


def _marked(source: str) -> list[str]:
    """The arguments of every `pytest.mark.requirement(...)`, whatever is collected in this run."""
    return [
        argument.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "requirement"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


def test_every_requirement_is_proven_and_every_proof_is_of_a_requirement() -> None:
    proven = {
        requirement
        for path in TESTS.rglob("test_*.py")
        for requirement in _marked(path.read_text("utf-8"))
    }
    assert proven == {requirement.id for requirement in REQUIREMENTS}


def test_no_id_stands_for_two_requirements() -> None:
    counts = Counter(requirement.id for requirement in REQUIREMENTS)
    assert set(counts.values()) == {1}


def test_every_requirement_says_where_it_comes_from_and_what_it_is() -> None:
    for requirement in REQUIREMENTS:
        assert requirement.source.startswith("responses-api "), requirement
        assert requirement.sentence.endswith("."), requirement
