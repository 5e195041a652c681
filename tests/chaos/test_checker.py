"""The checker accepts the truth, and finds each kind of lie."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import orjson
import pytest

from gateway.entries import Finished, Tokens, TurnStarted, pack
from tests.chaos.checker import RULES, check, summary, unchanged
from tests.chaos.history import Connection, Frame, StoredEntries, UsageLine
from tests.chaos.truthful import RESPONSE_ID, UUID_, entries, record, transcript

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.history import Record, Transcript


def found(told: Transcript, stored: Record | None) -> set[str]:
    """The rules that are broken."""
    records = {} if stored is None else {UUID_: stored}
    return set(summary(check([told], records)))


def altered(frame: Frame, **fields: object) -> Frame:
    return Frame(orjson.dumps({**orjson.loads(frame.data), **fields}), frame.at_s)


def test_the_truth_has_no_anomaly() -> None:
    assert check([transcript()], {UUID_: record()}) == []


def test_a_reader_who_left_early_is_no_anomaly() -> None:
    told = transcript()
    told.connections.pop()
    told.ended = False
    assert found(told, record()) == set()


def _lost(told: Transcript) -> None:
    del told.connections[0].frames[2]


def _doubled(told: Transcript) -> None:
    told.connections[1].frames.insert(0, told.connections[0].frames[-1])


def _reordered(told: Transcript) -> None:
    frames = told.connections[1].frames
    frames[0], frames[1] = frames[1], frames[0]


def _contradicted(told: Transcript) -> None:
    again = [*told.connections[0].frames]
    again[3] = altered(again[3], item_id="another")
    told.connections.append(Connection(1, -1, status=200, frames=again))


def _another_byte(told: Transcript) -> None:
    told.connections[0].frames[3] = altered(told.connections[0].frames[3], item_id="another")


def _goes_on_behind_its_end(told: Transcript) -> None:
    last = told.connections[1].frames[-1]
    number = orjson.loads(last.data)["sequence_number"]
    told.connections[1].frames.append(altered(last, sequence_number=number + 1))


def _done_without_an_end(told: Transcript) -> None:
    told.connections[1].frames.pop()


def _gap_between_connections(told: Transcript) -> None:
    told.connections[1].frames.pop(0)
    told.connections[1].after += 1


def _refused(told: Transcript) -> None:
    told.connections.append(Connection(0, 3, status=404, body=b"{}"))


def _another_end(told: Transcript) -> None:
    last = told.connections[1].frames[-1]
    response = orjson.loads(last.data)["response"]
    told.connections[1].frames[-1] = altered(last, response={**response, "status": "failed"})


def _another_answer(told: Transcript) -> None:
    for connection in told.connections:
        connection.frames = [
            Frame(frame.data.replace(b"river", b"rover"), frame.at_s) for frame in connection.frames
        ]


@pytest.mark.parametrize(
    ("lie", "rules"),
    [
        (_lost, {"numbered", "gapless"}),
        (_doubled, {"numbered"}),
        (_reordered, {"numbered"}),
        (_contradicted, {"agreed", "logged"}),
        (_another_byte, {"logged"}),
        (_goes_on_behind_its_end, {"terminal", "logged"}),
        (_done_without_an_end, {"terminal"}),
        (_gap_between_connections, {"gapless"}),
        (_refused, {"refused"}),
        (_another_end, {"status", "body"}),
        (_another_answer, {"logged", "answer", "body"}),
    ],
)
def test_a_lie_told_to_a_reader_is_found(
    lie: Callable[[Transcript], None], rules: set[str]
) -> None:
    told = transcript()
    lie(told)
    assert rules <= found(told, record())


def test_a_response_that_vanished_is_found() -> None:
    assert found(transcript(), None) == {"missing"}


def test_events_that_were_seen_and_are_not_in_the_log_are_found() -> None:
    shorter = record(entries()[:-3], status="in_progress", body=None, usage=())
    assert {"logged", "status"} <= found(transcript(), shorter)


def test_an_answer_that_is_stored_wrongly_is_found_without_any_reader_of_the_end() -> None:
    told = transcript()
    told.connections.pop()
    told.ended = False
    body = record().body or b""
    assert found(told, record(body=body.replace(b"river", b"rover"))) == {"answer"}


def _rows(stored: Record, *, at: int, **fields: object) -> tuple[StoredEntries, ...]:
    rows = list(stored.log)
    rows[at] = replace(rows[at], **fields)  # type: ignore[arg-type]
    return tuple(rows)


@pytest.mark.parametrize(
    ("lie", "rules"),
    [
        (lambda it: replace(it, log=it.log[1:]), {"entries", "folds"}),
        (lambda it: replace(it, log=it.log[:1] + it.log[2:]), {"entries", "logged", "booked"}),
        (lambda it: replace(it, log=it.log[:2] + it.log[1:]), {"entries"}),
        (lambda it: replace(it, next_entry=it.next_entry + 1), {"entries"}),
        (lambda it: replace(it, log=_rows(it, at=1, count=7)), {"entries"}),
        (lambda it: replace(it, log=_rows(it, at=1, epoch=3)), {"epochs"}),
        (lambda it: replace(it, epoch=1), {"epochs"}),
        (lambda it: replace(it, status="in_progress"), {"status"}),
        (lambda it: replace(it, status="failed"), {"status"}),
        (lambda it: replace(it, body=None), {"body"}),
        (lambda it: replace(it, usage=()), {"booked"}),
        (lambda it: replace(it, usage=it.usage * 2), {"booked"}),
        (lambda it: replace(it, usage=(UsageLine(1, it.usage[0].output_tokens, 0),)), {"usage"}),
        (lambda it: replace(it, usage=(UsageLine(it.usage[0].input_tokens, 1, 0),)), {"usage"}),
    ],
)
def test_a_lie_in_the_database_is_found(lie: Callable[[Record], Record], rules: set[str]) -> None:
    assert rules <= found(transcript(), lie(record()))


@pytest.mark.parametrize(
    "put_in",
    [
        pytest.param(Tokens((1000, 1001)), id="another owner's tokens"),
        pytest.param(TurnStarted(5), id="another owner's turn"),
        pytest.param(Finished("completed", 1), id="another owner's end"),
    ],
)
def test_what_a_fenced_off_owner_wrote_would_be_found(
    put_in: Tokens | TurnStarted | Finished,
) -> None:
    stored = record()
    rows = list(stored.log)
    zombie = StoredEntries(rows[3].first_entry, 1, 1, pack([put_in]))
    later = [replace(row, first_entry=row.first_entry + 1) for row in rows[3:]]
    log = (*rows[:3], zombie, *later)
    doubled = replace(stored, log=log, next_entry=stored.next_entry + 1)
    assert {"epochs"} < found(transcript(), doubled)


def test_a_log_with_two_ends_does_not_fold() -> None:
    log = [*entries(), Finished("completed", 1)]
    stored = record()
    extra = StoredEntries(stored.next_entry, 1, 2, pack(log[-1:]))
    twice = replace(stored, log=(*stored.log, extra), next_entry=stored.next_entry + 1)
    assert "folds" in found(transcript(), twice)


def test_an_end_that_changes_is_found() -> None:
    before = {UUID_: record()}
    assert unchanged(before, before) == []
    for after in ({}, {UUID_: record(status="cancelled")}, {UUID_: record(body=b"{}")}):
        (anomaly,) = unchanged(before, after)
        assert (anomaly.rule, anomaly.response) == ("changed", RESPONSE_ID)


def test_what_has_not_ended_may_change() -> None:
    before = {UUID_: record(status="in_progress", body=None)}
    assert unchanged(before, {UUID_: record()}) == []


def test_no_rule_is_left_without_a_lie() -> None:
    assert set(RULES) == {
        *("numbered", "agreed", "terminal", "gapless", "refused", "missing", "entries", "epochs"),
        *("folds", "logged", "status", "body", "answer", "usage", "booked"),
    }
