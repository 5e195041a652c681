"""The memory of a connection, and the count of connections."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Leaving, RateLimited
from gateway.protocol.context_item import ContextItem
from gateway.services.runs.history_source import History
from gateway.services.sessions import ITEM_BYTES, Memory, Sessions
from gateway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Sequence


def parent(size_bytes: int = 0) -> History:
    """A response that takes `ITEM_BYTES` and so many more."""
    return History(None, [ContextItem("message", "msg_1", b"x" * size_bytes)], 0)


def remembered(*names: str, room: int, lane: str | None = None) -> Memory:
    """A memory with room for so many responses, told of these."""
    memory = Memory(room * ITEM_BYTES)
    for name in names:
        memory.remember(lane, name, parent())
    return memory


def test_the_least_recently_used_goes_first() -> None:
    memory = remembered("a", "b", room=2)
    assert memory.get("a") is not None
    memory.remember("other", "c", parent())
    # "b" is the latest of its lane, so what goes is "a", though it was used after it.
    assert list(memory) == ["b", "c"]
    memory = remembered("a", "b", "c", room=3)
    memory.get("a")
    memory.remember(None, "d", parent())
    assert list(memory) == ["c", "a", "d"]


def test_the_latest_of_a_lane_goes_last() -> None:
    memory = remembered("a", room=3, lane="quiet")
    for name in "bcde":
        memory.remember(None, name, parent())
    assert list(memory) == ["a", "d", "e"]


def test_the_bound_holds_for_the_latest_too() -> None:
    memory = Memory(2 * ITEM_BYTES)
    for lane in "xyz":
        memory.remember(lane, f"of-{lane}", parent())
    assert list(memory) == ["of-y", "of-z"]


def test_what_is_larger_than_all_of_it_is_not_kept_and_costs_the_others_nothing() -> None:
    memory = remembered("a", room=3, lane="mine")
    memory.remember("other", "b", parent())
    memory.remember("mine", "c", parent(3 * ITEM_BYTES))
    assert list(memory) == ["a", "b"]
    # The latest of its lane is still the one before it.
    for name in "def":
        memory.remember(None, name, parent())
    assert list(memory) == ["a", "b", "f"]


def test_a_lane_forgets_only_what_is_its_own() -> None:
    memory = remembered("a", room=2, lane="mine")
    memory.forget("other", "a")
    memory.forget("mine", None)
    memory.forget("mine", "unknown")
    assert len(memory) == 1
    memory.forget("mine", "a")
    assert (len(memory), memory.size_bytes) == (0, 0)
    with pytest.raises(KeyError):
        memory["a"]


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["remember", "forget", "use"]),
            st.sampled_from([None, "x", "y"]),
            st.integers(0, 12),
            st.integers(0, 3 * ITEM_BYTES),
        )
    )
)
def test_it_never_holds_more_than_it_may(steps: Sequence[tuple[str, str | None, int, int]]) -> None:
    memory = Memory(4 * ITEM_BYTES)
    for number, (what, lane, name, size_bytes) in enumerate(steps):
        match what:
            case "remember":
                memory.remember(lane, f"{number}", parent(size_bytes))
            case "forget":
                memory.forget(lane, f"{name}")
            case _:
                memory.get(f"{name}")
        held = sum(ITEM_BYTES + len(one.items[0].json) for one in memory.values())
        assert memory.size_bytes == held <= 4 * ITEM_BYTES


def test_there_are_so_many_connections_and_no_more() -> None:
    sessions = Sessions(connections_max=1, metrics=Metrics())
    with sessions.connected("a"), pytest.raises(RateLimited), sessions.connected("b"):
        pass
    with sessions.connected("a"):
        sessions.close()
    with pytest.raises(Leaving), sessions.connected("a"):
        pass


def test_one_tenant_leaves_connections_to_others() -> None:
    sessions = Sessions(connections_max=10, metrics=Metrics())
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(sessions.connected("a"))
        with pytest.raises(RateLimited), sessions.connected("a"):
            pass
        stack.enter_context(sessions.connected("b"))
    with sessions.connected("a"):
        pass


def test_all_memories_together_are_bounded_by_dropping_what_the_largest_tenant_has() -> None:
    most = 4 * ITEM_BYTES
    sessions = Sessions(connections_max=10, metrics=Metrics(), remembered_bytes_max=most)
    with (
        sessions.connected("a") as first,
        sessions.connected("a") as second,
        sessions.connected("b") as other,
    ):
        for memory, name in ((first, "1"), (first, "2"), (second, "3"), (other, "4")):
            memory.remember(None, name, parent())
        assert [list(first), list(second), list(other)] == [["1", "2"], ["3"], ["4"]]
        other.remember(None, "5", parent())
        assert [list(first), list(second), list(other)] == [["2"], ["3"], ["4", "5"]]
        # Pages that were shown count, too, and go when nothing else is left.
        first.tool_values.put("page", object(), size=3 * ITEM_BYTES)
        second.remember(None, "6", parent())
        assert first.held_bytes == 0
        assert [list(second), list(other)] == [["3", "6"], ["4", "5"]]
