"""A release before this one, whose checkout is in TEST_BEFORE, this one, and a backend for both."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.fakes.processes import output_of_children, reserved_port, simulator_process
from tests.upgrade.releases import Release

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from tests.fakes.processes import SimulatorProcess

VARIABLE: Final = "TEST_BEFORE"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what the processes printed."""
    report = yield
    if report.failed:
        report.sections += output_of_children()
    return report


@pytest.fixture(scope="session")
def before() -> Release:
    """Skips where there is none."""
    if not (folder := os.environ.get(VARIABLE)):
        pytest.skip(f"needs a checkout of the release before: set {VARIABLE}")
    return Release(Path(folder).resolve())


@pytest.fixture(scope="session")
def this(pytestconfig: pytest.Config) -> Release:
    """The release of this tree."""
    return Release(pytestconfig.rootpath)


@pytest.fixture(scope="session")
def simulator() -> Iterator[SimulatorProcess]:
    """The backend of all replicas."""
    with reserved_port() as port, simulator_process(port) as running:
        running.until_healthy()
        yield running
