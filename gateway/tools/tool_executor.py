"""Bounds of hosted tools.

| bound                                   | outcome of a call beyond it             |
|-----------------------------------------|-----------------------------------------|
| size and depth of the arguments         | `refused`                               |
| the same call again and again           | `over_budget`                           |
| seconds of all calls of a response      | `over_budget`                           |
| ids of all results of a response        | shorter results, then `over_budget`     |
| bytes of all results of a response      | `over_budget`                           |
| calls at once                           | a few seconds later `refused`           |
| a server that failed again and again    | `transport_error`, without a call       |
| seconds of one call                     | `timeout`                               |
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, get_args

from gateway.cache import LruCache
from gateway.entries import ToolOutcome
from gateway.errors import ClaimLost
from gateway.telemetry.logs import EventLog
from gateway.tools.result_text import truncated
from gateway.tools.tool_contract import (
    INLINE_RESULT_CHARS,
    ToolKind,
    ToolResult,
    ToolStart,
    kind_of,
    server_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping

    from gateway.telemetry.metrics import Metrics, ToolBound
    from gateway.tools.tool_contract import HostedTools, ToolCall, ToolScope, ToolSession

    _Of = Literal["all", "tenant", "server"]
    _Key = tuple[_Of, Hashable]
    _Keys = tuple[_Key, ...]

BREAKERS_MAX: Final = 4096
"""Breakers of all tenants together."""


class TooManyCalls(Exception):
    """No slot within `ToolLimits.slot_wait_s`."""


class Slots:
    """Slots of running calls. Free ones go to waiting calls in order, past those that one of their
    own bounds holds up.
    """

    def __init__(self, limits: ToolLimits) -> None:
        self._wait_s = limits.slot_wait_s
        self._most: dict[_Of, int] = {
            "all": limits.running_max,
            "tenant": limits.tenant_running_max,
            "server": limits.server_running_max,
        }
        self._taken: Counter[_Key] = Counter()
        self._waiting: dict[asyncio.Future[None], _Keys] = {}

    @asynccontextmanager
    async def taken(self, tenant: Hashable, server: Hashable | None) -> AsyncIterator[None]:
        """Hold a slot. Raises `TooManyCalls`."""
        keys: _Keys = (("all", None), ("tenant", tenant))
        if server is not None:
            # Of each tenant apart: one must not keep others from a server that all may use.
            keys = (*keys, ("server", (tenant, server)))
        if self._has_room(keys):
            self._taken.update(keys)
        else:
            await self._wait(keys)
        try:
            yield
        finally:
            self._leave(keys)

    async def _wait(self, keys: _Keys) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = keys
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                # It was given one at the same moment.
                self._leave(keys)
            if isinstance(error, TimeoutError):
                raise TooManyCalls from error
            raise
        finally:
            self._waiting.pop(turn, None)

    def _has_room(self, keys: _Keys) -> bool:
        return all(self._taken[key] < self._most[key[0]] for key in keys)

    def _leave(self, keys: _Keys) -> None:
        for key in keys:
            self._taken[key] -= 1
            if not self._taken[key]:
                del self._taken[key]
        for turn, wanted in list(self._waiting.items()):
            if not turn.done() and self._has_room(wanted):
                self._taken.update(wanted)
                turn.set_result(None)


class Breaker:
    """Servers, by tenant, that rest after failures."""

    def __init__(self, failures_max: int, rest_s: float, clock: Callable[[], float]) -> None:
        # After `failures_max` failures in a row a server rests for `rest_s`; then one call may try.
        self._failures_max = failures_max
        self._rest_s = rest_s
        self._clock = clock
        self._failures: LruCache[Hashable, tuple[int, float]] = LruCache(size_max=BREAKERS_MAX)

    def is_open(self, key: Hashable) -> bool:
        """Return True if the server must not be called. After the rest one caller may try."""
        failures, since = self._failures.get(key) or (0, 0.0)
        if failures < self._failures_max:
            return False
        now = self._clock()
        if now - since < self._rest_s:
            return True
        self._failures.put(key, (failures, now), size=1)
        return False

    def failed(self, key: Hashable) -> None:
        failures, _ = self._failures.get(key) or (0, 0.0)
        self._failures.put(key, (failures + 1, self._clock()), size=1)

    def answered(self, key: Hashable) -> None:
        # An answer of any kind shows that the peer works.
        self._failures.drop(key)


RESULT_BYTES: Final = "bytes"
"""Key in `state`: bytes of the result before the cut."""
SERVER_FAILURES: Final[Mapping[ToolKind, frozenset[ToolOutcome]]] = {
    "browser": frozenset({"transport_error"}),
    "python": frozenset({"transport_error"}),
    "mcp": frozenset({"transport_error", "timeout", "unknown"}),
}
"""Not of the requested page or of slow code."""
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""A string that is not closed goes on to the end: otherwise each quote in it would begin
another."""
_ADVICE: Final[Mapping[ToolKind, str]] = {
    "browser": "Open the page at another line (loc), or find a pattern in it.",
    "python": "Print less at once, or write to a file and look at parts of it.",
    "mcp": "Ask for less at once, if the tool lets you.",
}

_log = EventLog(__name__)
T = TypeVar("T")


CALL_MAX_S: Final[Mapping[ToolKind, float]] = {"browser": 20.0, "python": 120.0, "mcp": 600.0}


class Threads(Protocol):
    async def run_accepted(self, work: Callable[[], T]) -> T: ...


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """Bounds. `repeats_max`: calls in a row with the same arguments. `error_ids_max`: ids of
    errors, and of every result once a response has used its share of ids.
    """

    call_max_s: Mapping[ToolKind, float] = field(default_factory=lambda: CALL_MAX_S)
    running_max: int = 64
    tenant_running_max: int = 16
    server_running_max: int = 8
    slot_wait_s: float = 5.0
    breaker_failures_max: int = 5
    breaker_rest_s: float = 30.0
    repeats_max: int = 2
    arguments_bytes_max: int = 64 * 1024
    arguments_depth_max: int = 32
    error_ids_max: int = 512


class ToolExecutor:
    def __init__(
        self,
        tools: Mapping[ToolKind, HostedTools],
        limits: ToolLimits,
        *,
        threads: Threads,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tools = tools
        self.limits = limits
        self.threads = threads
        self.metrics = metrics
        metrics.tools_begin(get_args(ToolKind), get_args(ToolOutcome))
        self.clock = clock
        self.slots = Slots(limits)
        self.breaker = Breaker(limits.breaker_failures_max, limits.breaker_rest_s, clock)

    def session(self, scope: ToolScope) -> ToolSession:
        # Creates the sessions of the tools only when a call needs them.
        returned = sum(map(_returned_bytes, scope.states))
        return _Session(self, scope, result_ids=scope.result_ids, result_bytes=returned)


@dataclass(slots=True)
class _Session:
    executor: ToolExecutor
    scope: ToolScope
    result_ids: int
    result_bytes: int
    sessions: dict[ToolKind, ToolSession] = field(default_factory=dict)
    repeatable: dict[int, bool] = field(default_factory=dict)
    last: tuple[str, str] = ("", "")
    repeats: int = 0
    time_s: float = 0.0

    def start(self, call: ToolCall) -> ToolStart:
        session = self._session(call)
        start = ToolStart(repeatable=False)
        if session is not None:
            try:
                start = session.start(call)
            except Exception as error:  # noqa: BLE001 - a defect of a tool costs one call
                _log.error("a hosted tool could not begin", error=error)
        self.repeatable[call.ordinal] = start.repeatable
        return start

    async def run(self, call: ToolCall, on_handle: Callable[[bytes], None]) -> ToolResult:
        result = self._refusal(call) or await self._run_bounded(
            call, lambda session: session.run(call, on_handle)
        )
        assert result is not None, "a call that was run has a result"
        return await self._shorten(call, result)

    async def resume(self, call: ToolCall, handle: bytes) -> ToolResult | None:
        if self._session(call) is None:
            return None
        result = await self._run_bounded(call, lambda session: session.resume(call, handle))
        return None if result is None else await self._shorten(call, result)

    async def close(self) -> None:
        for session in self.sessions.values():
            try:
                await session.close()
            except Exception as error:  # noqa: BLE001 - the others are to be closed, too
                _log.error("the tools of a response were not closed", error=error)

    def _session(self, call: ToolCall) -> ToolSession | None:
        kind = kind_of(call.name)
        if kind not in self.sessions and (tools := self.executor.tools.get(kind)) is not None:
            self.sessions[kind] = tools(self.scope)
        return self.sessions.get(kind)

    def _refusal(self, call: ToolCall) -> ToolResult | None:
        # None: the call is run.
        limits = self.executor.limits
        if self._session(call) is None:
            return ToolResult("This tool is not available now. Answer without it.", "refused")
        if (fault := _arguments_fault(call, limits)) is not None:
            return ToolResult(fault, "refused")
        made = (call.name, call.arguments)
        self.repeats = self.repeats + 1 if made == self.last else 1
        self.last = made
        if self.repeats > limits.repeats_max:
            return self._over("repeats", "This call was made already, and would give the same.")
        if (exhausted := self._check_budget()) is not None:
            return exhausted
        if self.executor.breaker.is_open(self._breaker_key(call)):
            return ToolResult("It cannot be reached now. Answer without it.", "transport_error")
        return None

    def _check_budget(self) -> ToolResult | None:
        budget = self.scope.grants.budget
        if self.time_s >= budget.time_max_s:
            return self._over("time", "The tools of this response have used up their time.")
        if self.result_ids >= budget.result_ids_max + self.executor.limits.error_ids_max:
            return self._over("result_ids", "The results of this response are long enough.")
        if self.result_bytes >= budget.result_bytes_max:
            return self._over("result_bytes", "The tools of this response have returned enough.")
        return None

    def _over(self, bound: ToolBound, why: str) -> ToolResult:
        self.executor.metrics.tool_budget_hit(bound)
        return ToolResult(f"{why} Answer with what you know.", "over_budget")

    async def _run_bounded(
        self, call: ToolCall, work: Callable[[ToolSession], Awaitable[ToolResult | None]]
    ) -> ToolResult | None:
        # Waits for a slot, then runs the call within its time. Raises `ClaimLost`, and
        # `CancelledError` when the response ends.
        session, clock = self._session(call), self.executor.clock
        assert session is not None
        is_mcp = kind_of(call.name) == "mcp"
        server = server_of(call.name, self.scope.grants) if is_mcp else None
        try:
            async with self.executor.slots.taken(self.scope.tenant_id, server):
                await self.scope.assured()
                began = clock()
                result = await self._result(call, work(session))
        except TooManyCalls:
            self.executor.metrics.tool_budget_hit("running")
            return ToolResult(
                "Too many tools run now. Try again later, or answer without it.", "refused"
            )
        self.time_s += clock() - began
        if result is not None:
            self._judge_server(call, result.outcome)
        return result

    def _judge_server(self, call: ToolCall, outcome: ToolOutcome) -> None:
        is_out_of_time = self.time_s >= self.scope.grants.budget.time_max_s
        if outcome == "refused" or (outcome == "timeout" and is_out_of_time):
            return  # it was not sent, or this response had no more time for it
        key = self._breaker_key(call)
        is_failure = outcome in SERVER_FAILURES[kind_of(call.name)]
        (self.executor.breaker.failed if is_failure else self.executor.breaker.answered)(key)

    async def _result(
        self, call: ToolCall, work: Awaitable[ToolResult | None]
    ) -> ToolResult | None:
        left_s = self.scope.grants.budget.time_max_s - self.time_s
        time_max_s = min(self.executor.limits.call_max_s[kind_of(call.name)], max(left_s, 1.0))
        try:
            async with asyncio.timeout(time_max_s):
                return await work
        except ClaimLost:
            raise
        except TimeoutError:
            why = f"It did not answer within {time_max_s:g} seconds."
            return ToolResult(f"{why}{self._doubt(call)}", "timeout")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Something that the tool talked to has ended, and took its call with it.
            return self._broken(call)
        except Exception as error:  # noqa: BLE001 - a defect of a tool, which the model is told of
            _log.error("a hosted tool failed", error=error)
            return self._broken(call)

    def _broken(self, call: ToolCall) -> ToolResult:
        return ToolResult(f"The tool broke off.{self._doubt(call)}", "transport_error")

    def _doubt(self, call: ToolCall) -> str:
        if self.repeatable.get(call.ordinal, False):
            return ""
        return " Nobody knows whether the call had an effect. Do not simply repeat it."

    async def _shorten(self, call: ToolCall, result: ToolResult) -> ToolResult:
        budget, limits = self.scope.grants.budget, self.executor.limits
        left = max(budget.result_ids_max - self.result_ids, limits.error_ids_max)
        ids_max = min(result.ids_max, left, left if call.ids_max is None else call.ids_max)
        # Characters that UTF-8 cannot encode must not fail a response whose call had its effect.
        returned = result.output.encode("utf-8", "replace")
        output = returned.decode()
        self.result_bytes += len(returned)
        advice = _ADVICE[kind_of(call.name)]
        cut = partial(_truncate, output, ids_max, self.scope.count_ids, advice)
        is_short = len(output) <= INLINE_RESULT_CHARS
        shown, ids = cut() if is_short else await self.executor.threads.run_accepted(cut)
        self.result_ids += ids
        if len(shown) != len(output):
            self.executor.metrics.tool_truncated(kind_of(call.name))
        # A process that takes the response over continues the count with this.
        state = {**result.state, RESULT_BYTES: len(returned)}
        return replace(result, output=shown, state=state)

    def _breaker_key(self, call: ToolCall) -> tuple[object, str]:
        return self.scope.tenant_id, server_of(call.name, self.scope.grants)


def _truncate(
    output: str, ids_max: int, count_ids: Callable[[str], int], advice: str
) -> tuple[str, int]:
    # The text and its number of ids.
    # To count a text is to tokenise it: once is enough.
    counted = cache(count_ids)
    shown = truncated(output, ids_max, counted, advice)
    return shown, counted(shown)


def _returned_bytes(state: Mapping[str, Any]) -> int:
    size = state.get(RESULT_BYTES, 0)
    return size if isinstance(size, int) else 0


def _arguments_fault(call: ToolCall, limits: ToolLimits) -> str | None:
    # Checks that apply to every tool; None: valid.
    if len(call.arguments.encode("utf-8", "replace")) > limits.arguments_bytes_max:
        return f"The arguments are longer than {limits.arguments_bytes_max} bytes. Send less."
    if kind_of(call.name) == "python":
        return None
    depth = deepest = 0
    for character in _STRING.sub("", call.arguments):
        depth += (character in "[{") - (character in "]}")
        deepest = max(deepest, depth)
    if deepest > limits.arguments_depth_max:
        return f"The arguments are nested deeper than {limits.arguments_depth_max} levels."
    return None
