"""Tools that the gateway runs itself, between two turns of a response.

    TurnEnded(stop) → ToolStarted → (commit) → run [→ ToolHandle] → ToolEnded → TurnStarted

A call leaves this process only when the log has its beginning, and nobody else may go on with the
response. So a replica that takes over knows that a call without an end may have had effects:

| the log has                    | it                                                    |
|--------------------------------|-------------------------------------------------------|
| no beginning                   | runs the call                                         |
| a beginning and a handle       | asks the executor; if that does not know, as below    |
| a beginning, and it may repeat | runs it again, once                                   |
| a beginning                    | tells the model that nobody knows what came of it     |
| an end                         | goes on with the next turn                            |

A call never runs in the task of its run: whatever it talks to may end that task, and the end of a
response must not wait for it.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.concurrency import OnceEvent
from gateway.engine.engine import CLOSE_WAIT_S
from gateway.engine.late_writes import RETRY_PAUSE_S
from gateway.engine.outcome import marked
from gateway.engine.row_mapping import Attempt
from gateway.entries import HANDLE_BYTES_MAX, ToolEnded, ToolHandle, ToolStarted
from gateway.errors import ClaimLost, StoreUnavailable
from gateway.generation import BUILTIN_PREFIX
from gateway.protocol.grants import approval_digest
from gateway.store.claims import Claim
from gateway.telemetry.trace_context import recorded
from gateway.tools.tool_contract import (
    INLINE_RESULT_CHARS,
    REACHED,
    ToolCall,
    ToolResult,
    ToolScope,
    explained,
    kind_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from gateway.engine.engine import Engine
    from gateway.engine.run_spec import RunSpec
    from gateway.eventlog.fold.fold import Fold
    from gateway.eventlog.fold.hosted_calls import UnapprovedCall
    from gateway.eventlog.journal import Journal
    from gateway.models.format import ModelFormat
    from gateway.protocol.grants import McpTool, ServerGrant
    from gateway.telemetry.trace_context import SpanKind
    from gateway.tools.tool_contract import ToolKind, ToolSession

    ToolWork = Coroutine[Any, Any, ToolResult | None]

ATTEMPTS_MAX: Final = 2
"""Attempts of a call that may be repeated."""

UNKNOWN: Final = ToolResult(
    "The call was interrupted. It may or may not have taken effect. Do not simply repeat it: find "
    "out first, if you can.",
    "unknown",
)
INTERRUPTED: Final = ToolResult("The call was interrupted, more than once.", "transport_error")
UNAVAILABLE: Final = ToolResult("This tool is not available now. Answer without it.", "refused")
BROKEN: Final = ToolResult(
    "The tool broke off. It may or may not have taken effect.", "transport_error"
)
CANCELLED: Final = ToolResult("The call was cancelled.", "cancelled")
NOTES: Final[Mapping[str | None, str]] = {
    None: "",
    "calls": "\n[No more tools can be called in this response. Answer with what you know.]",
    "failures": "\n[This failed too often. It cannot be called any more in this response.]",
}
"""Notes to the model behind results, by what is withdrawn (`Withdrawal`)."""


class ToolRunner:
    """Calls of one response that the gateway runs, from what the log says."""

    __slots__ = (
        "_call", "_claim", "_engine", "_fold", "_format", "_hosts", "_journal", "_room", "_session",
        "_spec", "_task", "running",
    )  # fmt: skip

    def __init__(
        self,
        spec: RunSpec,
        journal: Journal,
        engine: Engine,
        *,
        format_: ModelFormat,
        epoch: int,
        room: Callable[[], int | None],
    ) -> None:
        # `room` returns how many ids the next result may have (`ToolCall.ids_max`).
        self._spec = spec
        self._journal = journal
        self._fold: Fold = journal.live.fold
        self._engine = engine
        self._format = format_
        self._claim = Claim(spec.principal.tenant_id, spec.head.uuid, epoch)
        self._room = room
        self._session: ToolSession | None = None
        self._call: ToolCall | None = None
        self._task: asyncio.Task[ToolResult | None] | None = None
        self._hosts: set[str] = set()
        """Hosts that `_call` sent something to."""
        self.running: OnceEvent | None = None
        """Set when the running call has ended, if it must not be run twice."""

    async def run_due_call(self) -> bool:
        """Run the hosted call that the last turn ended with; False if there was none.

        Raises `ClaimLost`.
        """
        due = self._fold.hosted.call
        if due is None:
            return False
        attempts = self._fold.hosted.attempts
        self._call = ToolCall(
            due.ordinal, due.name, due.arguments, max(1, attempts), ids_max=self._room()
        )
        self._hosts = set()
        began = time.monotonic()
        try:
            result = explained(due.name, await self._result())
            await self._end(result, time.monotonic() - began)
        except asyncio.CancelledError:
            self._cancel(time.monotonic() - began)
            raise
        finally:
            if self.running is not None:
                self.running.set()
            self._call = self.running = None
        return True

    async def ask_approval(self) -> None:
        """Record the approval request, if the last turn ended with one.

        Raises `StoreUnavailable` if the response is not durable: no other process would continue
        it.
        """
        call, ask = self._fold.approval_request, self._engine.ask_approval
        if call is None or ask is None:
            return
        server, tool = self._find_granted(call)
        digest = approval_digest(server, tool, call.arguments)
        while True:
            try:
                await ask(self._claim.tenant_id, call.request_id, digest)
            except StoreUnavailable:
                if not self._spec.durable:
                    raise
                await asyncio.sleep(RETRY_PAUSE_S)
            else:
                return

    def close(self) -> None:
        # Does not wait for its calls.
        if self._session is not None:
            self._engine.calls.start(_close(self._session, self._task))
            self._session = None

    def _find_granted(self, call: UnapprovedCall) -> tuple[ServerGrant, McpTool]:
        grants = self._spec.head.grants
        label, _, name = call.name.partition(".")
        for server in grants.servers if grants is not None else ():
            for tool in server.tools if server.label == label else ():
                if tool.name == name:
                    return server, tool
        raise LookupError("the user is asked about a tool that was not granted")

    async def _result(self) -> ToolResult:
        # Follows the table in the docstring of this module. Raises `ClaimLost`.
        begun, attempts = self._fold.hosted.started, self._fold.hosted.attempts
        tools = self._engine.tools
        if tools is None:
            return UNAVAILABLE if begun is None or begun.repeatable else UNKNOWN
        session = self._session = self._session or tools(self._scope())
        if begun is None:
            return await self._run(session)
        assert self._call is not None
        if (handle := self._fold.hosted.handle) is not None:
            self.running = OnceEvent()
            resumed = await self._run_in_task(session.resume(self._call, handle))
            if resumed is not None:
                return resumed
            # Waiters for the call no longer wait for the lost one.
            self.running.set()
            self.running = None
        if not begun.repeatable:
            return UNKNOWN
        if attempts >= ATTEMPTS_MAX:
            return INTERRUPTED
        self._call = replace(self._call, attempt=attempts + 1)
        return await self._run(session)

    async def _run(self, session: ToolSession) -> ToolResult:
        call = self._call
        assert call is not None
        if self._spec.durable and self._engine.calls.is_draining:
            # It is another replica's in a moment: until then nothing happens here.
            await OnceEvent().wait()
        start = session.start(call)
        self.running = None if start.repeatable else OnceEvent()
        started = ToolStarted(call.ordinal, start.repeatable, json_bytes(start.shown))
        self._journal.append(marked("clock"))
        self._journal.append(started)
        await self._journal.committed()
        await self._assure_claim()
        result = await self._run_in_task(session.run(call, partial(self._on_handle, call)))
        return BROKEN if result is None else result

    async def _run_in_task(self, work: ToolWork) -> ToolResult | None:
        # Raises `ClaimLost`.
        assert self._call is not None
        kind, name = kind_of(self._call.name), self._call.name.removeprefix(BUILTIN_PREFIX)
        if self._spec.principal.keeps_nothing:
            name = kind  # users choose the names of MCP servers
        task = self._task = self._engine.calls.start(_traced(kind, name, work, self._hosts))
        await asyncio.wait((task,))
        self._task = None
        if task.cancelled():
            # Something that the call depends on ended its task.
            return BROKEN
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, ClaimLost):
            raise error
        self._engine.observer.tool_failed(self._spec, error)
        return BROKEN

    async def _end(self, result: ToolResult, seconds: float) -> None:
        # Raises `ClaimLost`.
        assert self._call is not None
        # Half a surrogate pair, which no prompt can hold, must not fail a response whose call took
        # effect.
        output = result.output.encode("utf-8", "replace").decode()
        output += NOTES[self._fold.hosted.withdrawn_by(result.outcome)]
        render = partial(self._format.render_result, self._call.name, output)
        is_short = len(output) <= INLINE_RESULT_CHARS
        ids = render() if is_short else await self._engine.threads.run_accepted(render)
        self._write(replace(result, output=output), tuple(ids), seconds)

    def _cancel(self, seconds: float) -> None:
        # The response ends: cancel the running call and record that, if the response is still ours.
        if self._task is not None:
            self._task.cancel()
        # A call that has not begun has no record anywhere.
        if self._fold.hosted.call is not None and self._fold.hosted.started is not None:
            assert self._call is not None
            ids = self._format.render_result(self._call.name, CANCELLED.output)
            with suppress(ClaimLost):
                self._write(CANCELLED, tuple(ids), seconds)

    def _write(self, result: ToolResult, ids: tuple[int, ...], seconds: float) -> None:
        call = self._call
        assert call is not None
        shown, state = json_bytes(result.shown), json_bytes(result.state)
        attempt = Attempt(
            call,
            result.outcome,
            seconds,
            output_bytes=len(result.output.encode()),
            result_ids=len(ids),
            hosts=tuple(sorted(self._hosts)),
        )
        try:
            self._journal.append(marked("clock"))
            try:
                self._journal.append(ToolEnded(call.ordinal, ids, result.outcome, shown, state))
            except ValueError as error:
                # The state that the tool leaves behind is malformed.
                self._engine.observer.tool_failed(self._spec, error)
                attempt = replace(attempt, outcome="transport_error")
                self._journal.append(ToolEnded(call.ordinal, ids, "transport_error"))
        except ClaimLost:
            # The call left this process all the same; whoever resumes it has its outcome.
            if not (self._engine.calls.is_draining and self._fold.hosted.handle is not None):
                self._engine.archive.audit(self._spec, attempt)
            raise
        self._engine.observer.tool_ended(self._spec, attempt)
        self._engine.archive.audit(self._spec, attempt)

    def _on_handle(self, call: ToolCall, handle: bytes) -> None:
        # Raises `ClaimLost` into the call: another replica takes it up.
        if self._call == call and len(handle) <= HANDLE_BYTES_MAX:
            self._journal.append(ToolHandle(call.ordinal, handle))

    async def _assure_claim(self) -> None:
        # No other process continues a response that is not durable.
        if self._spec.durable:
            await self._engine.lease_keeper.assured(self._claim)

    def _scope(self) -> ToolScope:
        spec, grants = self._spec, self._spec.head.grants
        assert grants is not None, "there is no hosted call without grants"
        return ToolScope(
            tenant_id=spec.principal.tenant_id,
            project_id=spec.principal.project,
            response=spec.head.uuid,
            grants=grants,
            stored=spec.store,
            values=spec.tool_values,
            states=tuple(self._fold.hosted.states),
            count_ids=self._format.count_ids,
            secrets=spec.secrets,
            result_ids=self._fold.hosted.result_ids,
            assured=self._assure_claim,
        )


async def _traced(kind: ToolKind, name: str, work: ToolWork, hosts: set[str]) -> ToolResult | None:
    # Collects the hosts that the call reaches.
    REACHED.set(hosts)
    if (parent := recorded()) is None:
        return await work
    described = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.type": "extension",
    }
    side: SpanKind = "client" if kind == "mcp" else "internal"
    span = parent.child(f"execute_tool {name}", side, described)
    outcome = "cancelled"
    try:
        result = await work
        outcome = "unknown" if result is None else result.outcome
    except Exception as error:
        outcome = type(error).__name__
        raise
    finally:
        span.set({"harmony.outcome": outcome})
        if outcome not in {"ok", "cancelled"}:
            span.fail(outcome)
        span.end()
    return result


async def _close(session: ToolSession, task: asyncio.Task[Any] | None) -> None:
    if task is not None and not task.done():
        await asyncio.wait((task,), timeout=CLOSE_WAIT_S)
    await session.close()


def json_bytes(fields: Mapping[str, Any]) -> bytes:
    """Encode fields for the log, also what JSON cannot hold: the call had its effect."""
    if not fields:
        return b""
    try:
        return orjson.dumps(fields)
    except TypeError:
        return json.dumps(fields, ensure_ascii=False, default=str).encode("utf-8", "replace")
