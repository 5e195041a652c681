"""The shortest way of a token: shown where it is heard, and folded later, together with others.

A stream at its usual pace brings one id at a time, and nearly each is more text of one open part
that one reader follows. Then all that is to be known of it is its text and its number: the reader
gets these at once, the id is kept, and what else follows from it (counts, items, entries of the
log) is made up for when somebody looks (`LiveLog.land`). That costs a tenth of what it takes to
bring it all up to date for each id, which is what a stream costs that is paced.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.output.fold import Flowing
    from gateway.protocol.showing import ShowDelta


class Flow:
    """Ids of one open part, shown and not yet folded.

    `hear` is a `gateway.generation.HearText`. `heard_at` is when the last id came.
    """

    __slots__ = ("_end", "_show", "_spell", "heard_at", "ids", "number")

    def __init__(self, flowing: Flowing, show: ShowDelta, *, ids_max: int, now: float) -> None:
        self.ids = array("I")
        self.number = flowing.number
        """Of the next delta."""
        self.heard_at = now
        self._end = flowing.number + ids_max
        self._spell = flowing.spell
        self._show = show

    def hear(self, token: int, now: float) -> bool:
        """Show one more id, if that is simple."""
        number = self.number
        if number == self._end:
            return False
        try:
            text = self._spell(token).decode()
            # What cannot be shown now is said again, as any event, and fails as that.
            if not text or not self._show(number, text):
                return False
        except Exception:  # noqa: BLE001
            return False
        self.ids.append(token)
        self.number = number + 1
        self.heard_at = now
        return True

    def close(self) -> None:
        """Hear no more."""
        self._end = self.number
