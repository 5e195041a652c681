"""Calls that the gateway runs: what opens when, what is refused, and what is left for later."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway.constraints.output_rules import OutputRules
from gateway.entries import (
    Compacted,
    Finished,
    Queued,
    Tokens,
    ToolEnded,
    ToolHandle,
    ToolsListed,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from gateway.eventlog.fold.hosted_calls import KEPT_PAGES_MAX, NARROWED_MAX
from gateway.generation import FinishReason
from gateway.protocol.grants import BrowserGrant, Grants, PythonGrant, ShownPage, ToolBudget
from tests.fakes.event_grammar import check_stream
from tests.fakes.toy_logs import (
    ANSWER,
    COMPACTED,
    ENDINGS,
    FRAMING,
    TOOL_RULES,
    apply_all,
    logprob_of,
    new_fold,
)
from tests.fakes.toy_parser import BROKEN, CALL, END, FINAL, TEXT, call, say
from tests.fakes.toy_tools import (
    APPROVED,
    GRANTS,
    HOSTED,
    INCLUDED,
    LISTED,
    NOT_LISTED,
    SERVER,
    turn,
)

if TYPE_CHECKING:
    from gateway.entries import Entry, ToolOutcome
    from gateway.eventlog.fold.fold import Fold
    from gateway.protocol.stream_events import Event

_TOOLS = {**TOOL_RULES, **HOSTED}
RULES = OutputRules(_TOOLS, frozenset(_TOOLS))
SEARCH, OPEN = call("builtin:browser.search"), call("builtin:browser.open")
PYTHON, ADD, ASK = call("builtin:python"), call("srv.add"), call("srv.ask")
A, B = TEXT, TEXT + 1
NO_ARGUMENTS = (say("{"), say("}"))
STARTED, ENDED = ToolStarted(0), ToolEnded(0, (7, 8))
COMPLETED = ENDINGS[0]


def fold_of(
    log: list[Entry], *, grants: Grants = GRANTS, rules: OutputRules = RULES
) -> tuple[Fold, list[Event]]:
    fold = new_fold(rules=rules, grants=grants)
    return fold, apply_all(fold, log)


def told(log: list[Entry], *, grants: Grants = GRANTS) -> list[str]:
    """The types of the events of a whole log, without those around all."""
    _, events = fold_of([*log, COMPLETED], grants=grants)
    types = check_stream(events).types()
    return [name.removeprefix("response.") for name in types[2:-1]]


def items(log: list[Entry], *, grants: Grants = GRANTS) -> list[dict[str, Any]]:
    _, events = fold_of([*log, COMPLETED], grants=grants)
    return [
        {name: value for name, value in item.items() if name != "id"}
        for item in check_stream(events).items
    ]


def run(ordinal: int = 0, outcome: ToolOutcome = "ok", shown: bytes = b"") -> list[Entry]:
    return [ToolStarted(ordinal), ToolEnded(ordinal, (7, 8), outcome, shown)]


def test_a_search_opens_when_it_begins_and_closes_with_its_result() -> None:
    shown = b'{"action":{"type":"search","query":"q"}}'
    log = [*turn(SEARCH, A, END), ToolStarted(0, shown=shown), ENDED]
    assert told(log) == [
        "output_item.added",
        "web_search_call.in_progress",
        "web_search_call.searching",
        "web_search_call.completed",
        "output_item.done",
    ]
    fold, _ = fold_of(log[:-2])
    assert (len(fold.shown.output), fold.response()["output"]) == (0, [])
    fold.apply(log[-2])
    [shown_now] = fold.response()["output"]
    assert shown_now["action"] == {"type": "search", "query": "q"}
    assert shown_now["status"] == "searching"


def test_the_code_streams_and_the_item_waits_for_the_result() -> None:
    assert told([*turn(PYTHON, A, B, END), STARTED, ENDED]) == [
        "output_item.added",
        "code_interpreter_call.in_progress",
        "code_interpreter_call_code.delta",
        "code_interpreter_call_code.done",
        "code_interpreter_call.interpreting",
        "code_interpreter_call.completed",
        "output_item.done",
    ]


@pytest.mark.parametrize(("outcome", "end"), [("ok", "completed"), ("tool_error", "failed")])
def test_arguments_stream_and_a_failure_has_an_event(outcome: ToolOutcome, end: str) -> None:
    assert told([*turn(ADD, A, END), *run(outcome=outcome)]) == [
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        f"mcp_call.{end}",
        "output_item.done",
    ]


@pytest.mark.parametrize("name", [SEARCH, PYTHON])
@pytest.mark.parametrize("outcome", ["timeout", "unknown", "transport_error"])
def test_what_failed_is_not_completed(name: int, outcome: ToolOutcome) -> None:
    log = [*turn(name, A, END), *run(outcome=outcome)]
    assert not any(kind.endswith("completed") for kind in told(log))
    assert items(log)[0]["status"] == "failed"


def test_the_items_in_the_end() -> None:
    log: list[Entry] = [
        *turn(SEARCH, A, END),
        *run(shown=b'{"action":{"type":"search","query":"q","sources":[]},"id":"no","type":1}'),
        *turn(PYTHON, A, END),
        *run(1, shown=b'{"outputs":[{"type":"logs","logs":"1"}],"status":"no"}'),
        *turn(ADD, A, END),
        *run(2, shown=b'{"output":"done"}'),
        *turn(FINAL, A, END),
    ]
    search, python, mcp, _ = items(log)
    assert search == {
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    assert python == {
        "type": "code_interpreter_call",
        "status": "completed",
        "container_id": "cntr_1",
        "code": "a",
        "outputs": None,
    }
    assert mcp == {
        "type": "mcp_call",
        "status": "completed",
        "approval_request_id": None,
        "server_label": "srv",
        "name": "add",
        "arguments": "a",
        "output": "done",
        "error": None,
    }
    search, python, *_ = items(log, grants=replace(GRANTS, include=INCLUDED))
    assert search["action"] == {"type": "search", "query": "q", "sources": []}
    assert python["outputs"] == [{"type": "logs", "logs": "1"}]


def test_wrapped_code_comes_out_in_one_delta() -> None:
    ids = (PYTHON, say('{"code'), say('": "'), say('p()"'), say("}"), END)
    fold, events = fold_of([*turn(*ids), *run(), COMPLETED])
    deltas = [orjson.loads(one.data)["delta"] for one in events if one.type.endswith("code.delta")]
    assert deltas == ["p()"]
    assert check_stream(events).items[0]["code"] == "p()"
    fold, _ = fold_of(turn(*ids))
    assert fold.hosted.call is not None
    assert fold.hosted.call.arguments == "p()"


def test_servers_tell_their_tools_before_the_first_turn() -> None:
    log: list[Entry] = [LISTED, NOT_LISTED, *turn(FINAL, A, END)]
    assert told(log)[:8] == [
        *("output_item.added", "mcp_list_tools.in_progress"),
        *("mcp_list_tools.completed", "output_item.done"),
        *("output_item.added", "mcp_list_tools.in_progress"),
        *("mcp_list_tools.failed", "output_item.done"),
    ]
    listed, missing, _ = items(log)
    assert listed == {
        "type": "mcp_list_tools",
        "server_label": "srv",
        "tools": [{"name": "add", "input_schema": {"type": "object"}}],
    }
    assert (missing["tools"], missing["error"]) == ([], "The server is away.")
    fold, _ = fold_of(log)
    assert fold.listed == 2
    assert [item.ids for item in fold.items()][:2] == [(), ()]


def test_a_question_is_whole_and_the_response_ends_with_it() -> None:
    log = turn(ASK, *NO_ARGUMENTS, END)
    assert told(log) == ["output_item.added", "output_item.done"]
    fold, _ = fold_of(log)
    asked = fold.approval_request
    assert asked is not None
    [item] = fold.response()["output"]
    assert item == {
        "id": asked.request_id,
        "type": "mcp_approval_request",
        "server_label": "srv",
        "name": "ask",
        "arguments": "{}",
    }
    assert (asked.name, asked.arguments) == ("srv.ask", "{}")
    assert asked.request_id.startswith("mcpr_")
    assert fold.hosted.call is None
    assert fold.shown.is_visible
    assert fold.called
    [rendered] = fold.items()
    assert rendered.ids == (*FRAMING.opening, ASK, *NO_ARGUMENTS, END)


def test_a_question_that_nobody_can_read_is_a_call_that_fails() -> None:
    fold, _ = fold_of(turn(ASK, A, END))
    assert fold.approval_request is None
    assert fold.hosted.call is not None
    assert (fold.hosted.call.name, fold.hosted.call.arguments) == ("srv.ask", "a")
    [item] = items([*turn(ASK, A, END), ToolEnded(0, (1,), "refused")])
    assert (item["type"], item["status"], item["arguments"]) == ("mcp_call", "failed", "a")


def test_a_tool_is_shown_under_the_name_that_its_server_gave_it() -> None:
    renamed = replace(HOSTED["srv.add"], namespace="a server", shown_name="add/one")
    rules = replace(RULES, tools={**_TOOLS, "srv.add": renamed})
    fold, _ = fold_of(turn(ADD, A, END), rules=rules)
    [item] = fold.response()["output"]
    assert (item["server_label"], item["name"]) == ("a server", "add/one")


def test_an_approved_call_of_what_is_no_tool_any_more_is_shown_all_the_same() -> None:
    for rules in (OutputRules({}, frozenset()), replace(RULES, tools=TOOL_RULES)):
        approved = replace(APPROVED, name="f")
        for call_, label in ((APPROVED, "srv"), (approved, "f")):
            grants = replace(GRANTS, approved=call_)
            fold, _ = fold_of([STARTED], grants=grants, rules=rules)
            assert fold.response()["output"][0]["server_label"] == label


def test_a_question_that_was_cut_off_is_none() -> None:
    fold, _ = fold_of(turn(ASK, A, finish=FinishReason.LENGTH))
    assert (fold.approval_request, fold.response()["output"]) == (None, [])


def test_the_approved_call_comes_before_the_first_turn() -> None:
    grants = replace(GRANTS, approved=APPROVED)
    fold, events = fold_of([ToolStarted(0)], grants=grants)
    assert fold.hosted.call is not None
    assert (fold.hosted.call.name, fold.hosted.call.arguments) == ("srv.ask", '{"a":1}')
    assert [event.type for event in events[2:]] == [
        "response.output_item.added",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
    ]
    fold.apply(ENDED)
    assert [fold.hosted.call, fold.approved_result, fold.hosted.results] == [None, (7, 8), 1]
    [item] = fold.items()
    assert (item.item["approval_request_id"], item.ids) == ("mcpr_1", (7, 8))
    apply_all(fold, turn(ADD, A, END))
    assert fold.hosted.call is not None
    assert fold.hosted.call.ordinal == 1
    apply_all(fold, run(1))
    assert fold.items()[1].item["approval_request_id"] is None


def test_an_approved_call_without_arguments_has_a_delta() -> None:
    approved = replace(APPROVED, arguments="")
    types = told([STARTED, ENDED], grants=replace(GRANTS, approved=approved))
    assert types.count("mcp_call_arguments.delta") == 1


def test_ids_of_an_item_are_those_of_call_and_result() -> None:
    fold, _ = fold_of([*turn(SEARCH, A, END), *run(), *turn(ADD, A, BROKEN), *run(1)])
    search, mcp = fold.items()
    assert search.ids == (*FRAMING.opening, SEARCH, A, END, 7, 8)
    assert mcp.ids is None, "it was not said like this"
    assert [shown.result for shown in fold.turns] == [(7, 8), (7, 8)]


def test_a_call_that_was_cut_off_is_incomplete_and_nobody_runs_it() -> None:
    for name, count in ((SEARCH, 0), (PYTHON, 1), (ADD, 1)):
        fold, events = fold_of(turn(name, A, finish=FinishReason.LENGTH))
        assert fold.hosted.call is None
        events += fold.apply(ENDINGS[1])
        assert [item["status"] for item in check_stream(events).items] == ["incomplete"] * count
        assert all(item.ids is None for item in fold.items())


def test_a_call_at_the_very_end_of_the_room_is_not_run() -> None:
    fold, _ = fold_of(turn(ADD, A, END, finish=FinishReason.LENGTH))
    assert fold.hosted.call is None


def test_an_incomplete_call_may_be_followed_by_more() -> None:
    log = [*turn(PYTHON, A, finish=FinishReason.CUT), *turn(FINAL, A, END)]
    assert [item["status"] for item in items(log)] == ["incomplete", "completed"]


@pytest.mark.parametrize("name", [SEARCH, PYTHON, ADD, ASK])
def test_what_follows_a_call_is_dropped(name: int) -> None:
    arguments = NO_ARGUMENTS if name == ASK else (A,)
    log = turn(name, *arguments, END, CALL, A, END, ADD, B, END, FINAL, A, END)
    fold, _ = fold_of(log)
    said = fold.hosted.call or fold.approval_request
    assert said is not None
    assert said.arguments == ("{}" if name == ASK else "a")
    assert [item.item["type"] for item in fold.items()] == ["mcp_approval_request"] * (name == ASK)


def test_a_call_behind_one_of_the_clients_is_dropped() -> None:
    for log in (
        turn(CALL, A, END, ADD, A, END, ASK, A, END),
        [*turn(CALL, A, END, finish=FinishReason.CUT), *turn(ADD, A, END)],
    ):
        fold, _ = fold_of(log)
        assert (fold.hosted.call, fold.approval_request) == (None, None)
        assert [item.item["type"] for item in fold.items()] == ["function_call"]


@pytest.mark.parametrize("name", [SEARCH, PYTHON, ADD, ASK])
def test_a_call_behind_an_answer_in_a_format_is_dropped(name: int) -> None:
    log = turn(FINAL, say("{"), say("}"), END, name, A, END)
    fold, _ = fold_of(log, rules=replace(RULES, answer=ANSWER))
    assert (fold.hosted.call, fold.approval_request) == (None, None)
    assert [item.item["type"] for item in fold.items()] == ["message"]


def test_the_state_of_a_running_call() -> None:
    fold, _ = fold_of(turn(ADD, A, END))
    assert (fold.hosted.attempts, fold.hosted.started, fold.hosted.handle) == (0, None, None)
    first = ToolStarted(0, repeatable=True)
    apply_all(fold, [first, ToolHandle(0, b"one"), ToolHandle(0, b"two")])
    assert (fold.hosted.attempts, fold.hosted.started, fold.hosted.handle) == (1, first, b"two")
    apply_all(fold, [STARTED])
    assert (fold.hosted.attempts, fold.hosted.started, fold.hosted.handle) == (2, STARTED, None)
    assert fold.hosted.call is not None
    apply_all(fold, [ENDED])
    assert [fold.hosted.attempts, fold.hosted.started, fold.hosted.call] == [0, None, None]


@pytest.mark.parametrize(("name", "status"), [(PYTHON, "interpreting"), (ADD, "calling")])
def test_an_item_shows_that_its_call_runs(name: int, status: str) -> None:
    fold, _ = fold_of(turn(name, A, END))
    assert [item["status"] for item in fold.response()["output"]] == ["in_progress"]
    apply_all(fold, [STARTED])
    assert [item["status"] for item in fold.response()["output"]] == [status]
    apply_all(fold, [ENDED])
    assert [item["status"] for item in fold.response()["output"]] == ["completed"]


def test_a_result_makes_nothing_visible() -> None:
    fold, _ = fold_of([*turn(ADD, A, END)])
    assert (fold.called, fold.shown.is_visible) == (True, True)
    apply_all(fold, run())
    assert (fold.called, fold.shown.is_visible) == (False, False)


def test_a_call_that_never_began_has_an_item_all_the_same() -> None:
    refused = ToolEnded(0, (7,), "refused", b'{"action":{"type":"open_page"}}')
    assert told([*turn(OPEN, A, END), refused]) == ["output_item.added", "output_item.done"]
    [item] = items([*turn(OPEN, A, END), refused])
    assert (item["status"], item["action"]) == ("failed", {"type": "open_page"})
    [item] = items([*turn(ADD, A, END), ToolEnded(0, (7,), "cancelled")])
    assert item["status"] == "incomplete"


APPROVED_GRANTS = replace(GRANTS, approved=APPROVED)


@pytest.mark.parametrize(
    ("log", "grants"),
    [
        pytest.param([STARTED], GRANTS, id="no turn"),
        pytest.param([*turn(ADD, END)[:2], STARTED], GRANTS, id="an open turn"),
        pytest.param([*turn(FINAL, A, END), STARTED], GRANTS, id="an answer"),
        pytest.param([*turn(CALL, A, END), STARTED], GRANTS, id="the client's call"),
        pytest.param([*turn(ASK, END), STARTED], GRANTS, id="a question"),
        pytest.param([*turn(ADD, END), ToolStarted(1)], GRANTS, id="another ordinal"),
        pytest.param([*turn(ADD, END), ENDED], GRANTS, id="no start"),
        pytest.param([*turn(ADD, END), ToolHandle(0, b"x")], GRANTS, id="a handle of nothing"),
        pytest.param([*turn(ADD, END), STARTED, ToolEnded(1, (1,))], GRANTS, id="another's end"),
        pytest.param([*turn(ADD, END), STARTED, ToolHandle(1, b"x")], GRANTS, id="its handle"),
        pytest.param([*turn(ADD, END), STARTED, STARTED], GRANTS, id="twice"),
        pytest.param([*turn(ADD, END), STARTED, ENDED, ENDED], GRANTS, id="two ends"),
        pytest.param([*turn(ADD, END), *run(), ToolStarted(1)], GRANTS, id="answered"),
        pytest.param([*turn(ADD, END), TurnStarted(1)], GRANTS, id="a turn without result"),
        pytest.param([*turn(ADD, END), STARTED, TurnStarted(1)], GRANTS, id="while it runs"),
        pytest.param([*turn(ASK, END), TurnStarted(1)], GRANTS, id="a turn behind a question"),
        pytest.param([TurnStarted(1)], APPROVED_GRANTS, id="a turn before what was approved"),
        pytest.param([ToolStarted(1)], APPROVED_GRANTS, id="another one than was approved"),
        pytest.param([LISTED, LISTED], GRANTS, id="listed twice"),
        pytest.param([TurnStarted(1), LISTED], GRANTS, id="listed in a turn"),
        pytest.param([STARTED, LISTED], APPROVED_GRANTS, id="listed while a tool runs"),
        pytest.param([STARTED, ENDED, LISTED], APPROVED_GRANTS, id="listed behind a result"),
        pytest.param([LISTED, COMPACTED], GRANTS, id="a compaction behind a listing"),
        pytest.param([STARTED, COMPACTED], APPROVED_GRANTS, id="a compaction while one runs"),
        pytest.param([ToolsListed("x", b"no")], GRANTS, id="a listing that is no JSON"),
        pytest.param([ToolsListed("x", error=b"no")], GRANTS, id="an error that is no JSON"),
        pytest.param([*turn(ADD, END), ToolStarted(0, shown=b"[]")], GRANTS, id="no object"),
        pytest.param([*turn(ADD, END), ToolStarted(0, shown=b"{")], GRANTS, id="no JSON"),
        pytest.param(
            [*turn(ADD, END), STARTED, ToolEnded(0, (1,), state=b"1")], GRANTS, id="a state"
        ),
        pytest.param(
            [*turn(ADD, END), STARTED, ToolEnded(0, (1,), state=b'{"page":{}}')],
            GRANTS,
            id="a page that is none",
        ),
        pytest.param([LISTED, COMPLETED, NOT_LISTED], GRANTS, id="listed behind the end"),
    ],
)
def test_what_cannot_stand_where_it_stands_changes_nothing(
    log: list[Entry], grants: Grants
) -> None:
    fold, _ = fold_of(log[:-1], grants=grants)
    before = (
        fold.response(),
        fold.items(),
        fold.hosted.call,
        fold.hosted.started,
        fold.hosted.results,
    )
    with pytest.raises(ValueError, match=r".+"):
        fold.apply(log[-1])
    after = (
        fold.response(),
        fold.items(),
        fold.hosted.call,
        fold.hosted.started,
        fold.hosted.results,
    )
    assert after == before
    if not fold.shown.is_finished:
        check_stream([*fold_of(log[:-1], grants=grants)[1], *fold.apply(ENDINGS[2])])


def test_what_was_queued_begins_with_what_is_run() -> None:
    for entry in (LISTED, STARTED):
        fold = new_fold(background=True, rules=RULES, grants=APPROVED_GRANTS)
        events = apply_all(fold, [Queued(), entry, ENDINGS[2]])
        assert check_stream(events).items


def failing(*outcomes: ToolOutcome, names: tuple[int, ...] = (ADD,)) -> list[Entry]:
    """Calls that end like this; the tools take turns."""
    return [
        entry
        for at, outcome in enumerate(outcomes)
        for entry in (*turn(names[at % len(names)], A, END), *run(at, outcome))
    ]


@pytest.mark.parametrize(
    ("outcomes", "gone"),
    [
        (("tool_error", "timeout"), set()),
        (("tool_error", "timeout", "unknown"), {"srv.add", "srv.ask"}),
        (("timeout", "timeout", "ok", "timeout"), set()),
        (("timeout", "refused", "timeout", "transport_error"), {"srv.add", "srv.ask"}),
        (("refused", "refused", "refused", "cancelled"), set()),
    ],
)
def test_what_fails_too_often_in_a_row_is_withdrawn(
    outcomes: tuple[ToolOutcome, ...], gone: set[str]
) -> None:
    fold, _ = fold_of(failing(*outcomes[:-1]))
    apply_all(fold, turn(ADD, A, END))
    assert fold.hosted.withdrawn_by(outcomes[-1]) == ("failures" if gone else None)
    apply_all(fold, run(len(outcomes) - 1, outcomes[-1]))
    assert RULES.allowed - fold.rules.allowed == gone
    assert fold.rules.tools == RULES.tools


def test_failures_are_counted_by_family() -> None:
    fold, _ = fold_of(failing(*("timeout",) * 4, names=(SEARCH, ADD)))
    assert fold.rules is RULES
    fold, _ = fold_of(failing(*("timeout",) * 3, names=(SEARCH, OPEN)))
    assert RULES.allowed - fold.rules.allowed == {"builtin:browser.search", "builtin:browser.open"}


HOSTED_NAMES = set(HOSTED)


@pytest.mark.parametrize("outcome", ["ok", "timeout"])
def test_after_so_many_calls_no_hosted_tool_is_allowed(outcome: ToolOutcome) -> None:
    grants = replace(GRANTS, budget=ToolBudget(calls_max=2))
    fold, _ = fold_of([*failing("ok"), *turn(ADD, A, END)], grants=grants)
    assert fold.rules is RULES
    assert fold.hosted.withdrawn_by(outcome) == "calls"
    apply_all(fold, run(1, outcome))
    assert RULES.allowed - fold.rules.allowed == HOSTED_NAMES


def test_over_budget_and_no_budget_withdraw_all() -> None:
    fold, _ = fold_of(failing("over_budget"))
    assert RULES.allowed - fold.rules.allowed == HOSTED_NAMES
    fold, _ = fold_of([], grants=replace(GRANTS, budget=ToolBudget(calls_max=0)))
    assert RULES.allowed - fold.rules.allowed == HOSTED_NAMES
    only = OutputRules(HOSTED, frozenset(HOSTED), calls="required")
    fold, _ = fold_of([], grants=replace(GRANTS, budget=ToolBudget(calls_max=0)), rules=only)
    assert (fold.rules.calls, fold.rules.allowed) == ("auto", frozenset())


def test_a_withdrawn_tool_is_held_off_like_any_other_that_may_not_be_called() -> None:
    grants = replace(GRANTS, budget=ToolBudget(calls_max=1))
    fold, _ = fold_of([*failing("ok"), *turn(ADD, A, END)[:2]], grants=grants)
    assert fold.violation is not None
    assert fold.violation.rule == "call_not_allowed"


def test_a_call_is_required_once_and_responses_share_what_is_derived() -> None:
    required = replace(RULES, calls="required")
    first, _ = fold_of(failing("ok"), rules=required)
    second, _ = fold_of(failing("timeout"), rules=required)
    assert first.rules.calls == "auto"
    assert first.rules is second.rules, "what is derived from them takes long"
    assert first.rules.derived is not required.derived


def test_only_the_first_narrowed_rules_are_kept() -> None:
    servers = [f"s{at}.f" for at in range(NARROWED_MAX + 1)]
    tools = {name: replace(HOSTED["srv.add"], name=name) for name in (*servers, "srv.add")}
    rules = OutputRules(tools, frozenset(tools))
    narrowed = []
    for round_ in range(2):
        for name in servers:
            grants = replace(GRANTS, approved=replace(APPROVED, name=name), budget=ONE_FAILURE)
            failed = ToolEnded(0, (7,), "timeout")
            fold, _ = fold_of([STARTED, failed, *turn(FINAL, A, END)], grants=grants, rules=rules)
            assert rules.allowed - fold.rules.allowed == {name}
            narrowed.append(fold.rules)
        assert len({id(one) for one in narrowed}) == NARROWED_MAX + 1 + round_


ONE_FAILURE = ToolBudget(failures_max=1)


def state(cursor: int) -> bytes:
    url = f"https://b.example/{cursor}"
    page = {"cursor": cursor, "key": "k", "kind": "page", "url": url, "title": "B"}
    return orjson.dumps({"page": page})


def test_states_are_kept_for_later_calls_and_responses() -> None:
    log: list[Entry] = []
    for ordinal in range(3):
        log += [*turn(OPEN, A, END), ToolStarted(ordinal)]
        log.append(ToolEnded(ordinal, (7,), state=state(3 + ordinal) if ordinal else b""))
    fold, _ = fold_of(log)
    assert fold.hosted.states == [orjson.loads(state(4)), orjson.loads(state(5))]
    kept = orjson.loads(fold.hosted.state_json() or b"")
    assert [page["cursor"] for page in kept["pages"]] == [0, 1, 2, 4, 5]
    assert kept["container_id"] == "cntr_1"


def test_files_that_python_wrote_can_be_cited() -> None:
    files = {"/mnt/data/a.csv": "cfile_1"}
    ended = ToolEnded(0, (7,), state=orjson.dumps({"files": files}))
    said = turn(FINAL, say("/mnt/data/a.csv"), END)
    fold, _ = fold_of([*turn(PYTHON, A, END), STARTED, ended, *said])
    message: dict[str, Any] = fold.response()["output"][1]
    (cited,) = message["content"][0]["annotations"]
    assert (cited["container_id"], cited["file_id"]) == ("cntr_1", "cfile_1")


def test_only_the_last_pages_are_kept() -> None:
    pages = tuple(
        ShownPage(at, "k", "page", "https://a.example", "") for at in range(KEPT_PAGES_MAX)
    )
    grants = Grants(BrowserGrant("web_search", pages=pages))
    ended = ToolEnded(0, (7,), state=state(KEPT_PAGES_MAX))
    fold, _ = fold_of([*turn(OPEN, A, END), STARTED, ended], grants=grants)
    kept = orjson.loads(fold.hosted.state_json() or b"")
    assert [page["cursor"] for page in kept["pages"]] == list(range(1, KEPT_PAGES_MAX + 1))
    assert "container_id" not in kept


def test_what_a_response_has_no_tool_for_goes_on_behind_it() -> None:
    page = ShownPage(9, "k", "page", "https://a.example", "A")
    unused = Grants(servers=(SERVER,), unused_pages=(page,), unused_container="cntr_9")
    kept = orjson.loads(fold_of([], grants=unused)[0].hosted.state_json() or b"")
    assert ([one["cursor"] for one in kept["pages"]], kept["container_id"]) == ([9], "cntr_9")
    computing = replace(unused, python=PythonGrant("cntr_1", "linux", 1), unused_container=None)
    kept = orjson.loads(fold_of([], grants=computing)[0].hosted.state_json() or b"")
    assert ([one["cursor"] for one in kept["pages"]], kept["container_id"]) == ([9], "cntr_1")


def test_pages_of_the_chain_are_cited_where_no_browser_is() -> None:
    page = ShownPage(1, "k", "page", "https://a.example", "A")
    log = [*turn(FINAL, say("【1†L2-L3】"), say("x【2†a】y"), END), COMPLETED]
    for grants in (Grants(), Grants(servers=(SERVER,))):
        cites = replace(grants, unused_pages=(page,), cites_unused=True)
        fold, events = fold_of(log, grants=cites)
        (part,) = check_stream(events).items[0]["content"]
        assert part["text"] == "([A](https://a.example))xy"
        assert [one["url"] for one in part["annotations"]] == ["https://a.example"]
        kept = orjson.loads(fold.hosted.state_json() or b"{}").get("pages", [])
        # Where nothing can be called, what goes on is what went on before.
        assert [one["cursor"] for one in kept] == ([1] if grants.has_tools else [])
    # Logs of before that was told are folded as they were.
    _, events = fold_of(log, grants=Grants(servers=(SERVER,), unused_pages=(page,)))
    (part,) = check_stream(events).items[0]["content"]
    assert part["text"] == "【1†L2-L3】x【2†a】y"


def test_without_pages_and_python_there_is_nothing_to_keep() -> None:
    for grants in (Grants(), Grants(servers=(SERVER,))):
        fold, _ = fold_of(failing("ok"), grants=grants)
        assert fold.hosted.state_json() is None
    assert new_fold(rules=RULES).hosted.state_json() is None


def test_searches_are_counted_and_pages_are_not() -> None:
    log = [*failing("ok", "ok", "timeout", names=(SEARCH, OPEN, SEARCH)), COMPLETED]
    _, events = fold_of(log)
    response = check_stream(events).response
    assert response["tool_usage"]["web_search"] == {"num_requests": 1}
    assert response["usage"]["output_tokens_details"]["tool_output_tokens"] == 6
    _, events = fold_of([*turn(FINAL, A, END), COMPLETED])
    assert "tool_usage" not in check_stream(events).response


def test_a_running_call_is_incomplete_where_the_response_ends() -> None:
    for ending in ENDINGS:
        _, events = fold_of([*turn(PYTHON, A, END), STARTED, ending])
        assert check_stream(events).items[0]["status"] == "incomplete"


def test_a_call_of_a_tool_of_which_no_grant_tells() -> None:
    fold = new_fold(rules=RULES)
    apply_all(fold, [*turn(PYTHON, A, END), *run(), Finished("cancelled", 1)])
    assert fold.items()[0].item["container_id"] == ""


def spoken(*ids: int) -> tuple[list[tuple[str, int]], int]:
    """The deltas of an answer with how many logprobs each has, and how many there are of all."""
    told = [Tokens((token,), (logprob_of(token),)) for token in (FINAL, *ids, END)]
    fold, events = fold_of([TurnStarted(3), *told, TurnEnded(FinishReason.STOP)])
    bodies = [orjson.loads(event.data) for event in events]
    deltas = [
        (body["delta"], len(body["logprobs"]))
        for body in bodies
        if body["type"] == "response.output_text.delta"
    ]
    part: dict[str, Any] = fold.response()["output"][0]["content"][0]
    return deltas, len(part["logprobs"])


def test_logprobs_of_a_marker_are_told_with_nothing() -> None:
    opening, one, dagger, closing = say("【"), say("1"), say("†"), say("】")
    link = "([The one page](https://a.example/one%20%281%29))"
    assert spoken(A, opening, one, dagger, closing, B) == ([("a", 1), (link, 0), ("b", 1)], 0)
    assert spoken(A, opening, one, B) == ([("a", 1), ("【1b", 3)], 4)
    assert spoken(A, opening, one) == ([("a", 1), ("【1", 2)], 3)
    # Of a citation that is of nothing nothing is left, so the text is spelled as it is.
    unknown = (opening, say("2"), say("2"), dagger, closing)
    assert spoken(A, *unknown, B) == ([("a", 1), ("b", 1)], 2)
    # A piece of a marker's id is text: nobody can tell how likely it was.
    assert spoken(A, say("x【2†a】y"), B) == (
        [("a", 1), ("x", 0), (link, 0), ("y", 0), ("b", 1)],
        0,
    )


def test_citations_of_nothing_are_counted() -> None:
    unknown = (say("【"), say("2"), say("2"), say("†"), say("】"))
    fold, _ = fold_of(turn(FINAL, A, *unknown, *unknown, say("【1†L2-L3】"), END))
    assert fold.recoveries == {"citation_unresolved": 2}


def test_an_answer_of_nothing_but_an_unknown_citation_is_none() -> None:
    fold, _ = fold_of(turn(FINAL, say("【0†"), say("】"), END))
    assert (len(fold.shown.output), fold.shown.is_visible) == (0, False)


def test_in_an_answer_in_a_format_markers_vanish() -> None:
    rules = replace(RULES, answer=ANSWER)
    log = turn(FINAL, say("{"), say("【1†L2-L3】"), say("}"), END)
    fold, _ = fold_of(log, rules=rules)
    part: dict[str, Any] = fold.response()["output"][0]["content"][0]
    assert (part["text"], part["annotations"]) == ("{}", [])
    refused = turn(FINAL, say("I'm"), say(" sorry"), say("【1†L2-L3】"), END)
    fold, _ = fold_of(refused, rules=rules)
    assert fold.response()["output"][0]["content"] == [{"type": "refusal", "refusal": "I'm sorry"}]


def test_without_a_browser_a_marker_is_text() -> None:
    grants = Grants(python=GRANTS.python)
    fold, _ = fold_of(turn(FINAL, say("【1†L2-L3】"), END), grants=grants)
    part: dict[str, Any] = fold.response()["output"][0]["content"][0]
    assert part["text"] == "【1†L2-L3】"


def test_a_compaction_stands_before_the_listings() -> None:
    fold, events = fold_of([COMPACTED, LISTED, COMPLETED])
    kinds = [item["type"] for item in check_stream(events).items]
    assert kinds == ["compaction", "mcp_list_tools"]
    assert fold.compacted == Compacted((1004, 1005), "sealed", 50, 20, 12, 4)
