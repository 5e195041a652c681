"""Where one stream of a response stands, in its events and in the rows of its log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gateway.log import Singles, portions
from gateway.protocol.deltas import Deltas
from gateway.store.events import day_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import date

    from gateway.log import Portion
    from gateway.output.fold import Fold
    from gateway.protocol.events import Event
    from gateway.protocol.responses.body import ResponseHead
    from gateway.protocol.showing import Show
    from gateway.store.events import LogRow
    from gateway.tenancy import TenantId

    NewFold = Callable[[ResponseHead], Callable[[], Fold]]


class Place:
    """Where one stream stands: in the events (`after`), and in the rows (`next_entry`, `fold`).

    `beginning` are the first rows, if they were read before, until they are folded. `is_over`:
    everything was shown; `is_ended`: the terminal event was among it; `is_gone`: the log does not
    have what its head promises, because it was removed.
    """

    __slots__ = (
        *("_fold", "_head", "_new_fold_for", "after", "beginning", "is_ended", "is_gone"),
        *("is_over", "next_entry", "show", "tenant_id", "uuid"),
    )

    def __init__(
        self,
        tenant_id: TenantId,
        head: ResponseHead,
        new_fold_for: NewFold,
        after: int = -1,
        show: Show | None = None,
    ) -> None:
        self.tenant_id = tenant_id
        self.uuid = head.uuid
        self._head = head
        self._new_fold_for = new_fold_for
        self._fold: Fold | None = None
        self.after = after
        self.show = show
        self.beginning: Sequence[LogRow] = ()
        self.next_entry = 0
        self.is_over = self.is_ended = self.is_gone = False

    @property
    def day(self) -> date:
        """The partition of its rows."""
        return day_of(datetime.fromtimestamp(self._head.created_at, UTC))

    @property
    def fold(self) -> Fold:
        """Of its rows: not made for what is only followed where it is generated."""
        if self._fold is None:
            self._fold = self._new_fold_for(self._head)()
        return self._fold

    def is_through(self) -> bool:
        """Its rows are folded up to their end."""
        return self.fold.is_finished

    def forget_rows(self) -> None:
        """Should they be needed again, they are read anew: few are, and a fold is large."""
        self.next_entry = 0
        self._fold = None

    def pass_by(self, events: Sequence[Event]) -> None:
        """The stream has these now."""
        if isinstance(events, Deltas):
            self.after = events.last_number
            return
        self.after = events[-1].sequence_number
        self.is_ended = events[-1].is_terminal

    def unread(self, rows: Iterable[LogRow]) -> Iterator[Portion]:
        """Their entries from `next_entry` on, as far as none is missing."""
        for row in rows:
            if row.first_entry > self.next_entry:
                return
            for portion in portions(row.entries, self.next_entry - row.first_entry):
                self.next_entry += len(portion) if isinstance(portion, Singles) else 1
                yield portion

    def wanted(self, events: Sequence[Event]) -> Sequence[Event]:
        """Those of some events, in order, that the stream has not had."""
        if isinstance(events, Deltas) and events.sequence_number > self.after:
            return events  # without making an event of any
        if not events or events[-1].sequence_number <= self.after:
            return []
        if events[0].sequence_number > self.after:
            return events
        return [event for event in events if event.sequence_number > self.after]
