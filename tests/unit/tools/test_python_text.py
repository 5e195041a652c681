"""What models and clients are shown of code: pure functions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.python.container_engine import ContainerCapabilities, RunResult
from gateway.tools.python.container_pool import Execution, Image
from gateway.tools.python.monty import MISSING
from gateway.tools.python.python_tool import (
    RESTARTED,
    SILENT,
    code_of,
    described_run,
    description,
    plain,
    shortened,
)
from tests.fakes.cases import each


@each(
    ("printed", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x07", "link"),
        ("\x1b]0;never closed\nnext", "\nnext"),
        ("10%\r50%\r100%\n", "100%\n"),
        ("windows\r\nlines\r\n", "windows\nlines\n"),
        ("a\x00b\x08c\x7fd\x85e", "abcde"),
        ("left\u202eright\u2066x\u200f", "leftrightx"),
        ("tabs\tand\nlines", "tabs\tand\nlines"),
        ("日本語 ünïcode 👍", "日本語 ünïcode 👍"),
    ],
)
def test_terminals_are_left_out(printed: str, shown: str) -> None:
    assert plain(printed) == shown


@pytest.mark.slow
@given(st.text(st.sampled_from("\x1b[]0;m\x07\\\r\n\u202eab")))
def test_what_is_plain_stays_so(printed: str) -> None:
    once = plain(printed)
    assert not set("\x1b\x07\r\u202e") & set(once)
    assert plain(once) == once


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["x", "\x1b]", "\x1b[", "\r", "\x1b", "\x1b]\n", "a\r"])
def test_a_mebibyte_of_anything_is_made_plain(piece: str) -> None:
    """By an expression that looks back this would take hours."""
    assert len(plain(piece * (1 << 20))) <= len(piece) << 20


@pytest.mark.slow
@given(st.text())
def test_code_is_raw_or_wrapped(code: str) -> None:
    assert code_of(json.dumps({"code": code, "more": 1})) == code
    if not code.lstrip().startswith("{"):
        assert code_of(code) == code


@pytest.mark.parametrize("code", ["{'a': 1}", "{1, 2}", '{"code": 1}', '{"other": ""}', "{"])
def test_code_that_only_looks_wrapped_is_raw(code: str) -> None:
    assert code_of(code) == code


@given(st.text(st.sampled_from("ab\n"), max_size=300), st.integers(20, 100))
def test_long_texts_lose_their_middle(text: str, bound: int) -> None:
    short = shortened(text, bound)
    if len(text) <= bound:
        assert short == text
    else:
        head, left_out, tail = short.partition("\n[… ")
        assert left_out
        count, _, tail = tail.partition(" characters left out …]\n")
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head) + int(count) + len(tail) == len(text)
        assert len(head) + len(tail) <= bound


def test_the_model_is_told_what_differs_from_its_training() -> None:
    usual = ContainerCapabilities("CPython 3.12", ("numpy", "pandas", "matplotlib"))
    assert description(usual, [], timeout_s=60) is None
    with_files = description(usual, ["a.csv", "b\u202e.csv"], timeout_s=60)
    assert with_files is not None
    assert "a.csv, b.csv" in with_files
    assert "numpy, pandas, matplotlib" in with_files
    bare = description(ContainerCapabilities("CPython 3.12"), [], timeout_s=9.5)
    assert bare is not None
    assert "9.5 seconds" in bare
    assert "standard library: none" in bare
    partial = description(
        ContainerCapabilities("Monty", is_whole=False, missing=MISSING), [], timeout_s=60
    )
    assert partial is not None
    assert "part of Python" in partial


def test_the_model_is_told_what_happened() -> None:
    image = Image("/mnt/data/.display/1.png", "image/png", b"")
    ran = RunResult(status="ok", dropped=7)
    execution = Execution(ran, is_restarted=True, images=(image,), notes=("x is not kept: full",))
    lines = described_run(execution, "printed\n\n", timeout_s=60).split("\n")
    assert lines[0] == RESTARTED
    assert lines[1] == "printed"
    assert "7 more bytes" in lines[2]
    assert "1.png" in lines[3]
    assert lines[4] == "(x is not kept: full)"
    assert described_run(Execution(RunResult(status="ok")), " \n", timeout_s=60) == SILENT
    assert described_run(Execution(RunResult(status="error")), "", timeout_s=60) == SILENT
    late = described_run(Execution(RunResult(status="interrupted")), "a", timeout_s=60)
    assert late.startswith("a\n(The code was interrupted after 60 seconds")
    assert "are gone" in described_run(Execution(RunResult(status="killed")), "", timeout_s=60)
