from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes.simulator import RunningSimulator, simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def shared_simulator() -> Iterator[RunningSimulator]:
    """One with default options but for a name and a short stall."""
    with simulator(WaywardOptions(name="one")) as running:
        yield running


@pytest.fixture
def backend(shared_simulator: RunningSimulator) -> RunningSimulator:
    """The same, with nothing remembered of other tests."""
    shared_simulator.reset()
    return shared_simulator
