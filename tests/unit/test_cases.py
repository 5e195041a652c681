"""A test of many cases fails with each case that fails."""

from __future__ import annotations

import inspect

import pytest

from tests.fakes.cases import each


def test_every_case_is_run_and_those_that_fail_are_named() -> None:
    seen = []

    @each("number, word", [(1, "one"), (2, "zwei"), (3, "three")])
    @each("of", ["x"])
    def rule(number: int, word: str, of: str, tmp_path: object) -> None:
        seen.append((number, word, of, tmp_path))
        assert len(word) == len("one") or number == len("one")

    assert list(inspect.signature(rule).parameters) == ["tmp_path"], "what pytest has to bring"
    with pytest.raises(ExceptionGroup, match="1 of 3 cases") as failed:
        rule(tmp_path="here")
    assert seen == [(1, "one", "x", "here"), (2, "zwei", "x", "here"), (3, "three", "x", "here")]
    assert "'zwei'" in failed.value.exceptions[0].__notes__[0]
