from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from gateway.admin.responses import REVEAL_S, Reveal
from gateway.api.query import integer
from gateway.console.page import Act, Download, Page
from gateway.errors import InvalidRequest
from gateway.eventlog.fold.execution import MESSAGE_PHASES, PHASES, spoken
from gateway.protocol.pages import PageParams
from gateway.protocol.request_errors import validated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.console.page import Call
    from gateway.protocol.admin_bodies import Json

PATH: Final = "/responses/{response_id}"
TABS: Final = {
    "tokens": "Tokens",
    "items": "Items",
    "events": "Events",
    "log": "Log",
    "request": "Request",
    "chain": "Chain",
    "raw": "Raw",
}
PROMPT: Final = "prompt"
"""Opened from the tab of the tokens."""
CORPUS: Final = "corpus"
"""A download."""
CONTENT_TABS: Final = frozenset({"tokens", "items", "events", "request", "raw", PROMPT, CORPUS})
"""Tabs of revealed responses only."""
MESSAGES_SHOWN: Final = 20
TOKENS_SHOWN: Final = 1024
EVENTS_SHOWN: Final = 200
ITEMS_SHOWN: Final = 100
_OF_ENDS: Final = frozenset({"output", "usage", "error", "incomplete_details"})
"""They do not repeat the request."""
WIDTH: Final = 1000
"""Width of the timeline, in units of its drawing."""
BAR_MIN: Final = 2.0
"""So that every bar can be seen."""
TICKS: Final = 5
_LANES: Final = {
    "phases": "Phases",
    "replicas": "Replicas",
    "attempts": "Backends",
    "messages": "Messages",
    "tools": "Tools",
    "commits": "Commits",
}


class Bar(NamedTuple):
    """Span as it is drawn; `tone` is its colour."""

    x: float
    width: float
    tone: str
    title: str
    name: str


class Lane(NamedTuple):
    label: str
    bars: Sequence[Bar]


class Total(NamedTuple):
    """Share of a phase in the whole time."""

    phase: str
    words: str
    duration: str
    share: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Drawn execution; `points` are hops and repairs."""

    lanes: Sequence[Lane]
    totals: Sequence[Total]
    points: Sequence[tuple[float, str]]
    ticks: Sequence[str]


@dataclass(frozen=True, slots=True)
class ResponseView:
    """`content` is that of the tab; None: not revealed, or none."""

    id: str
    record: Json
    execution: Json
    timeline: Timeline
    tab: str
    tabs: Mapping[str, str]
    may_read: bool
    reveal_s: int
    content: Any = None
    first: int = 0
    page_size: int = TOKENS_SHOWN

    @property
    def is_running(self) -> bool:
        return self.record["status"] in {"queued", "in_progress"}

    @property
    def may_end(self) -> bool:
        # A foreground response ends with its client.
        return self.is_running and self.record["durable"]

    @property
    def hides(self) -> bool:
        return self.tab in CONTENT_TABS and self.content is None


async def view(call: Call) -> ResponseView | Download:
    stored, response_id = call.services.operator.responses, call.path["response_id"]
    record = await stored.get(call.author, response_id)
    execution = await stored.execution(response_id)
    is_revealed = record["content"]["revealed_until"] is not None
    may_read = call.may("content.read")
    is_of_interest = is_revealed or any(one["kind"] == "repair" for one in execution["points"])
    tab = call.query.get("tab", "tokens" if is_of_interest and may_read else "log")
    if tab not in {*TABS, *CONTENT_TABS}:
        raise InvalidRequest("There is no such tab.", param="tab")
    after = integer(call.query, "after", minimum=-1)
    first = 0 if after is None else after + 1
    content = None
    if tab not in CONTENT_TABS or (is_revealed and may_read):
        content = await _content(call, tab, -1 if after is None else after)
    if tab == CORPUS and content is not None:
        return Download(
            f"{response_id}.jsonl", "application/jsonl", f"{orjson.dumps(content).decode()}\n"
        )
    return ResponseView(
        id=response_id,
        record=record,
        execution=execution,
        timeline=drawn(execution),
        tab=tab,
        tabs=TABS,
        may_read=may_read,
        reveal_s=REVEAL_S,
        content=content,
        first=first,
    )


async def _content(call: Call, tab: str, after: int) -> Any:
    stored, author = call.services.operator.responses, call.author
    response_id = call.path["response_id"]
    match tab:
        case "log":
            content: Any = await stored.log(response_id)
        case "chain":
            content = (await stored.chain(response_id))["data"]
        case "tokens":
            seen = integer(call.query, "seen", minimum=0)
            content = await stored.tokens(
                author, response_id, after=after, limit=TOKENS_SHOWN, seen=seen
            )
        case "prompt":
            content = await call.services.operator.replays.prompt(
                author, response_id, after=after, limit=MESSAGES_SHOWN
            )
        case "corpus":
            content = await call.services.operator.replays.corpus(author, response_id)
        case "events":
            content = await stored.events(author, response_id, after=after, limit=EVENTS_SHOWN)
            for one in content["data"]:
                one["text"] = _pretty(one["data"])
        case _:
            page = await stored.items(author, response_id, PageParams(limit=ITEMS_SHOWN))
            content = _of_body(tab, page)
    return content


def _of_body(tab: str, page: Json) -> Any:
    body = page["response"] or {}
    if tab == "items":
        outputs = body.get("output", ())
        return {"input": list(map(_item, page["input"])), "output": list(map(_item, outputs))}
    if tab == "request":
        body = {name: value for name, value in body.items() if name not in _OF_ENDS}
    return _pretty(body)


def _item(item: Json) -> Json:
    content = item.get("content") or item.get("summary") or []
    texts = [
        part.get("text") or part.get("refusal") for part in content if isinstance(part, dict)
    ] if isinstance(content, list) else [str(content)]  # fmt: skip
    names = (item.get("role"), item.get("phase"), item.get("name"), item.get("status"))
    return {
        "type": str(item.get("type", "message")),
        "names": [str(name) for name in names if name],
        "texts": [text for text in texts if text] or [_pretty(item)],
    }


def _pretty(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def drawn(execution: Json) -> Timeline:
    duration_ms = max(1, execution["duration_ms"])
    scale = WIDTH / duration_ms
    lanes = [
        Lane(label, [_bar(name, span, scale) for span in execution["lanes"][name]])
        for name, label in _LANES.items()
        if execution["lanes"][name]
    ]
    totals = [
        Total(one["phase"], one["words"], spoken(one["ms"]), _share(one["ms"] / duration_ms))
        for one in execution["totals"]
    ]
    points = [(point["at_ms"] * scale, _point_title(point)) for point in execution["points"]]
    steps = range(TICKS + 1) if execution["duration_ms"] else range(0)
    ticks = [spoken(duration_ms * step // TICKS) for step in steps]
    return Timeline(lanes, totals, points, ticks)


def _share(part: float) -> str:
    return "<1 %" if part < 0.005 else f"{part:.0%}".replace("%", " %")


def _bar(lane: str, span: Json, scale: float) -> Bar:
    name, begin_ms, end_ms = span["name"], span["begin_ms"], span["end_ms"]
    tone = {
        "phases": name,
        "messages": MESSAGE_PHASES.get(name, "calling"),
        "tools": "tool",
        "commits": "storing",
    }.get(lane, "lost" if span["outcome"] in {"left", "no answer", "taken over"} else "lane")
    words = PHASES.get(name, name) if lane == "phases" else name
    if lane == "tools":
        words = f"call {name}"
    details = [words, f"{spoken(begin_ms)} to {spoken(end_ms)}", spoken(end_ms - begin_ms)]
    if span["tokens"]:
        details.append(f"{span['tokens']} tokens")
    if span["outcome"]:
        details.append(span["outcome"])
    width = max(BAR_MIN, (end_ms - begin_ms) * scale)
    return Bar(min(begin_ms * scale, WIDTH - BAR_MIN), width, tone, " · ".join(details), words)


def _point_title(point: Json) -> str:
    words, tokens = {
        "hop": ("went on at another", "tokens read again"),
        "repair": ("was repaired by", "tokens taken back"),
    }[point["kind"]]
    return f"{words} {point['name']} · {spoken(point['at_ms'])} · {point['number']} {tokens}"


async def cancel(call: Call) -> str:
    response_id = call.path["response_id"]
    await call.services.operator.responses.cancel(call.author, response_id)
    return f"/responses/{response_id}"


async def reveal(call: Call) -> str:
    response_id = call.path["response_id"]
    body = validated(Reveal, {"reason": call.form.get("reason", "")})
    await call.services.operator.responses.reveal(call.author, response_id, body)
    tab = call.form.get("tab", "")
    return f"/responses/{response_id}?tab={tab if tab in TABS else 'tokens'}"


PAGE: Final = Page(
    path=PATH,
    title="Response",
    template="response.html",
    permission="responses.read",
    view=view,
    acts=(
        Act(f"{PATH}/reveal", "content.read", reveal),
        Act(f"{PATH}/cancel", "responses.cancel", cancel),
    ),
    fragments=frozenset({"execution", "tokens", PROMPT}),
)
