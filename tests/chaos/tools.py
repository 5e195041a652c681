"""Responses call tools with effects, while replicas, backends, MCP servers and sandboxes die and
freeze.

Every call has an effect of its own name, a word in a file that is its own: of an MCP server, or of
the response's container. Whatever happens, no file has two of them; a call whose item is
`completed` has one. `run_unfenced` is the same with the fence torn out, where owners that wake up
call again: it must be noticed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

import orjson

from tests.chaos import sandboxes, takeovers
from tests.chaos.backends import Size
from tests.chaos.checker import COMMON, bodies
from tests.chaos.fleet import Build, fleet
from tests.chaos.history import Anomaly
from tests.chaos.load import SETTLE_S, Load, clients_of, judge, read_all
from tests.chaos.nemesis import Terms, schedule, unleashed
from tests.chaos.oracle import WORDS
from tests.chaos.report import Report
from tests.chaos.sandboxes import Sandboxes
from tests.chaos.schemas import endings, unended

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path
    from uuid import UUID

    from tests.chaos.checker import Evidence
    from tests.chaos.fleet import Fleet
    from tests.chaos.history import Transcript
    from tests.chaos.nemesis import Target
    from tests.chaos.report import Form

CALLS: Final = 3
_PLANS: Final = (("mcp", "python", "mcp"), ("python", "search", "mcp"), ("python", "mcp", "python"))
_UNFENCED_PLANS: Final = (("mcp", "mcp", "mcp"), ("mcp", "search", "mcp"))
"""The kinds of calls of a response, by turns. A search may be done twice."""
_CODE: Final = (
    "import time; file = open('/mnt/data/{name}', 'a'); file.write('x '); file.close(); "
    "time.sleep(0.3); print('{name}')"
)
"""It takes a while after its effect, in which it can be struck."""
_NAMED: Final = re.compile(r"/mnt/data/([^']+)'")
_TOOLS: Final[Mapping[str, Any]] = {
    "web": {"enabled": True, "public": False},
    "mcp": {
        "enabled": True,
        "url_networks": ["127.0.0.0/8"],
        "url_plain_http": True,
        "call_timeout_s": 4.0,
        "list_timeout_s": 4.0,
    },
    "python": {"enabled": True, "timeout_s": 4.0, "tenant_containers_max": 1000},
}
_BRIEF: Final = {"tools": _TOOLS, "background": {"lease_s": 1.0}}
_UNFENCED: Final = {
    **_BRIEF,
    "background": {"lease_s": 1.0, "attempts_max": 4},
    "upstream": {"stall_timeout_s": 60.0},
}

SIZES: Final[Mapping[Form, Size]] = {
    "full": Size(
        Build(replicas=3, backends=2, tool_servers=2, sections={"tools": _TOOLS}),
        Load(300, words=20, tokens_per_s=20, at_once=30, give_up_s=560, kinds=("background",)),
        Terms(blows_per_member=8, peace_s=(1.0, 6.0), down_s=(1.0, 6.0)),
    ),
    "short": Size(
        Build(replicas=2, backends=1, tool_servers=1, sections=_BRIEF),
        Load(12, words=10, tokens_per_s=25, at_once=12, give_up_s=90, kinds=("background",)),
        Terms(blows_per_member=2, peace_s=(0.6, 1.6), down_s=(0.8, 2.5)),
    ),
}
_SANDBOX_TERMS: Final[Mapping[Form, Terms]] = {
    "full": Terms(blows_per_member=60, peace_s=(0.2, 1.5), down_s=(0.2, 5.0)),
    "short": Terms(blows_per_member=6, peace_s=(0.2, 1.0), down_s=(0.2, 1.0)),
}
UNFENCED_SIZES: Final[Mapping[Form, Size]] = {
    "full": Size(
        Build(2, 1, "tests.chaos.unfenced", sections=_UNFENCED, tool_servers=2),
        Load(40, words=40, tokens_per_s=15, at_once=40, give_up_s=40, kinds=("background",)),
        Terms(2, peace_s=(0.5, 1.5), down_s=(4.0, 5.0), kinds=("freeze",)),
    ),
    "short": Size(
        Build(2, 1, "tests.chaos.unfenced", sections=_UNFENCED, tool_servers=2),
        Load(12, words=30, tokens_per_s=15, at_once=12, give_up_s=7, kinds=("background",)),
        Terms(1, peace_s=(0.5, 0.7), down_s=(2.4, 2.6), kinds=("freeze",)),
    ),
}


@dataclass(frozen=True, slots=True)
class Errand:
    """Make calls of these kinds and names, one after the other, at MCP servers by turns; then say
    words.
    """

    calls: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    urls: tuple[str, ...]
    tokens_per_s: int

    @property
    def effects(self) -> list[str]:
        """The names of what is to be done once, in order."""
        return [name for kind, name in self.calls if kind != "search"]

    @property
    def text(self) -> str:
        """The user's message."""
        steps = [self._step(number) for number in range(len(self.calls))]
        said = "; ".join([*steps, f"say {' '.join(self.words)}"])
        return f"[[sim think=4 tokens_per_s={self.tokens_per_s} steps={said}]]"

    def _step(self, number: int) -> str:
        kind, name = self.calls[number]
        match kind:
            case "python":
                return f"python {_CODE.format(name=name)}"
            case "search":
                return f"search {self.words[0]}"
            case _:
                label = _label(number % len(self.urls))
                return f"mcp {label}.book {orjson.dumps({'name': name}).decode()}"

    @property
    def fields(self) -> dict[str, Any]:
        """The servers."""
        return {
            "include": ["code_interpreter_call.outputs"],
            "tools": [
                {"type": "web_search"},
                {"type": "code_interpreter", "container": {"type": "auto"}},
                *(
                    {
                        "type": "mcp",
                        "server_label": _label(number),
                        "server_url": f"{url}/mcp",
                        "require_approval": "never",
                    }
                    for number, url in enumerate(self.urls)
                ),
            ],
        }


def _label(number: int) -> str:
    return f"shop{number}"


async def run(form: Form, seed: int) -> Report:
    """No effect twice, nothing lost or doubled of what readers saw, and every response ends."""
    report = Report("tools", form, seed)
    await _trial(report, SIZES[form])
    return report


async def run_unfenced(form: Form, seed: int) -> Report:
    """Frozen owners wake up and go on: the checker sees it."""
    report = Report("unfenced_tools", form, seed, must_fail=True)
    await _trial(report, UNFENCED_SIZES[form])
    return report


async def _trial(report: Report, size: Size) -> None:
    rng = Random(f"errands {report.seed}")
    async with fleet(size.build) as running:
        await takeovers.install(running.database.url)
        plans = _UNFENCED_PLANS if report.must_fail else _PLANS
        errands = [
            _errand(rng, number, size.load, running, plans) for number in range(size.load.streams)
        ]
        clients = clients_of(running, report.seed, size.load.give_up_s)
        struck = [Sandboxes(replica) for replica in running.replicas]
        rng = Random(f"nemesis {report.seed}")
        members: list[Target] = [*running.replicas]
        if not report.must_fail:
            members += [*running.backends, *running.tool_servers]
        lanes = schedule(rng, size.terms, len(members))
        if not report.must_fail:
            members += struck
            lanes += schedule(rng, _SANDBOX_TERMS[report.form], len(struck))
        async with unleashed(lanes, members) as dealt:
            transcripts = await read_all(size.load, clients, errands, report.seed)
        report.numbers |= {"kills": dealt.kill, "freezes": dealt.freeze}
        if not report.must_fail:
            report.anomalies += unended(transcripts)
        settle_s = 2.0 if report.must_fail else SETTLE_S
        rules = {**COMMON, "told": told}
        await judge(report, running, transcripts, settle_s=settle_s, rules=rules)
        noted = await takeovers.noted(running.database.url)
        folder = running.tool_servers[0].folder
        report.anomalies += doubled(folder)
        inside = await sandboxes.effects(running.database.url)
        report.anomalies += sandboxes.doubled(inside)
        kept = {path.rpartition("/")[2] for _, path in inside}
        report.anomalies += unmade(effects(folder), kept, transcripts)
        report.numbers |= _counts(folder, inside, transcripts)
    report.numbers["sandbox_kills"] = sum(one.killed for one in struck)
    report.numbers["sandbox_freezes"] = sum(one.frozen for one in struck)
    report.numbers["takeovers"] = sum(not one.released for one in noted)
    report.numbers |= endings(transcripts)


def _errand(
    rng: Random, number: int, load: Load, running: Fleet, plans: Sequence[tuple[str, ...]]
) -> Errand:
    kinds = plans[number % len(plans)]
    return Errand(
        calls=tuple((kind, f"n{number}-{step}") for step, kind in enumerate(kinds)),
        words=tuple(rng.choices(WORDS, k=load.words)),
        urls=tuple(server.url for server in running.tool_servers),
        tokens_per_s=load.tokens_per_s,
    )


def told(evidence: Evidence) -> Iterator[str]:
    """A response that is completed made its calls in order, each once, and said its words.

    A server that could not be listed when it was created has no tools: nothing is called there.
    """
    for transcript in evidence.transcripts:
        errand = transcript.question
        assert isinstance(errand, Errand), "only these are asked"
        for body in bodies(evidence):
            if body["status"] == "completed":
                yield from _odd(errand, body["output"])


def _odd(errand: Errand, output: Sequence[dict[str, Any]]) -> Iterator[str]:
    calls = [item for item in output if item["type"] in _NAMES]
    named = [_NAMES[item["type"]](item) for item in calls]
    listed = all(not item.get("error") for item in output if item["type"] == "mcp_list_tools")
    texts = [
        part["text"]
        for item in output
        if item["type"] == "message" and item.get("phase") == "final_answer"
        for part in item["content"]
    ]
    if named != errand.effects[: len(named)]:
        yield f"calls {named}, not {errand.effects}"
    if any(item["status"] not in {"completed", "failed"} for item in calls):
        yield f"statuses {[item['status'] for item in calls]}"
    if listed and (len(named) < len(errand.effects) or texts != [" ".join(errand.words)]):
        withdrawn = sum(item["status"] == "failed" for item in calls)
        if not withdrawn:
            yield f"{len(named)} calls, and it said {texts}"


def effects(folder: Path) -> dict[str, int]:
    """How often each effect took place, by name."""
    return {path.name: len(path.read_text("utf-8").splitlines()) for path in folder.iterdir()}


def doubled(folder: Path) -> list[Anomaly]:
    """Effects that took place more than once."""
    return [
        Anomaly("effects", name, f"took place {count} times")
        for name, count in effects(folder).items()
        if count > 1
    ]


def unmade(
    booked: Mapping[str, int], kept: Collection[str], transcripts: Sequence[Transcript]
) -> list[Anomaly]:
    """Calls of which a client was told that they were completed, without an effect: a booking, or
    a file that is kept and a name that was printed.
    """
    return [
        Anomaly("effects", transcript.response_id or "-", f"{name} is told, and did not take place")
        for transcript in transcripts
        for item in _completed(transcript)
        if not _took_place(name := _NAMES[item["type"]](item), item, booked, kept)
    ]


def _took_place(
    name: str, item: dict[str, Any], booked: Mapping[str, int], kept: Collection[str]
) -> bool:
    if item["type"] == "mcp_call":
        return name in booked
    return name in kept and [one["logs"].strip() for one in item["outputs"]] == [name]


def _completed(transcript: Transcript) -> list[dict[str, Any]]:
    response = (transcript.last_event or {}).get("response") or {}
    return [
        item
        for item in response.get("output", ())
        if item["type"] in _NAMES and item["status"] == "completed"
    ]


def _name_in_code(item: dict[str, Any]) -> str:
    found = _NAMED.search(item["code"])
    return item["code"] if found is None else found[1]


def _name_in_arguments(item: dict[str, Any]) -> str:
    """Two writers at one log may spell what is no JSON, and names no effect."""
    try:
        return str(orjson.loads(item["arguments"])["name"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return str(item["arguments"])


_NAMES: Final[Mapping[str, Callable[[dict[str, Any]], str]]] = {
    "mcp_call": _name_in_arguments,
    "code_interpreter_call": _name_in_code,
}
"""What a call of each kind is to do, by the type of its item."""


def _counts(
    folder: Path, inside: Mapping[tuple[UUID, str], int], transcripts: Sequence[Transcript]
) -> dict[str, int]:
    completed = [item["type"] for one in transcripts for item in _completed(one)]
    return {
        "booked": len(effects(folder)),
        "files_kept": len(inside),
        "calls_completed": completed.count("mcp_call"),
        "runs_completed": completed.count("code_interpreter_call"),
    }
