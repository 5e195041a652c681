"""The way of entries into the log, in a simulated world where everything goes wrong.

`python -m tests.chaos.simulation --steps 1000000 --seed N` is the long form.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.chaos.log_audit import Anomaly
from tests.chaos.simulation import simulate

STEPS: Final = 20_000
SEEDS: Final = range(20_261_121, 20_261_126)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_misfortune_breaks_a_promise(seed: int) -> None:
    counts = simulate(seed, STEPS)
    happened = {what for what, count in counts.items() if count}
    assert happened >= {
        *("begun", "taken over", "released", "completed", "cancelled", "failed"),
        *("answers lost", "carried out late", "crashes", "drained", "freezes", "outages"),
        *("parcel committed", "parcel absent", "parcel fenced", "entries read"),
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_without_the_fence_the_audit_finds_it(seed: int) -> None:
    with pytest.raises(Anomaly, match=rf"--steps {STEPS} --seed {seed} --unfenced"):
        simulate(seed, STEPS, fenced=False)


@pytest.mark.slow
def test_the_same_seed_is_the_same_story() -> None:
    assert simulate(1, 5_000) == simulate(1, 5_000)
