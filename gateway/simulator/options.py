"""The options of a simulated server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

Engine = Literal["vllm", "sglang"]
_RECENT: Final[dict[Engine, str]] = {"vllm": "0.32.0", "sglang": "0.5.23"}


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
    adapters: tuple[str, ...] = ()
    """LoRA adapters of the first model."""
    frontend: Literal["python", "rust"] = "python"
    """SGLang's. The one in Rust knows no `return_token_ids`."""
    priorities: bool = True
    """SGLang's --enable-priority-scheduling."""
    version: str | None = None
    """The version of that engine it claims to be, and can what that one can. None: a recent one."""
    api_key: str | None = None
    """Guards `/v1/…`, as vLLM's --api-key does. None: open."""
    context_length: int = 131_072
    """Ids of prompt and output together."""

    tokens_per_s: float | None = None
    """Pace of one stream; None: as fast as it can be written."""
    first_token_delay_s: float = 0.0
    """Seconds between the response's head and the first id."""
    ids_per_event: int = 1
    """Ids in one server-sent event, as with vLLM's --stream-interval."""
    write_events_max: int = 64
    """Events joined into one write when the stream is behind its pace or has none."""

    running_max: int = 256
    """Requests generated at once; more wait, in order."""
    queued_max: int = 1024
    """Requests that may wait; one more is answered 503."""
    overload_as_event: bool = False
    """Answer such a one 200 and an error as the first event, as vLLM does to requests that race."""

    faults: str = ""
    """The fault plan; see above."""
    fault_prompts_max: int = 10_000
    """Prompts whose attempts are counted for `times=`; the oldest are forgotten."""
    stall_max_s: float = 3600.0
    """Seconds a stalled stream is held before it is cut."""

    cache_blocks_max: int = 65_536
    """Blocks of 16 ids that the prefix cache remembers."""
    report_cached_tokens: bool = True
    """Put cached tokens into the usage, as --enable-prompt-tokens-details does."""

    observed_requests_max: int = 1000
    """Requests that `GET /simulator/requests` remembers."""
    observed_ids_max: int = 1_000_000
    """Ids those requests may hold together, prompts and outputs; older ones are forgotten."""
    body_bytes_max: int = 32 * 1024 * 1024
    """Bytes of one request's body."""

    @property
    def engine_version(self) -> str:
        return self.version or _RECENT[self.engine]

    @property
    def is_rust(self) -> bool:
        # An SGLang with its Rust frontend.
        return self.engine == "sglang" and self.frontend == "rust"

    @property
    def release(self) -> tuple[int, ...]:
        """Return the numbers of the version, for comparisons."""
        numbers = re.match(r"\d+(?:\.\d+)*", self.engine_version)
        return tuple(map(int, numbers[0].split("."))) if numbers else ()
