"""(m) A call that the gateway runs itself: what it costs without the tool.

In this process, and without a socket: an answer alone, and the same behind a call whose result has
`WORDS` words. What is added are the ids of the call, its entries and events, the executor's bounds,
the result made to ids, and another turn.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING, Final

from gateway.generation import Sampling
from gateway.telemetry.metrics import Metrics
from gateway.tools.tool_executor import ToolExecutor, ToolLimits
from tests.fakes.following import collected
from tests.fakes.hosted_tools import CALL, CountedTool, granted
from tests.fakes.staged_run import ANSWER, ScriptedTokens, Stage, says
from tests.fakes.threads import THREADS
from tests.load.figures import Column, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gateway.tools.tool_contract import HostedTools, ToolKind
    from tests.load.figures import Figures
    from tests.load.stack import Stack

ANSWERED: Final = "answer"
CALLED: Final = "call, result, answer"
WORDS: Final = 500
RUNS: Final = 500
QUICK_RUNS: Final = 100
WARM_UP_RUNS: Final = 20
SPEC: Final = replace(granted(), sampling=Sampling(max_tokens=10 * WORDS))
_TEXT: Final = "the lamp of the northern light can be seen for some twenty miles in clear air"
OUTPUT: Final = " ".join(islice(cycle(_TEXT.split()), WORDS))
METRICS: Final = Metrics()


class HostedTurn:
    """Nothing leaves the process, so that there is no row of another system."""

    letter = "m"
    title = f"a hosted call with a result of {WORDS} words, in process, without the tool"
    is_quick = False
    columns = (
        Column("CPU ms/response", "cpu_ms_per_response", 2),
        Column("added ms", "cpu_ms_per_response", 2, "above", ANSWERED),
    )
    targets = (
        Target(CALLED, "CPU ms that a call adds", "cpu_ms_per_response", 2.0, "above", ANSWERED),
    )

    def rows(self, stack: Stack) -> Sequence[str]:
        return (ANSWERED, CALLED)

    @contextmanager
    def opened(self, stack: Stack, *, quick: bool) -> Iterator[Callable[[str], Figures]]:
        runs = QUICK_RUNS if quick else RUNS

        def measure(row: str) -> Figures:
            asyncio.run(_play(row, WARM_UP_RUNS))
            began = time.process_time()
            asyncio.run(_play(row, runs))
            return {"cpu_ms_per_response": (time.process_time() - began) * 1000 / runs}

        yield measure


async def _play(row: str, runs: int) -> None:
    rooms: dict[ToolKind, HostedTools] = {"mcp": CountedTool(output=OUTPUT)}
    executor = ToolExecutor(rooms, ToolLimits(), threads=THREADS, metrics=METRICS)
    for _ in range(runs):
        turns = [says(ANSWER)] if row == ANSWERED else [says(CALL), says(ANSWER)]
        stage = Stage(ScriptedTokens(turns), spec=SPEC, tools=executor.session, metrics=METRICS)
        await asyncio.gather(stage.run(), collected(stage.live.stream))
        assert stage.text, "the answer came"
