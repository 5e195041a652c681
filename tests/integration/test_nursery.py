"""A process that a nursery has forked is one like any other."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.fakes import nursery

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not nursery.can_start("gateway"), reason="it needs Linux, and no tracing"),
]


def started(*arguments: str, **environment: str) -> tuple[nursery.Child, int]:
    """It, and where to read what it prints."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb"):
        given = {**os.environ, **environment}
        child = nursery.start("gateway", arguments, given, output=(writing, writing))
    return child, reading


def test_it_prints_and_ends_with_its_code(tmp_path: Path) -> None:
    child, reading = started("--version")
    with os.fdopen(reading) as printed:
        assert printed.read().startswith("harmony-gateway ")
    assert (child.wait(60), child.poll(), child.returncode) == (0, 0, 0)
    child, reading = started("serve", "--config", str(tmp_path / "none.yaml"))
    with os.fdopen(reading) as printed:
        assert "cannot read it" in printed.read()
    assert child.wait(60) == 1


def test_it_has_an_environment_of_its_own() -> None:
    child, reading = started("serve", DATABASE_URL="", GATEWAY_LIMITS__BODY_BYTES_MAX="none")
    with os.fdopen(reading) as printed:
        assert "GATEWAY_LIMITS__BODY_BYTES_MAX" in printed.read()
    assert child.wait(60) == 1


def test_it_can_be_stopped_waited_for_and_killed(tmp_path: Path) -> None:
    path = tmp_path / "never.yaml"
    os.mkfifo(path)  # nobody writes to it: who reads it waits
    child, reading = started("serve", "--config", str(path))
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.01)
    assert child.poll() is None
    child.send_signal(signal.SIGSTOP)
    child.kill()
    assert child.wait(60) == -signal.SIGKILL
    child.kill()  # of what is gone nothing is asked
    os.close(reading)
