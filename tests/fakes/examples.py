"""How many examples hypothesis tries of a law that has a number of its own."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

SHARES: Final = {"short": 10, "untimed": 4, "long": 1}
"""Of each profile: `make test-fast`, the runs of every day and `make nightly`. Each run has other
examples, so that the days make up for what a run leaves out.
"""


def examples(number: int) -> int:
    """Return the profile's share of `number`: a number of its own overrules a profile's."""
    return max(2, number // SHARES[settings.get_current_profile_name()])
