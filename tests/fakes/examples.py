"""How many examples hypothesis tries of a law that has a number of its own."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

SHORT: Final = "short"
"""The profile of `make test-fast`."""
SHORTER: Final = 10


def examples(number: int) -> int:
    """`number`, or a tenth of it in the short form: a number of its own overrules a profile's."""
    if settings.get_current_profile_name() == SHORT:
        return max(2, number // SHORTER)
    return number
