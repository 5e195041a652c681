"""What is shown before, beside and behind a compaction."""

from __future__ import annotations

from gateway.models.harmony.rendering import harmony_messages
from gateway.models.history import PlacedItem, since_compaction
from gateway.protocol.context_item import ContextItem
from gateway.protocol.items import Compaction
from tests.fakes.cases import each

ITEMS = {
    "u": ContextItem("message", "msg_u", b"{}", role="user"),
    "d": ContextItem("message", "msg_d", b"{}", role="developer"),
    "a": ContextItem("message", "msg_a", b"{}", role="assistant"),
    "r": ContextItem("reasoning", "rs", b"{}"),
    "c": ContextItem("function_call", "fc", b"{}", call_id="c", name="f"),
    "o": ContextItem("function_call_output", "fco", b"{}", call_id="c"),
    "C": ContextItem("compaction", "cmp", b"{}"),
}


@each(
    ("items", "shown"),
    [
        ("", []),
        ("uarcou", [0, 1, 2, 3, 4, 5]),
        ("uacoC", [0, 4]),
        ("uaudC", [0, 4, 2, 3]),
        ("udC", [0, 1, 2]),
        ("CuCua", [2, 1, 3, 4]),
        ("uaCuauC", [0, 3, 6, 5]),
        ("uCra", [0, 1, 2, 3]),
    ],
)
def test_a_question_stands_behind_the_summary(items: str, shown: list[int]) -> None:
    placed = [PlacedItem(index, ITEMS[letter]) for index, letter in enumerate(items)]
    assert [one.source for one in since_compaction(placed)] == shown


def test_a_compaction_that_nobody_opened_says_nothing() -> None:
    assert harmony_messages(Compaction(encrypted_content="seal")) == ()
