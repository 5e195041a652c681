"""The calls of hosted tools that a process runs, and the report of each to operators."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gateway.concurrency import start_task
from gateway.tools.tool_contract import kind_of, server_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from gateway.engine.run_spec import RunSpec
    from gateway.tenancy import TenantId
    from gateway.tools.tool_contract import ToolCall

    AskApproval = Callable[[TenantId, str, bytes], Awaitable[None]]
    """Function that records a request to the user (tenant, id of the request, digest of the call)
    before the response ends. Two requests count as one. Raises `StoreUnavailable`."""

T = TypeVar("T")

CLOSE_WAIT_S: Final = 30.0
"""Seconds that a cancelled call may take to end before its tools are closed all the same."""


class RunningCalls:
    """The calls that a process runs, each in a task of its own, which may outlive its run."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_draining = False
        """True if others go on with the durable responses: nothing more is begun for one here."""

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `work` in a task that no caller has to wait for."""
        task = start_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    async def close(self) -> None:
        """Cancel the remaining calls and wait, for a limited time, until they have ended."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=CLOSE_WAIT_S)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Whoever started it may not look any more.
            task.exception()


@dataclass(frozen=True, slots=True)
class Attempt:
    """Finished attempt at a call, as operators see it: without arguments and result.
    `output_bytes` is the size of what the model reads of the result, `hosts` are those to which
    the call sent something.
    """

    call: ToolCall
    outcome: str
    seconds: float
    output_bytes: int
    result_ids: int
    hosts: tuple[str, ...] = ()

    @property
    def arguments_hash(self) -> bytes:
        return hashlib.sha256(self.call.arguments.encode("utf-8", "surrogatepass")).digest()


def approval_of(spec: RunSpec, call: ToolCall) -> tuple[str | None, str | None]:
    """Return how a call of an MCP tool was approved, and the id of the approval request.

    The first value is "user", or "never" if no approval was needed. Both are None for other tools.
    """
    grants = spec.head.grants
    if grants is None or kind_of(call.name) != "mcp":
        return None, None
    approved = grants.approved
    # The response begins with what was approved; a later call was not asked about, or not made.
    if approved is None or call.ordinal or approved.name != call.name:
        return "never", None
    return "user", approved.request_id


def names_of(spec: RunSpec, call: ToolCall) -> tuple[str, str]:
    # The kind of the call, and the identity of the server that executes it.
    return kind_of(call.name), server_of(call.name, spec.head.grants)
