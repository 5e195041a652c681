"""Every scenario in its short form: the outcome is certain, whatever the seed does to the timing.

`python -m tests.chaos SCENARIO --form short --seed N` repeats one of them.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.chaos.__main__ import SCENARIOS

SEED: Final = 20_261_121


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_the_short_form_passes(scenario: str) -> None:
    report = await SCENARIOS[scenario]("short", SEED)
    assert report.passed, "\n".join(report.lines())
    assert report.numbers.get("events", 1) > 0
