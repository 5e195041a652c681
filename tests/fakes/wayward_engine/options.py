"""The options of the simulated server of tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from typing_extensions import override

from gateway.simulator.completion_wire import SimulatorOptions
from tests.fakes.wayward_engine.corpus import PATH

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class WaywardOptions(SimulatorOptions):
    """All settings of one simulated server of tests.

    `faults` is a plan in the words of `directives`, such as `"status=503 times=2"`; it applies to
    every request that names no fault itself.
    """

    name: str = "simulator"
    """This instance, as `only=NAME` in a directive calls it."""
    tokens_per_s: float | None = None
    """Pace of one stream; None: as fast as it can be written."""
    first_token_delay_s: float = 0.0
    """Seconds between the response's head and the first id."""
    faults: str = ""
    """The fault plan; see above."""
    stall_max_s: float = 3600.0
    """Seconds a stalled stream is held before it is cut."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters of the first model."""
    frontend: Literal["python", "rust"] = "python"
    """SGLang's. The one in Rust knows no `return_token_ids`."""
    priorities: bool = True
    """SGLang's --enable-priority-scheduling."""
    api_key: str | None = None
    """Guards `/v1/…`, as vLLM's --api-key does. None: open."""
    running_max: int = 256
    """Requests generated at once; more wait, in order."""
    queued_max: int = 1024
    """Requests that may wait; one more is answered 503."""
    overload_as_event: bool = False
    """Answer such a one 200 and an error as the first event, as vLLM does to requests that race."""
    cache_blocks_max: int = 65_536
    """Blocks of 16 ids that the prefix cache remembers."""
    report_cached_tokens: bool = True
    """Put cached tokens into the usage, as --enable-prompt-tokens-details does."""
    observed_requests_max: int = 1000
    """Requests that `GET /simulator/requests` remembers."""
    observed_ids_max: int = 1_000_000
    """Ids those requests may hold together, prompts and outputs; older ones are forgotten."""
    corpus_path: Path = PATH
    """The recorded misbehaviour that the model replays."""

    @property
    def is_rust(self) -> bool:
        # An SGLang with its Rust frontend.
        return self.engine == "sglang" and self.frontend == "rust"

    @property
    @override
    def has_ready(self) -> bool:
        return super().has_ready and not self.is_rust
