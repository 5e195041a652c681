"""Tools that the gateway runs itself, between two turns of a response.

    TurnEnded(stop)                   the turn ended with a call of such a tool
      → ToolStarted → (commit) → run → ToolEnded → TurnStarted
                                        asked for behind: prompt, turns, call, result

A call leaves this process only when the log has its beginning. So another replica that finds no end
knows that it may have had effects: it runs the call again only if that is idempotent, and otherwise
tells the model that it was interrupted.

The gateway has no such tools yet: `HostedTools` is what they are to be. Without any, every call is
the client's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from gateway.entries import ToolEnded, ToolStarted
from gateway.protocol.context_item import ContextItem
from gateway.protocol.items import FunctionCallOutput

if TYPE_CHECKING:
    from gateway.engine.observer import Observer
    from gateway.engine.run_spec import RunSpec
    from gateway.eventlog.fold.fold import UnansweredCall
    from gateway.eventlog.journal import Journal
    from gateway.models.format import ModelFormat


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call returned, as the model and the client are shown it.

    `error` is a code that says why there is no result; then `output` says so in words.
    """

    output: str
    error: str | None = None


INTERRUPTED: Final = ToolResult(
    "The call was interrupted. Nobody knows whether it had an effect. Do not simply repeat it.",
    "interrupted",
)
FAILED: Final = ToolResult("The tool failed.", "failed")


class HostedTools(Protocol):
    """The tools that the gateway runs itself, of all responses."""

    def hosts(self, call: UnansweredCall) -> bool:
        """It is to be run here; any other is the client's."""
        ...

    def is_idempotent(self, call: UnansweredCall) -> bool:
        """It may be run again when nobody knows how far it came."""
        ...

    async def run(self, spec: RunSpec, call: UnansweredCall) -> ToolResult:
        """Run it. Cancelled when the response is; what it raises is a defect."""
        ...


class ToolRunner:
    """The calls of one response that the gateway runs. All it knows of them is in the log."""

    __slots__ = ("_fold", "_format", "_journal", "_observer", "_spec", "_tools")

    def __init__(
        self,
        spec: RunSpec,
        journal: Journal,
        tools: HostedTools | None,
        *,
        format_: ModelFormat,
        observer: Observer,
    ) -> None:
        """`tools`: None where the gateway runs none, but may go on where another replica did."""
        self._spec = spec
        self._journal = journal
        self._fold = journal.live.fold
        self._tools = tools
        self._format = format_
        self._observer = observer

    async def answer(self) -> bool:
        """Have the call answered that the last turn ended with. Raises `ClaimLost`.

        True: its result stands behind the turn, and the model is to be asked again. False: there is
        no call, or it is the client's.
        """
        call, begun = self._fold.unanswered_call, self._fold.turns[-1].tool
        if call is None:
            return False
        tools = self._tools if self._tools is not None and self._tools.hosts(call) else None
        if begun is None and tools is None:
            return False
        result = INTERRUPTED
        if tools is not None and (begun is None or begun.idempotent):
            result = await self._result(tools, call)
        # What no prompt can hold must not fail a response whose call had its effect.
        output = result.output.encode("utf-8", "replace").decode()
        ids = self._result_ids(call, output)
        self._journal.append(ToolEnded(call.ordinal, ids, output, result.error))
        return True

    async def _result(self, tools: HostedTools, call: UnansweredCall) -> ToolResult:
        self._journal.append(ToolStarted(call.ordinal, tools.is_idempotent(call)))
        await self._journal.committed()
        try:
            return await tools.run(self._spec, call)
        except Exception as error:  # noqa: BLE001 - a defect of a tool, which the model is told of
            self._observer.tool_failed(self._spec, error)
            return FAILED

    def _result_ids(self, call: UnansweredCall, output: str) -> tuple[int, ...]:
        """The message of a result, as the prompts of later responses render its item, too."""
        call_id = call.item["call_id"]
        typed = FunctionCallOutput(call_id=call_id, output=output)
        item = ContextItem("function_call_output", "", b"", call_id=call_id, parsed=typed)
        return tuple(self._format.render_item(item, call.name))
