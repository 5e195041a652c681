"""Parts that all runs of a process share: the sources of tokens, threads, claims and tools."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from gateway.engine.calls import RunningCalls
from gateway.engine.failover import HopPolicy
from gateway.engine.output_guard import GuardLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gateway.engine.archive import Archive
    from gateway.engine.calls import AskApproval
    from gateway.engine.observer import Observer
    from gateway.engine.run_spec import RunSpec
    from gateway.generation import TokenRequest, TokenSink
    from gateway.models.format import FormatOf
    from gateway.store.claims import Claim
    from gateway.tools.tool_contract import HostedTools


class TokenSource(Protocol):
    """Source of tokens: the pool of backends.

    `generate` returns when the generation has ended, or the sink has enough. `avoid`
    names backends to use only if no other is left, `attempts_max` how many may be tried (None: as
    many as the pool tries for a new request). Raises `UpstreamError`: `UpstreamFailed` after the
    first chunk, any other before it; and what the sink raises.
    """

    async def generate(
        self,
        request: TokenRequest,
        sink: TokenSink,
        *,
        avoid: Collection[str] = (),
        attempts_max: int | None = None,
    ) -> None: ...


T = TypeVar("T")


class Executor(Protocol):
    """Threads for the work of runs that would hold up the event loop."""

    async def run_accepted(self, work: Callable[[], T]) -> T: ...


class Abandonable(Protocol):
    """A run, as the `ClaimKeeper` that renews its claim knows it."""

    @property
    def spec(self) -> RunSpec: ...

    def abandon(self) -> None: ...


class ClaimKeeper(Protocol):
    """The lease keeper: it renews the claims of runs, and abandons a run that lost its claim."""

    def hold(self, claim: Claim, run: Abandonable) -> None: ...

    def drop(self, claim: Claim) -> None: ...

    async def assured(self, claim: Claim) -> None: ...


@dataclass(frozen=True, slots=True)
class Engine:
    """Parts that all runs of a process share. `tools` is None where this process runs no tools; it
    may still go on with responses of a replica that runs them. `ask_approval` is None where no tool
    needs approval. `continues_preambles` tells whether a model goes on after a turn that is only a
    preamble (`OutputGuard`).
    """

    tokens: TokenSource
    archive: Archive
    lease_keeper: ClaimKeeper
    observer: Observer
    format_of: FormatOf
    threads: Executor
    alive_interval_s: float
    run_time_max_s: float
    tools: HostedTools | None = None
    ask_approval: AskApproval | None = None
    calls: RunningCalls = field(default_factory=RunningCalls)
    hops: HopPolicy = field(default_factory=HopPolicy)
    guard_limits: GuardLimits = field(default_factory=GuardLimits)
    continues_preambles: Callable[[str], bool] = lambda _model: True
