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
    models: tuple[str, ...] = ("gpt-oss-20b", "gpt-oss-120b")
    """Served names; a request without a model gets the first."""
    engine: Engine = "vllm"
    version: str | None = None
    """Version that it claims to be; None: a recent one."""
    context_length: int = 131_072
    """Ids of prompt and output together."""
    body_bytes_max: int = 32 * 1024 * 1024

    @property
    def engine_version(self) -> str:
        return self.version or _RECENT[self.engine]

    @property
    def release(self) -> tuple[int, ...]:
        numbers = re.match(r"\d+(?:\.\d+)*", self.engine_version)
        return tuple(map(int, numbers[0].split("."))) if numbers else ()

    @property
    def has_ready(self) -> bool:
        return self.engine == "sglang" and self.release >= _READY_SINCE
