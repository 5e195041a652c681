"""What is left of a result that is too long."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.result_text import truncated
from tests.fakes.harmony_script import harmony

if TYPE_CHECKING:
    from collections.abc import Callable

ADVICE = "Ask for less."
NOTE = re.compile(r"\n\[(\d+) characters are left out here\. Ask for less\.\]\n")


def in_bytes(text: str) -> int:
    """As many ids as a text can be."""
    return len(text.encode())


def in_words(text: str) -> int:
    """Few ids, and not as many for a text as for its parts."""
    return len(text.split())


COUNTS = [in_bytes, in_words, len, harmony().count_ids]
TEXTS = st.lists(
    st.text(st.characters(codec="utf-8"), max_size=60) | st.sampled_from(["word " * 30, "𐍈" * 40]),
    max_size=40,
).map("\n".join)


@pytest.mark.slow
@given(TEXTS, st.integers(0, 400), st.sampled_from(COUNTS))
def test_it_is_never_longer_than_it_may_be(
    text: str, ids_max: int, count_ids: Callable[[str], int]
) -> None:
    shown = truncated(text, ids_max, count_ids, ADVICE)
    assert count_ids(shown) <= ids_max
    if count_ids(text) <= ids_max:
        assert shown == text
        return
    found = NOTE.search(shown)
    if found is None:
        assert text.startswith(shown), "there was no room for a note"
        return
    head, tail = shown[: found.start()], shown[found.end() :]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert int(found[1]) == len(text) - len(head) - len(tail) > 0


def test_most_of_what_there_is_room_for_is_used_and_more_of_the_beginning() -> None:
    lines = [f"line {number} of a table with some words" for number in range(5000)]
    count_ids = harmony().count_ids
    shown = truncated("\n".join(lines), 1024, count_ids, ADVICE)
    assert 800 <= count_ids(shown) <= 1024
    head, _, tail = NOTE.split(shown)
    assert head.split("\n") == lines[: head.count("\n") + 1], "it is cut between lines"
    assert tail.split("\n") == lines[-tail.count("\n") - 1 :]
    assert 1.2 < len(head) / len(tail) < 2


def test_a_single_line_is_cut_all_the_same() -> None:
    shown = truncated("word" * 5000, 200, in_bytes, ADVICE)
    assert shown.startswith("word")
    assert shown.endswith("word")
    assert 150 < in_bytes(shown) <= 200


@pytest.mark.parametrize("size", [1 << 20, 8 << 20])
def test_of_megabytes_only_the_ends_are_counted(size: int) -> None:
    counted = 0

    def count_ids(text: str) -> int:
        nonlocal counted
        counted += len(text)
        return len(text) // 3

    truncated("x" * size, 1000, count_ids, ADVICE)
    assert counted < 200_000
