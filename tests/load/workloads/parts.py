"""The sum of parts: what the gateway cannot do without, each on its own with nothing around it.

A bare client that reads the backend's bytes, parser and fold and frames in process, and a bare ASGI
server. What the gateway costs beyond their sum is what holds it together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from tests.load import loading, processes
from tests.load.processes import LOG_CHARS_SHOWN, ROOT, RunVoid
from tests.load.systems import System

if TYPE_CHECKING:
    from tests.load.figures import Figures
    from tests.load.loading import Load
    from tests.load.stack import Stack

READING: Final = "part: reading"
CORE: Final = "part: core"
SERVING: Final = "part: serving"
SUM: Final = "sum of parts"
PARTS: Final = (READING, CORE, SERVING)
_SERVER: Final = System(SERVING, "backend", "responses")


class Parts:
    """Measures them under one load; `tokens_per_event` is how many the gateway's events had."""

    def __init__(self, stack: Stack, load: Load) -> None:
        self.tokens_per_event = 1.0
        self._stack = stack
        self._load = load
        self._cpu_us: dict[str, float] = {}

    def measure(self, row: str) -> Figures:
        """One part; or their sum, each as it was last, so it has to be asked for as the last one.

        The figure is `cpu_us`, per token. Raises `RunVoid`.
        """
        if row == SUM:
            return {"cpu_us": sum(self._part(part) for part in PARTS)}
        self._cpu_us[row] = self._measure(row)
        return {"cpu_us": self._cpu_us[row]}

    def _part(self, part: str) -> float:
        """As it was measured last."""
        if part not in self._cpu_us:
            self._cpu_us[part] = self._measure(part)
        return self._cpu_us[part]

    def _measure(self, part: str) -> float:
        if part == SERVING:
            return self._serving()
        self._stack.marks.set_rate(self._load.rate_per_s)
        given = self._stack.backend.port if part == READING else self._per_event
        name = part.removeprefix("part: ")
        command = [sys.executable, "-m", f"tests.load.parts.{name}", self._described, str(given)]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                capture_output=True,
                timeout=self._load.seconds_max,
                start_new_session=True,
                check=True,
            )
        except subprocess.TimeoutExpired as error:
            raise RunVoid(f"{part} does not end") from error
        except subprocess.CalledProcessError as error:
            raise RunVoid(error.stderr.decode("utf-8", "replace")[-LOG_CHARS_SHOWN:]) from error
        cpu_s: float = json.loads(done.stdout)["cpu_s"]
        return cpu_s * loading.MICRO / (self._load.requests * self._load.tokens)

    def _serving(self) -> float:
        command = [sys.executable, "-m", "tests.load.parts.serving"]
        command += [self._described, str(self._per_event)]
        log = self._stack.folder / "serving.log"
        with processes.server(command, log, os.environ) as child:
            figures = loading.measure(self._stack, _SERVER, self._load, children=[child])
        return figures["cpu_us"]

    @property
    def _per_event(self) -> int:
        return max(round(self.tokens_per_event), 1)

    @property
    def _described(self) -> str:
        return json.dumps(asdict(self._load))
