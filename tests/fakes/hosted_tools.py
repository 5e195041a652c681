"""A tool that the gateway runs itself, with an effect that can be counted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.engine.tools import ToolResult
from gateway.generation import FinishReason, TokenChunk
from gateway.models.harmony.framing import OPENING
from tests.fakes.harmony_script import script_ids
from tests.fakes.staged_run import ANSWER, run_spec
from tests.fakes.telling import tell

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection

    from gateway.engine.run_spec import RunSpec
    from gateway.eventlog.fold.fold import UnansweredCall
    from gateway.generation import TokenRequest, TokenSink

CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"city": "Bern"}<|call|>'
_PROMPT_IDS = len(run_spec().prompt_ids)


def result_ids(output: str) -> list[int]:
    """The message that tells the model what `f` returned."""
    header = "<|start|>functions.f to=assistant<|channel|>commentary<|message|>"
    return script_ids(f"{header}{output}<|end|>")


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


@dataclass
class Continuing:
    """A backend that goes on with a call, or behind a result with an answer."""

    prompts: list[list[int]] = field(default_factory=list)

    async def generate(
        self,
        request: TokenRequest,
        sink: TokenSink,
        *,
        avoid: Collection[str] = (),
        attempts_max: int | None = None,
    ) -> None:
        self.prompts.append(list(request.prompt_ids))
        await tell(sink, self._say(self.prompts[-1][_PROMPT_IDS:]))

    async def _say(self, behind: list[int]) -> AsyncGenerator[TokenChunk, None]:
        call, answer = script_ids(CALL), script_ids(ANSWER)
        if len(behind) < len(call):
            left = call[len(behind) :]
        else:
            openings = [at for at in range(len(behind)) if behind[at : at + 2] == list(OPENING)]
            left = answer[len(behind) - openings[-1] - len(OPENING) :]
        for token in left:
            await asyncio.sleep(0)
            yield TokenChunk([token])
        yield TokenChunk([], FinishReason.STOP)
