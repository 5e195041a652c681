"""Every scenario in its short form: the outcome is certain, whatever the seed does to the timing.

`python -m tests.chaos SCENARIO --form short --seed N` repeats one of them.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.chaos.__main__ import SCENARIOS

SEED: Final = 20_261_121
LONGEST: Final = frozenset({"tools", "unfenced_tools"})
"""They take as long as half of the others; `tests/e2e/test_hosted_takeover.py` kills less."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(name, marks=pytest.mark.nightly) if name in LONGEST else name
        for name in SCENARIOS
    ],
)
async def test_the_short_form_passes(scenario: str) -> None:
    report = await SCENARIOS[scenario]("short", SEED)
    assert report.passed, "\n".join(report.lines())
    assert report.numbers.get("events", 1) > 0
