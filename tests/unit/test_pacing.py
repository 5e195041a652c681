"""Work beside the event loop is the work as it is, whether or not it gives way."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from gateway import pacing
from gateway.pacing import beside_the_loop, give_way, in_pieces, paced


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each nap was to be."""
    taken: list[float] = []
    monkeypatch.setattr(pacing, "sleep", taken.append)
    return taken


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock says, one look after the other; at last it stands still."""
    looks: list[float] = []
    monkeypatch.setattr(pacing, "monotonic", lambda: looks.pop(0) if len(looks) > 1 else looks[0])
    return looks


def test_the_event_loop_itself_never_naps(naps: list[float]) -> None:
    assert list(paced(range(1000))) == list(range(1000))
    assert naps == []


def test_long_work_naps_once_a_piece(naps: list[float], clock: list[float]) -> None:
    piece = pacing.PIECE_S
    # It begins, goes on for less than a piece, then for more; the nap is short.
    clock[:] = [0.0, piece / 2, piece * 2, piece * 2, piece * 2, piece * 2, piece * 2.5]
    with beside_the_loop():
        give_way()
        assert naps == []
        give_way()
        assert naps == [pacing.NAP_S]
        give_way()
    assert naps == [pacing.NAP_S]


def test_it_naps_on_while_somebody_else_is_busy(naps: list[float], clock: list[float]) -> None:
    busy = 2 * (pacing.NAP_S + pacing.BUSY_S)
    clock[:] = [0.0, 1.0, 1.0, 1.0 + busy, 2.0, 2.0 + busy, 3.0, 3.0]
    with beside_the_loop():
        give_way()
    assert len(naps) == 3


def test_also_beside_a_loop_that_is_never_idle_it_goes_on(
    naps: list[float], clock: list[float]
) -> None:
    clock[:] = [float(second) for second in range(100)]
    with beside_the_loop():
        give_way()
    assert len(naps) == pacing.NAPS_MAX


def test_other_threads_are_not_held_back(naps: list[float], clock: list[float]) -> None:
    clock[:] = [0.0, 1.0]
    done = Event()

    def other() -> None:
        give_way()
        done.set()

    with beside_the_loop():
        thread = Thread(target=other)
        thread.start()
        thread.join()
    give_way()
    assert done.is_set()
    assert naps == []


@pytest.mark.parametrize("count", [0, 1, 49, 50, 51, 100, 101])
def test_pieces_are_the_list(count: int) -> None:
    items = list(range(count))
    pieces = list(in_pieces(items))
    assert [item for piece in pieces for item in piece] == items
    assert all(len(piece) <= pacing.ITEMS_AT_ONCE for piece in pieces)
