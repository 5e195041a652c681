"""(i) A reader comes back to a finished response with a long log."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING, Final

import orjson

from tests.load import loading, replays
from tests.load.asking import asking
from tests.load.figures import Column, Target
from tests.load.processes import RunVoid
from tests.load.systems import BACKGROUND, SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.load.figures import Figures
    from tests.load.stack import Stack

TOKENS: Final = 10_000
TIMES, QUICK_TIMES = 30, 10
LIMIT_MS: Final = 25.0


@dataclass(frozen=True, slots=True)
class Form:
    """A row: how many entries a row of the log has, and where the reader goes on."""

    entries_a_row: int
    from_middle: bool


FORMS: Final = {
    "from the beginning": Form(1, from_middle=False),
    "from the middle": Form(1, from_middle=True),
    "beginning, 25 entries a row": Form(25, from_middle=False),
}


class Resume:
    """The time is that of the whole request: HTTP, the log read and folded, all events sent."""

    letter = "i"
    title = "resume of a finished response: 10,000 tokens, one id an entry"
    is_quick = True
    columns = (
        Column("to the last event p50 ms", "whole_p50_ms", 1),
        Column("p90", "whole_p90_ms", 1),
        Column("events", "events"),
        Column("KiB", "kib"),
        Column("CPU ms", "cpu_ms", 1),
        Column("PostgreSQL ms", "database_ms", 1),
    )
    targets = tuple(
        Target(row, "p50 ms to the last event", "whole_p50_ms", LIMIT_MS) for row in FORMS
    )

    def rows(self, stack: Stack) -> Sequence[str]:
        return list(FORMS) if BACKGROUND in stack.offered else []

    @contextmanager
    def opened(self, stack: Stack, *, quick: bool) -> Iterator[Callable[[str], Figures]]:
        child = stack.child(SYSTEMS[BACKGROUND])
        sizes = {form.entries_a_row for form in FORMS.values()}
        names = {size: replays.logged(stack, child, TOKENS, entries_a_row=size) for size in sizes}
        times = QUICK_TIMES if quick else TIMES
        yield lambda row: measure(stack, names[FORMS[row].entries_a_row], FORMS[row], times)


def measure(stack: Stack, name: str, form: Form, times: int) -> Figures:
    """ms from the request to the last byte. Raises `RunVoid` where the last event is none."""
    system = SYSTEMS[BACKGROUND]
    path = f"/v1/responses/{name}?stream=true&starting_after="
    with asking(stack.child(system).port, stack.key) as client:
        numbers = sequence_numbers(client.get(path + "0").body)
        after = numbers[len(numbers) // 2] if form.from_middle else 0
        answers, cpu_ms, database_ms = loading.charged(
            stack, system, lambda: [client.get(path + str(after)) for _ in range(times)]
        )
    found = sequence_numbers(answers[-1].body)
    if found[-1] != numbers[-1] or found[0] <= after:
        raise RunVoid(f"resumed after {after} of {numbers[-1]}, given {found[0]} to {found[-1]}")
    whole_ms = [answer.us / 1e3 for answer in answers]
    return {
        "whole_p50_ms": median(whole_ms),
        "whole_p90_ms": quantiles(whole_ms, n=10)[-1],
        "events": len(found),
        "kib": len(answers[-1].body) / 1024,
        "cpu_ms": cpu_ms / times,
        "database_ms": database_ms / times,
    }


def sequence_numbers(stream: bytes) -> list[int]:
    """Those of the events of a stream, in their order. Raises `RunVoid` if it did not complete."""
    lines = [line[6:] for line in stream.splitlines() if line.startswith(b"data: {")]
    events = [orjson.loads(line) for line in lines]
    if not events or events[-1]["type"] != "response.completed":
        raise RunVoid(f"a stream did not complete: {stream[-1000:]!r}")
    return [event["sequence_number"] for event in events]
