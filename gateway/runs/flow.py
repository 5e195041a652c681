"""The shortest way of a token: shown where it is heard, and folded later, together with others.

A stream at its usual pace brings one id at a time, and nearly each is more text of one open part
that one reader follows. Then all that is to be known of it is its text and its number: the reader
gets these at once, the id is kept, and what else follows from it (counts, items, entries of the
log) is made up for when somebody looks (`LiveLog.land`). That costs a tenth of what it takes to
bring it all up to date for each id, which is what a stream costs that is paced.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.output.fold import Flowing
    from gateway.protocol.showing import DeltaText, ShowDelta


Put = Callable[[int], bool]
"""Hands an id on to be committed; False, and it was not, where there is no room for it."""


class Flow:
    """Ids of one open part, shown and not yet folded.

    `hear` is a `gateway.generation.HearText`. `heard_at` is when the last id came.
    """

    __slots__ = ("_end", "_number", "_show", "_spell", "first", "heard_at", "ids")

    def __init__(self, flowing: Flowing, show: ShowDelta, *, ids_max: int, now: float) -> None:
        self.ids = array("I")
        self.first = self._number = flowing.number
        """Of the deltas."""
        self.heard_at = now
        self._end = flowing.number + ids_max
        self._spell = flowing.spell
        self._show = show

    @property
    def shown(self) -> int:
        """How many of the ids were shown."""
        return len(self.ids)

    def hear(self, token: int, now: float) -> bool:
        """Show one more id, if that is simple."""
        number = self._number
        if number == self._end:
            return False
        try:
            text = self._spell(token)
            # What cannot be shown now is said again, as any event, and fails as that.
            if not text[0] or not self._show(number, text):
                return False
        except Exception:  # noqa: BLE001
            return False
        self.ids.append(token)
        self._number = number + 1
        self.heard_at = now
        return True

    def close(self) -> None:
        """Hear no more."""
        self._end = self._number


class HeldFlow:
    """Ids of one open part that are shown once they are committed, and not yet folded.

    Before them come `folded` entries of the log.
    """

    __slots__ = (
        *("_end", "_number", "_put", "_spell", "_texts"),
        *("first", "folded", "ids", "pattern", "show", "shown"),
    )

    def __init__(self, flowing: Flowing, put: Put, *, ids_max: int, folded: int) -> None:
        self.folded = folded
        self._texts: list[DeltaText] = []
        """Of those that are not shown."""
        self.ids = array("I")
        self.first = self._number = flowing.number
        """Of the deltas."""
        self.pattern = flowing.pattern
        self.show: ShowDelta | None = None
        """Once there is somebody who is shown them."""
        self.shown = 0
        """How many of the ids were shown."""
        self._end = flowing.number + ids_max
        self._spell = flowing.spell
        self._put = put

    def hear(self, token: int, _now: float) -> bool:
        """Hand one more id on, if that is simple."""
        number = self._number
        if number == self._end:
            return False
        text = self._spell(token)
        if not text[0] or not self._put(token):
            return False
        self._texts.append(text)
        self.ids.append(token)
        self._number = number + 1
        return True

    def show_to(self, count: int, show: ShowDelta) -> bool:
        """Show the first so many; False if some of them cannot be shown now."""
        self.show = show
        number = self.first + self.shown
        try:
            for text in self._taken(count):
                if not show(number, text):
                    return False
                number += 1
                self.shown += 1
        except Exception:  # noqa: BLE001 - it fails again as an event
            return False
        return True

    def pass_over(self, count: int) -> None:
        """Nobody is shown the first so many."""
        self._taken(count)
        self.shown = count

    def _taken(self, count: int) -> list[DeltaText]:
        """The texts of those that are shown now. Nearly always it is all there are."""
        new = count - self.shown
        taken = self._texts[:new]
        del self._texts[:new]
        return taken

    def close(self) -> None:
        """Hear no more."""
        self._end = self._number
