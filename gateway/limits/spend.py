"""Spending in the current interval, by this process and by all.

Each process writes what it has spent itself, ever larger, into a row of its own: a total, so a
write whose outcome was lost is written again. Another interval is another row, so none is ever set
back. A meter that was forgotten and is made again goes on from its row: nothing is written before
that was read. What requests under way may cost is reported beside it, and ends with the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.limits.money import begins, ends

if TYPE_CHECKING:
    from datetime import datetime

    from gateway.limits.terms import Meter


@dataclass(frozen=True, slots=True)
class Spent:
    """The row of this process: its total of one interval."""

    starts_at: datetime
    total: int


class SpendMeter:
    """One meter, in nano-dollars or tokens. `reserved` is what requests of this process that are
    under way may spend.
    """

    __slots__ = (
        "_closed", "_is_written", "_others", "_others_reserved", "ends_at", "meter", "own",
        "reserved", "starts_at", "used_at",
    )  # fmt: skip

    def __init__(self, meter: Meter, now: datetime) -> None:
        self.meter = meter
        self.reserved = 0
        self.used_at = 0.0
        """When it was used last, by the clock of its owner."""
        self._closed: list[Spent] = []
        self._others: int | None = None
        self._is_written = True
        self._begin(now)

    @property
    def is_known(self) -> bool:
        # True once the database has reported the spending of all processes in this interval.
        return self._others is not None

    def spent(self, now: datetime) -> int:
        """Return the known spending of all processes in the interval of `now`."""
        self._turn(now)
        return self.own + (self._others or 0)

    def own_spent(self, now: datetime) -> int:
        """Return the spending of this process in the interval of `now`."""
        self._turn(now)
        return self.own

    def committed(self, now: datetime) -> int:
        # The spending so far and all reservations.
        return self.spent(now) + self.reserved + self._others_reserved

    def spend(self, amount: int, now: datetime) -> None:
        """Add spending, in nano-dollars or tokens."""
        self._turn(now)
        self.own += amount
        self._is_written = self._is_written and not amount

    def rows(self, now: datetime) -> list[Spent]:
        """Return what is to be written: of past intervals, and of this one.

        The current total is 0 until the meter is known: the row may have spending from before the
        meter was made.
        """
        self._turn(now)
        return [*self._closed, Spent(self.starts_at, self.own if self.is_known else 0)]

    def mark_written(
        self, rows: list[Spent], *, others: int, others_reserved: int, mine: int = 0
    ) -> None:
        """Record that `rows` are written.

        In the interval of the last row `others` is the spending of other processes. `mine` is what
        this process's row had before: a meter that was not known continues from there.
        """
        written = set(rows)
        self._closed = [one for one in self._closed if one not in written]
        if rows[-1].starts_at == self.starts_at:
            self._is_written = rows[-1].total == self.own
            if not self.is_known:
                self.own += mine
            self._others, self._others_reserved = others, others_reserved

    @property
    def is_written(self) -> bool:
        return self._is_written and not self._closed

    def _begin(self, now: datetime) -> None:
        interval = self.meter.interval
        self.starts_at, self.ends_at = begins(interval, now), ends(interval, now)
        self.own = 0
        self._others = None
        self._others_reserved = 0
        self._is_written = True

    def _turn(self, now: datetime) -> None:
        if self.ends_at is not None and now >= self.ends_at:
            if self.own:
                self._closed.append(Spent(self.starts_at, self.own))
            self._begin(now)
            self._others = 0  # nobody has spent anything of a new interval yet
