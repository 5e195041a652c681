"""The options of a simulated server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

Engine = Literal["vllm", "sglang"]
_RECENT: Final[dict[Engine, str]] = {"vllm": "0.32.0", "sglang": "0.5.23"}
_READY_SINCE: Final = (0, 5, 20)
"""The SGLang that has `/ready`."""


@dataclass(frozen=True, slots=True)
class SimulatorOptions:
    """All settings of one simulated server.

    `faults` is a plan in the words of `gateway.simulator.directives`, such as
    `"status=503 times=2"`; it applies to every request that names no fault itself.
    """

    name: str = "simulator"
    """This instance, as `only=NAME` in a directive calls it."""
    models: tuple[str, ...] = ("gpt-oss-20b", "gpt-oss-120b")
    """Served names; a request without a model gets the first."""
    engine: Engine = "vllm"
    """Engine whose wire protocol it speaks."""
    version: str | None = None
    """The version of that engine it claims to be, and can what that one can. None: a recent one."""
    context_length: int = 131_072
    """Ids of prompt and output together."""
    tokens_per_s: float | None = None
    """Pace of one stream; None: as fast as it can be written."""
    first_token_delay_s: float = 0.0
    """Seconds between the response's head and the first id."""
    faults: str = ""
    """The fault plan; see above."""
    stall_max_s: float = 3600.0
    """Seconds a stalled stream is held before it is cut."""
    body_bytes_max: int = 32 * 1024 * 1024
    """Bytes of one request's body."""

    @property
    def engine_version(self) -> str:
        return self.version or _RECENT[self.engine]

    @property
    def release(self) -> tuple[int, ...]:
        """Return the numbers of the version, for comparisons."""
        numbers = re.match(r"\d+(?:\.\d+)*", self.engine_version)
        return tuple(map(int, numbers[0].split("."))) if numbers else ()

    @property
    def has_ready(self) -> bool:
        return self.engine == "sglang" and self.release >= _READY_SINCE
