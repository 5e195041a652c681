"""Logs in the language of `toy_parser` in which the gateway answers calls itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, get_args

import orjson
from hypothesis import strategies as st

from gateway.constraints.output_rules import OutputRules, ToolRule
from gateway.entries import (
    Alive,
    Hop,
    Tokens,
    ToolEnded,
    ToolHandle,
    ToolOutcome,
    ToolsListed,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from gateway.eventlog.fold.hosted_calls import NOTHING_RAN
from gateway.generation import FinishReason, SegmentKind
from gateway.protocol.grants import (
    ApprovedCall,
    BrowserGrant,
    Grants,
    PythonGrant,
    ServerGrant,
    ShownPage,
    ToolBudget,
)
from tests.fakes.toy_logs import (
    ALIVE,
    ANSWER,
    BREAK,
    CODES,
    COMPACTED,
    ENDINGS,
    HOP,
    LENGTH,
    REPAIR,
    STOP,
    TOOL_RULES,
    Writer,
    steer,
)
from tests.fakes.toy_parser import (
    COMMENTARY,
    END,
    FINAL,
    RETURN,
    SAYING,
    SAYINGS,
    TEXT,
    TOOL_CALL,
    TOOLS,
    call,
    say,
)

if TYPE_CHECKING:
    from gateway.entries import Entry, Finished
    from gateway.eventlog.fold.hosted_calls import UnansweredCall

_HOSTED: Final = (
    ToolRule("builtin:browser.search", SegmentKind.WEB_SEARCH_CALL, "browser.search"),
    ToolRule("builtin:browser.open", SegmentKind.WEB_SEARCH_CALL, "browser.open"),
    ToolRule("builtin:python", SegmentKind.CODE_INTERPRETER_CALL, "python"),
    ToolRule("srv.add", SegmentKind.MCP_CALL, "add", "srv"),
    ToolRule("srv.ask", SegmentKind.MCP_APPROVAL_REQUEST, "ask", "srv"),
)
HOSTED: Final = {rule.name: rule for rule in _HOSTED}
_RULES: Final = {**TOOL_RULES, **HOSTED}
_ALLOWED: Final = frozenset(_RULES) - {"barred"}
TOOL_SETS: Final = (
    OutputRules(_RULES, _ALLOWED, summary="detailed"),
    OutputRules(_RULES, _ALLOWED, calls="required", open_calls=False),
    OutputRules(_RULES, _ALLOWED, one_call=True, stop=("stop", "\n\n")),
    OutputRules(_RULES, _ALLOWED, answer=ANSWER),
    OutputRules(HOSTED, frozenset(HOSTED), calls="required"),
)
"""Demands with hosted tools of every kind."""

PAGES: Final = (
    ShownPage(0, "k0", "search", "", "what"),
    ShownPage(1, "k1", "page", "https://a.example/one (1)", "The [one]\n page"),
    ShownPage(2, "k2", "find", "", "find", of=1),
)
FILES: Final = {"/mnt/data/a.csv": "cfile_1", "/mnt/data/a.csv.gz": "cfile_2"}
SERVER: Final = ServerGrant("srv", "https://mcp.example/", tools=())
GRANTS: Final = Grants(
    browser=BrowserGrant("web_search", pages=PAGES),
    python=PythonGrant("cntr_1", "linux", 1 << 30),
    servers=(SERVER,),
)
APPROVED: Final = ApprovedCall("mcpr_1", "srv.ask", '{"a":1}')
INCLUDED: Final = ("web_search_call.action.sources", "code_interpreter_call.outputs")
GRANT_SETS: Final = (
    GRANTS,
    Grants(GRANTS.browser, GRANTS.python, GRANTS.servers, APPROVED, include=INCLUDED),
    Grants(GRANTS.browser, budget=ToolBudget(calls_max=2, failures_max=1)),
    Grants(python=GRANTS.python, servers=(SERVER,), approved=APPROVED),
    Grants(GRANTS.browser, GRANTS.python, GRANTS.servers, budget=ToolBudget(calls_max=0)),
)
LISTED: Final = ToolsListed("srv", b'[{"name":"add","input_schema":{"type":"object"}}]')
NOT_LISTED: Final = ToolsListed("away", error=b'"The server is away."')
_LISTINGS: Final[tuple[tuple[Entry, ...], ...]] = ((), (LISTED,), (COMPACTED, LISTED, NOT_LISTED))
_OUTCOMES: Final[tuple[ToolOutcome, ...]] = (*("ok",) * 5, *get_args(ToolOutcome))
_MARKS: Final = tuple(say(mark) for mark in ("【", "†", "】", "1", "2"))
_CITED: Final = tuple(say(text) for text in ("【1†L2-L3】", "【0†", "x【2†a】y"))
_SPELLED: Final = (*_MARKS[:1], *_MARKS[3:4], *_MARKS[1:2], *_MARKS[3:4], *_MARKS[2:3])
_PHRASES: Final = (
    *((call(name), TEXT, TEXT + 2, END, STOP) for name in HOSTED),
    *((call(name), END, STOP) for name in HOSTED),
    *((BREAK, call(name), TEXT, LENGTH) for name in HOSTED),
    *((call(name), TEXT, END, FINAL, TEXT, STOP) for name in HOSTED),
    (call("builtin:python"), say('{"code'), BREAK, say('": "'), say('p()"'), say("}"), END, STOP),
    (call("builtin:python"), say('{"code": "1\\n"}'), STOP),
    *((kind, TEXT, *_SPELLED, TEXT + 1) for kind in (FINAL, COMMENTARY)),
    *((FINAL, TEXT + 7, mark, BREAK, mark) for mark in _CITED),
    (FINAL, say("{"), *_CITED, END),
    (FINAL, say("sandbox:"), say("/mnt/da"), say("ta/a"), BREAK, say(".csv"), say(".gz "), END),
    (FINAL, say("/mnt/data/a.csv"), *_CITED[:1], say("/mnt/da"), say("ta/a"), say(".csv"), TEXT),
    *((mark,) for mark in (*_MARKS, *_CITED)),
    *((code,) for code in (BREAK, ALIVE, HOP, STOP, END, RETURN, TEXT, TEXT + 7, FINAL)),
    *((TOOL_CALL + at,) for at in range(len(TOOLS))),
    *((SAYING + at,) for at in range(len(SAYINGS))),
    *((code,) for code in range(REPAIR + 1)),
)


@dataclass(frozen=True)
class Case:
    """What a log is folded with, and the log."""

    rules: OutputRules
    grants: Grants
    log: list[Entry]


def hosted_cases() -> st.SearchStrategy[Case]:
    """Logs with listings, approved calls, and calls that the gateway answered in every way, or
    left unanswered at the end.
    """
    return st.builds(
        _write,
        (_phrases(min_size=8, max_size=24) | _phrases(min_size=0, max_size=4)),
        st.sampled_from(ENDINGS),
        st.sampled_from(TOOL_SETS),
        st.sampled_from(GRANT_SETS),
        st.sampled_from(_LISTINGS),
        st.booleans(),
    )


def _phrases(*, min_size: int, max_size: int) -> st.SearchStrategy[list[int]]:
    drawn = st.lists(st.sampled_from(_PHRASES), min_size=min_size, max_size=max_size)
    return drawn.map(lambda said: [BREAK, *(code for phrase in said for code in phrase)])


def _write(
    codes: list[int],
    ending: Finished,
    rules: OutputRules,
    grants: Grants,
    listings: tuple[Entry, ...],
    tells_logprobs: bool,
) -> Case:
    writer = Writer(rules, grants, tells_logprobs=tells_logprobs)
    for entry in listings:
        writer.add(entry)
    in_turn, ids = False, list[int]()
    for code in codes:
        if code not in CODES:
            ids.append(code)
        elif code == ALIVE:
            writer.add(Alive())
        elif code == HOP:
            writer.add(Hop("backend" if in_turn else "replica", 7))
        elif in_turn:
            writer.say(ids)
            in_turn = steer(writer, code, len(ids))
            ids = []
        else:
            _answer(writer, code - BREAK + 7 * len(ids))
            if writer.fold.hosted.call is not None or writer.fold.approval_request is not None:
                break
            writer.add(TurnStarted(4 * len(ids), tuple(ids)))
            ids, in_turn = [], True
    return Case(rules, grants, [*writer.log, ending])


def _answer(writer: Writer, seed: int) -> None:
    """The gateway answers the call that waits for it, if there is one; now and then not quite."""
    called = writer.fold.hosted.call
    if called is None:
        return
    outcome = _OUTCOMES[seed % len(_OUTCOMES)]
    if outcome not in NOTHING_RAN or seed % 2:
        for attempt in range(1 + seed % 3 // 2):
            writer.add(ToolStarted(called.ordinal, repeatable=True, shown=begun(called, attempt)))
        if seed % 3:
            writer.add(ToolHandle(called.ordinal, b"handle"))
        if seed % 11 == 10:
            return
    ids = (1006, *range(called.ordinal), 1007)
    shown, state = ended(called), state_of(called)
    writer.add(ToolEnded(called.ordinal, ids, outcome, shown, state))


def begun(called: UnansweredCall, attempt: int = 0) -> bytes:
    """What the item of a call shows from its beginning on."""
    if called.name.startswith("builtin:browser"):
        return orjson.dumps({"action": {"type": "search", "query": f"q{attempt}"}})
    return b"" if attempt else b'{"status":"never","id":"never"}'


def ended(called: UnansweredCall) -> bytes:
    """What the item of a call shows in the end."""
    shown: dict[str, Any] = {"output": "done"}
    if called.name.startswith("builtin:browser"):
        source = {"type": "url", "url": "https://a.example/"}
        shown = {"action": {"type": "search", "query": "q", "sources": [source]}}
    elif called.name == "builtin:python":
        shown = {"outputs": [{"type": "logs", "logs": "1\n"}]}
    return orjson.dumps(shown)


def state_of(called: UnansweredCall) -> bytes:
    """What later calls have to know of it."""
    if called.name == "builtin:python":
        return orjson.dumps({"container_id": "cntr_1", "files": FILES})
    if not called.name.startswith("builtin:browser"):
        return b""
    page = {"cursor": 3 + called.ordinal, "key": "k", "kind": "page", "title": ""}
    return orjson.dumps({"page": {**page, "url": f"https://b.example/{called.ordinal}"}})


def turn(*ids: int, finish: FinishReason = FinishReason.STOP) -> list[Entry]:
    """A turn that says this."""
    return [TurnStarted(3), Tokens(ids), TurnEnded(finish)]
