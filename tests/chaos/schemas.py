"""Backends die inside of structured output; whatever is completed must be what was asked for.

Half of the backends bind the model to grammars, half of them know none, so that streams go on from
one kind to the other. Answers and the arguments of strict functions are checked by another
validator than the product's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

import orjson
from jsonschema import Draft202012Validator, ValidationError

from tests.chaos.checker import COMMON, bodies
from tests.chaos.fleet import Build, fleet
from tests.chaos.history import Anomaly
from tests.chaos.load import Load, clients_of, judge, read_all
from tests.chaos.nemesis import Terms, schedule, unleashed
from tests.chaos.oracle import UNPACED
from tests.chaos.report import Report
from tests.fakes.random_schemas import random_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.chaos.checker import Evidence
    from tests.chaos.history import Transcript
    from tests.chaos.report import Form

FUNCTION: Final = "record"
OLD_VERSION: Final = "0.10.2"
"""Of a vLLM that knows no grammar for raw Harmony."""
WARM_UPS: Final = 3
"""Streams a backend before it all begins: the first grammar of a process takes seconds."""


@dataclass(frozen=True, slots=True)
class Task:
    """Fill in this schema: as the answer, or (`by_call`) as the arguments of a strict function.

    With a `drift` the model heeds no schema of itself: only a grammar holds it to one.
    """

    schema: dict[str, Any]
    by_call: bool
    tokens_per_s: int
    drift: str = ""

    @property
    def text(self) -> str:
        """The user's message."""
        pace = f" tokens_per_s={self.tokens_per_s}" if self.tokens_per_s else ""
        drift = f" drift={self.drift}" if self.drift else ""
        return f"[[sim think=4{pace}{drift}]]"

    @property
    def fields(self) -> dict[str, Any]:
        """What binds the output."""
        if not self.by_call:
            form = {"type": "json_schema", "name": "form", "strict": True, "schema": self.schema}
            return {"text": {"format": form}}
        schema = orjson.dumps(self.schema).decode()
        function = {
            "type": "function",
            "name": FUNCTION,
            # A tool is shown as types, which tell nothing of bounds and patterns.
            "description": f"Record it. The arguments must match this JSON Schema:\n{schema}",
            "parameters": self.schema,
            "strict": True,
        }
        return {"tools": [function], "tool_choice": "required"}


@dataclass(frozen=True, slots=True)
class Size:
    """What one form of the scenario is made of."""

    build: Build
    load: Load
    terms: Terms


def _build(replicas: int, backends: int) -> Build:
    return Build(
        replicas=replicas,
        backends=backends,
        own_backend_options={
            number: {"version": OLD_VERSION} for number in range(backends) if number % 2
        },
    )


SIZES: Final[Mapping[Form, Size]] = {
    "full": Size(
        _build(replicas=2, backends=4),
        Load(streams=1000, words=0, tokens_per_s=25, at_once=60, give_up_s=900),
        Terms(blows_per_member=40, peace_s=(1.0, 4.0), down_s=(0.3, 1.5)),
    ),
    "short": Size(
        _build(replicas=1, backends=2),
        Load(streams=24, words=0, tokens_per_s=25, at_once=24, give_up_s=60),
        Terms(blows_per_member=2, peace_s=(0.5, 1.2), down_s=(0.3, 0.6)),
    ),
}


async def run(form: Form, seed: int) -> Report:
    """Nothing that is completed fails its schema, and hardly anything fails."""
    size = SIZES[form]
    report = Report("schemas", form, seed)
    rng = Random(f"schemas {seed}")
    tasks = [
        Task(random_schema(rng), number % 2 == 1, size.load.tokens_per_s)
        for number in range(size.load.streams)
    ]
    first = [
        replace(task, tokens_per_s=UNPACED) for task in tasks[: WARM_UPS * size.build.backends]
    ]
    lanes = schedule(Random(f"nemesis {seed}"), size.terms, size.build.backends)
    async with fleet(size.build) as running:
        clients = clients_of(running, seed, size.load.give_up_s)
        await read_all(replace(size.load, kinds=("unstored",)), clients, first, seed)
        async with unleashed(lanes, running.backends) as dealt:
            transcripts = await read_all(size.load, clients, tasks, seed)
        report.numbers |= {"kills": dealt.kill, "freezes": dealt.freeze}
        report.anomalies += unended(transcripts)
        await judge(report, running, transcripts, rules={**COMMON, "valid": valid})
    report.numbers |= endings(transcripts)
    return report


def unended(transcripts: Sequence[Transcript]) -> list[Anomaly]:
    """Readers that never heard the end."""
    return [
        Anomaly("failure", one.response_id or "-", f"{len(one.connections)} connections, no end")
        for one in transcripts
        if not one.ended
    ]


def endings(transcripts: Sequence[Transcript]) -> dict[str, int]:
    """How many ended in which way: by status, and by code of the failure."""
    counts: dict[str, int] = {}
    for transcript in transcripts:
        response = (transcript.last_event or {}).get("response") or {}
        error = response.get("error") or {}
        name = f"told_{error.get('code') or response.get('status')}"
        counts[name] = counts.get(name, 0) + 1
    return counts


def valid(evidence: Evidence) -> Iterator[str]:
    """What is completed is what was asked for."""
    for transcript in evidence.transcripts:
        task = transcript.question
        assert isinstance(task, Task), "only these are bound"
        for body in bodies(evidence):
            if body["status"] == "completed":
                yield from _faults(task, body["output"])


def _faults(task: Task, output: Sequence[dict[str, Any]]) -> Iterator[str]:
    calls = [item for item in output if item["type"] == "function_call"]
    texts = [
        part["text"]
        for item in output
        if item["type"] == "message" and item["phase"] == "final_answer"
        for part in item["content"]
    ]
    written = [call["arguments"] for call in calls] if task.by_call else texts
    if len(written) != 1 or (task.by_call and texts) or (calls and not task.by_call):
        yield f"{len(calls)} calls and {len(texts)} answers"
    for text in written:
        try:
            Draft202012Validator(task.schema).validate(orjson.loads(text))
        except (orjson.JSONDecodeError, ValidationError) as error:
            yield f"{text[:200]!r} is completed, but: {str(error)[:200]}"
