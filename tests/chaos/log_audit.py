"""What must hold of every log and of everything that was shown of it, whatever happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.entries import Entry, Finished, Tokens, unpack
from gateway.store.schema import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from tests.fakes.claim_table import ClaimTable, Row


class Anomaly(AssertionError):
    """A promise was broken."""


def says(writer: int, epoch: int, number: int) -> Tokens:
    """An entry that tells who wrote it, under which epoch, and as which of the log."""
    return Tokens((writer, epoch, number))


@dataclass(slots=True)
class _Seen:
    """What is known of one response. `shown` is what any reader saw of its log."""

    entries: list[Entry] = field(default_factory=list)
    shown: list[Entry] = field(default_factory=list)
    writers: dict[int, int] = field(default_factory=dict)
    rows: int = 0
    epoch: int = 0
    status: str = "queued"


class Audit:
    """Looks at rows as they grow. Everything here raises `Anomaly`."""

    def __init__(self, table: ClaimTable, *, attempts_max: int) -> None:
        self._table = table
        self._attempts_max = attempts_max
        self._seen: dict[UUID, _Seen] = {}

    def check(self, uuid: UUID) -> None:
        """One response, after something may have happened to it."""
        row = self._table.rows.get(uuid)
        if row is None:
            return
        seen = self._seen.setdefault(uuid, _Seen())
        for index in range(seen.rows, len(row.log)):
            self._read_row(seen, row, index)
        seen.rows = len(row.log)
        _demand(row.next_entry == len(seen.entries), "the head is not where the log ends")
        _demand(row.epoch >= seen.epoch, "the epoch of a response decreased")
        _demand(row.attempts <= self._attempts_max, "a response was attempted too often")
        seen.epoch = row.epoch
        self._check_status(seen, row)

    def _read_row(self, seen: _Seen, row: Row, index: int) -> None:
        packed, epoch = row.log[index], row.epochs[index]
        _demand(packed.first_entry == len(seen.entries), "the log has a gap or an overlap")
        _demand(epoch >= seen.epoch or not index, "an old owner wrote to the log")
        seen.epoch = max(seen.epoch, epoch)
        entries = unpack(packed.entries)
        _demand(len(entries) == packed.count, "a row holds more or less than it says")
        for number, entry in enumerate(entries, len(seen.entries)):
            ended = bool(seen.entries) and isinstance(seen.entries[-1], Finished)
            _demand(not ended, "the log goes on after its end")
            if isinstance(entry, Tokens):
                writer, said_epoch, said_number = entry.ids
                _demand((said_epoch, said_number) == (epoch, number), "an entry is misplaced")
                _demand(
                    seen.writers.setdefault(epoch, writer) == writer, "an epoch has two writers"
                )
            seen.entries.append(entry)

    def _check_status(self, seen: _Seen, row: Row) -> None:
        if seen.status in TERMINAL:
            _demand(row.status == seen.status, "a status that was terminal changed")
        seen.status = row.status
        last = seen.entries[-1] if seen.entries else None
        is_written = isinstance(last, Finished)
        if row.new.durable:
            _demand(is_written == (row.status in TERMINAL), "log and status disagree on the end")
            if isinstance(last, Finished):
                _demand(last.status == row.status, "the log ended otherwise than the response")

    def showed(self, uuid: UUID, first_entry: int, entries: Sequence[Entry]) -> None:
        """A reader somewhere saw these."""
        self.check(uuid)
        seen = self._seen.get(uuid)
        if seen is None:
            return
        end = first_entry + len(entries)
        _demand(end <= len(seen.entries), "something was shown that is not durable")
        _demand(seen.entries[first_entry:end] == list(entries), "something else was shown")
        if end > len(seen.shown) >= first_entry:
            seen.shown += entries[len(seen.shown) - first_entry :]

    def forget(self, uuid: UUID) -> None:
        """A response that has ended; its log is read once more, as a whole."""
        self.check(uuid)
        seen, row = self._seen.pop(uuid), self._table.rows[uuid]
        final = [entry for packed in row.log for entry in unpack(packed.entries)]
        ends = sum(isinstance(entry, Finished) for entry in final)
        _demand(ends == int(row.new.durable), "there is not exactly one end")
        _demand(final[: len(seen.shown)] == seen.shown, "what was shown is not how the log begins")


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Anomaly(otherwise)
