"""The outbox: every entry goes into the log once, in order, whatever becomes of the answers."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.entries import Alive, Tokens, unpack
from gateway.eventlog.log_writer import BatchOutcome, Outbox
from gateway.store.claims import Claim, LogHead
from gateway.store.events import day_of
from gateway.tenancy import TenantId
from tests.fakes.cases import each
from tests.fakes.claim_table import ClaimTable
from tests.fakes.stored import CREATED, durable_response

TENANT = TenantId(UUID(int=1))
CLAIM = Claim(TENANT, UUID(int=2), 3)
DAY = day_of(CREATED)


def outbox(*ids: int, next_entry: int = 5) -> Outbox:
    box = Outbox(CLAIM, DAY, next_entry)
    for one in ids:
        box.put(Tokens((one,)))
    return box


def head(next_entry: int, *, epoch: int = 3, status: str = "in_progress") -> LogHead:
    return LogHead(epoch, next_entry, status)


def test_a_parcel_is_all_that_waits() -> None:
    box = outbox(7, 8)
    parcel = box.take()
    assert (parcel.claim, parcel.day, parcel.first_entry, parcel.count) == (CLAIM, DAY, 5, 2)
    assert unpack(parcel.entries) == [Tokens((7,)), Tokens((8,))]
    assert not box.has_waiting


def test_what_comes_meanwhile_is_the_next_parcel() -> None:
    box = outbox(7)
    box.take()
    box.put(Alive())
    assert (box.next_entry, box.end) == (5, 7)
    box.committed()
    assert box.next_entry == 6
    parcel = box.take()
    assert (parcel.first_entry, unpack(parcel.entries)) == (6, [Alive()])


def test_bytes_are_pending_until_they_are_committed() -> None:
    box = Outbox(CLAIM, DAY, 0)
    added = box.put(Tokens((1, 2))) + box.put(Alive())
    assert box.pending_bytes == added
    box.take()
    later = box.put(Alive())
    assert box.pending_bytes == added + later
    assert box.committed() == added
    assert box.pending_bytes == later


def test_an_entry_without_a_packed_form_leaves_no_trace() -> None:
    box = Outbox(CLAIM, DAY, 0)
    with pytest.raises(ValueError, match="packed"):
        box.put(Tokens((-1,)))
    assert (box.end, box.pending_bytes, box.has_waiting) == (0, 0, False)


@each(
    ("seen", "outcome"),
    [
        (head(7), BatchOutcome.COMMITTED),
        (head(5), BatchOutcome.ABSENT),
        (head(6), BatchOutcome.FENCED),
        (head(8), BatchOutcome.FENCED),
        (head(7, epoch=4), BatchOutcome.FENCED),
        (head(5, epoch=4), BatchOutcome.FENCED),
        (head(7, status="cancelled"), BatchOutcome.FENCED),
        (None, BatchOutcome.FENCED),
    ],
)
def test_the_head_tells_what_became_of_a_parcel_in_doubt(
    seen: LogHead | None, outcome: BatchOutcome
) -> None:
    box = outbox(7, 8)
    box.take()
    assert box.learn(seen) is outcome


def test_a_refused_parcel_that_is_in_was_committed_by_an_earlier_attempt() -> None:
    box = outbox(7)
    box.take()
    assert box.learn(head(5)) is BatchOutcome.ABSENT
    box.refused()
    assert box.learn(head(6)) is BatchOutcome.COMMITTED


def test_a_refused_parcel_that_is_not_in_never_will_be() -> None:
    box = outbox(7)
    box.take()
    box.refused()
    assert box.learn(head(5)) is BatchOutcome.FENCED


def test_a_refusal_says_nothing_of_the_next_parcel() -> None:
    box = outbox(7)
    box.take()
    box.refused()
    assert box.learn(head(6)) is BatchOutcome.COMMITTED
    box.committed()
    box.put(Alive())
    box.take()
    assert box.learn(head(6)) is BatchOutcome.ABSENT


def test_what_is_sent_again_is_what_was_sent() -> None:
    box = outbox(7)
    parcel = box.take()
    box.put(Alive())
    box.learn(head(5))
    assert box.batch is parcel


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["kept", "lost", "unsent", "late"]))))
def test_the_log_is_what_was_put_whatever_is_lost(flushes: list[tuple[int, str]]) -> None:
    table = ClaimTable(lambda: 0.0)
    new = durable_response(owner="a")
    table.insert(TENANT, new)
    box = Outbox(Claim(TENANT, new.uuid, 1), DAY, 1)
    said = 0
    for number, what in flushes:
        for _ in range(number):
            box.put(Tokens((said,)))
            said += 1
        parcel = box.take()
        if what in {"kept", "lost"}:
            table.append([parcel])
        if (
            what != "kept"
            and box.learn(table.heads([(TENANT, new.uuid)])[new.uuid]) is BatchOutcome.ABSENT
        ):
            # What was given up may be carried out before it is sent again.
            late = what == "late" and table.append([parcel])
            if not table.append([parcel]):
                assert late
                box.refused()
                assert (
                    box.learn(table.heads([(TENANT, new.uuid)])[new.uuid]) is BatchOutcome.COMMITTED
                )
        box.committed()
    log = [entry for row in table.rows[new.uuid].log for entry in unpack(row.entries)]
    assert log[1:] == [Tokens((number,)) for number in range(said)]
    assert box.next_entry == said + 1
