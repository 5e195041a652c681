"""A test run that is killed leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.fakes import janitor

ROOT: Final = Path(__file__).parents[2]
_PROGRAM: Final = """\
import sys
from tests.fakes import janitor
from tests.fakes.postgres import embedded, reachable_folder
keeper = janitor.start()
with reachable_folder() as folder, embedded(folder / "data") as server:
    print("serving", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the janitor needs /proc")
def test_a_killed_run_leaves_no_process_behind() -> None:
    environment = {name: value for name, value in os.environ.items() if name != janitor.VARIABLE}
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        descendants = janitor.Descendants(run.pid)
        assert run.stdout is not None
        assert run.stdout.readline() == "serving\n"
        # Noted while their parent lives, as the janitor does at every look.
        assert len(descendants.update()) > 1, "PostgreSQL and the janitor"
        run.send_signal(signal.SIGKILL)
    descendants.end()
    assert not descendants.update()
    janitor.remove_folders(run.pid)
