"""A remote server whose tool has an effect that can be counted, and a model that calls it.

The tool is `f` of the MCP server `srv`. `ask` of that server needs the approval of the user.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from gateway.constraints.validation import Checker
from gateway.generation import FinishReason, TokenChunk
from gateway.models.harmony.tokenizer import OPENING
from gateway.protocol.call_items import call_fields
from gateway.protocol.grants import Grants, McpTool, ServerGrant
from gateway.protocol.responses.response_rules import rules_of
from gateway.tools.tool_contract import ToolResult, ToolStart
from tests.fakes.harmony_script import harmony, script_ids
from tests.fakes.staged_run import ANSWER, run_spec
from tests.fakes.token_delivery import tell

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection

    from gateway.engine.run_spec import RunSpec
    from gateway.entries import ToolOutcome
    from gateway.generation import TokenRequest, TokenSink
    from gateway.tools.tool_contract import ToolCall, ToolScope

NAME = "srv.f"
ARGUMENTS = '{"city": "Bern"}'
CALL = f"<|channel|>commentary to=functions.srv.f <|constrain|>json<|message|>{ARGUMENTS}<|call|>"
ASK = CALL.replace("srv.f", "srv.ask")
OUTPUT = "12 degrees."
SERVER = ServerGrant(
    "srv",
    "https://mcp.example/mcp",
    tools=(
        McpTool("f", {"type": "object"}, needs_approval=False),
        McpTool("ask", {"type": "object"}, digest="1", needs_approval=True),
    ),
)
GRANTS = Grants(servers=(SERVER,))
_PROMPT_IDS = len(run_spec().prompt_ids)


def granted(spec: RunSpec | None = None, grants: Grants = GRANTS, **fields: Any) -> RunSpec:
    """The specification of a response with these grants."""
    spec = spec or run_spec(max_tokens=400)
    rules = rules_of(spec.head.echo, grants)
    head = replace(spec.head, grants=grants)
    return replace(spec, head=head, rules=rules, checker=Checker(rules, call_fields), **fields)


@cache
def result_ids(output: str, name: str = NAME) -> list[int]:
    """The message that tells the model what `f` returned."""
    return list(harmony().render_result(name, output))


@dataclass
class CountedTool:
    """`ran` are the arguments of each time that it was run, `resumed` the handles that were asked
    for; `known` is what the server has of these. `reached` is set when a call has come.
    """

    output: str = OUTPUT
    outcome: ToolOutcome = "ok"
    repeatable: bool = False
    failure: BaseException | None = None
    hangs: bool = False
    handle: bytes | None = None
    known: dict[bytes, ToolResult] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    ids_max: list[int | None] = field(default_factory=list)
    resumed: list[bytes] = field(default_factory=list)
    scopes: list[ToolScope] = field(default_factory=list)
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    was_cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, scope: ToolScope) -> CountedTool:
        self.scopes.append(scope)
        return self

    def start(self, call: ToolCall) -> ToolStart:
        return ToolStart(self.repeatable)

    async def run(self, call: ToolCall, on_handle: Callable[[bytes], None]) -> ToolResult:
        self.ran.append(call.arguments)
        self.attempts.append(call.attempt)
        self.ids_max.append(call.ids_max)
        if self.handle is not None:
            on_handle(self.handle)
        self.reached.set()
        if self.hangs:
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.was_cancelled.set()
                raise
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return ToolResult(self.output, self.outcome, shown={"output": self.output})

    async def resume(self, call: ToolCall, handle: bytes) -> ToolResult | None:
        self.resumed.append(handle)
        return self.known.get(handle)

    async def close(self) -> None:
        self.closed.set()


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
