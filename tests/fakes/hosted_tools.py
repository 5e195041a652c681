"""A tool that the gateway runs itself, with an effect that can be counted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.engine.tools import ToolResult

if TYPE_CHECKING:
    from gateway.engine.run_spec import RunSpec
    from gateway.eventlog.fold.fold import UnansweredCall


@dataclass
class CountedTool:
    """The function `name`. `ran` are the arguments of each time that it was run."""

    name: str = "f"
    output: str = "12 degrees."
    idempotent: bool = False
    failure: Exception | None = None
    hangs: bool = False
    ran: list[str] = field(default_factory=list)
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    def hosts(self, call: UnansweredCall) -> bool:
        return call.name == self.name

    def is_idempotent(self, call: UnansweredCall) -> bool:
        return self.idempotent

    async def run(self, spec: RunSpec, call: UnansweredCall) -> ToolResult:
        self.ran.append(call.item["arguments"])
        self.reached.set()
        if self.hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return ToolResult(self.output)
