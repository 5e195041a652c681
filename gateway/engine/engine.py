from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from gateway.concurrency import start_task
from gateway.engine.failover import HopPolicy
from gateway.engine.output_guard import GuardLimits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine

    from gateway.engine.archive import Archive
    from gateway.engine.observer import Observer
    from gateway.engine.run_spec import RunSpec
    from gateway.generation import TokenRequest, TokenSink
    from gateway.models.format import FormatOf
    from gateway.store.claims import Claim
    from gateway.tenancy import TenantId
    from gateway.tools.tool_contract import HostedTools

    AskApproval = Callable[[TenantId, str, bytes], Awaitable[None]]
    """Records a request to the user (tenant, request id, digest of the call) before the response
    ends; safe to repeat. Raises `StoreUnavailable`."""

CLOSE_WAIT_S: Final = 30.0
"""For a cancelled call to end before its tools are closed all the same."""

T = TypeVar("T")


class TokenSource(Protocol):
    """Source of tokens: the pool of backends.

    `generate` uses backends in `avoid` if no other is left. Raises `UpstreamFailed` after the first
    chunk, any other `UpstreamError` before it; and what the sink raises.
    """

    async def generate(
        self,
        request: TokenRequest,
        sink: TokenSink,
        *,
        avoid: Collection[str] = (),
        attempts_max: int | None = None,
    ) -> None: ...


class RunningCalls:
    """Calls of tools in tasks of their own, which may outlive their run."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_draining = False
        """Others go on with the durable responses, for which nothing more is begun here."""

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = start_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=CLOSE_WAIT_S)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Whoever started it may not look any more.
            task.exception()


class Executor(Protocol):
    async def run_accepted(self, work: Callable[[], T]) -> T: ...


class Abandonable(Protocol):
    @property
    def spec(self) -> RunSpec: ...

    @property
    def age_s(self) -> float: ...

    def abandon(self) -> None: ...


class ClaimKeeper(Protocol):
    """Renews the claims of runs, and abandons a run that lost its claim."""

    def hold(self, claim: Claim, run: Abandonable) -> None: ...

    def drop(self, claim: Claim) -> None: ...

    async def assured(self, claim: Claim) -> None: ...


@dataclass(slots=True)
class Engine:
    """Parts that all runs of a process share; only `run_time_max_s` may change.

    Without `tools` it may still go on with responses of a replica that has some.
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
    replica: str = ""
    calls: RunningCalls = field(default_factory=RunningCalls)
    hops: HopPolicy = field(default_factory=HopPolicy)
    guard_limits: GuardLimits = field(default_factory=GuardLimits)
    continues_preambles: Callable[[str], bool] = lambda _model: True
