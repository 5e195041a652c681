"""What all runs of a process share: where tokens, threads, claims and tools come from."""

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
    from gateway.tools.contract import HostedTools


class TokenSource(Protocol):
    """Where tokens come from: the pool of backends.

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
    """Where the work of runs is done that would hold up the event loop: threads."""

    async def run_accepted(self, work: Callable[[], T]) -> T: ...


class Abandonable(Protocol):
    """A run, as far as whoever renews its claim knows it."""

    @property
    def spec(self) -> RunSpec: ...

    def abandon(self) -> None: ...


class ClaimKeeper(Protocol):
    """Who renews the claims of runs, and tells a run when its claim is lost: the lease keeper."""

    def hold(self, claim: Claim, run: Abandonable) -> None: ...

    def drop(self, claim: Claim) -> None: ...

    async def assured(self, claim: Claim) -> None: ...


@dataclass(frozen=True, slots=True)
class Engine:
    """What all runs of a process share. `tools`: None where the gateway runs none, but may go on
    where another replica did. `ask_approval`: None where no tool needs one. `continues_preambles`
    tells whether a model goes on where it stopped at a preamble (`OutputGuard`).
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
