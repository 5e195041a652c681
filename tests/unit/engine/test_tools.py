"""A call that the gateway answers itself: two turns, and a result between them."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from gateway.constraints.lark import are_translated
from gateway.constraints.output_rules import OutputRules, TextGrammar, ToolRule
from gateway.engine import tool_runner as hosted
from gateway.engine.engine import RunningCalls
from gateway.engine.output_guard import GuardLimits
from gateway.engine.runner import Run
from gateway.engine.tool_runner import (
    ATTEMPTS_MAX,
    BROKEN,
    CANCELLED,
    INTERRUPTED,
    NOTES,
    UNAVAILABLE,
    UNKNOWN,
    json_bytes,
)
from gateway.entries import (
    Alive,
    Hop,
    Tokens,
    ToolEnded,
    ToolHandle,
    ToolsListed,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    pack,
    portions,
    unpack,
)
from gateway.errors import ClaimLost, StoreUnavailable
from gateway.generation import SegmentKind
from gateway.models.harmony.tokenizer import FINAL_HEADER, OPENING
from gateway.protocol.grants import ApprovedCall, Grants, ToolBudget, approval_digest
from gateway.tools.tool_contract import ToolCall, ToolResult
from tests.fakes.event_grammar import check_stream
from tests.fakes.following import collected
from tests.fakes.guarded_run import repairs, vouched
from tests.fakes.harmony_script import script_ids
from tests.fakes.hosted_tools import (
    ARGUMENTS,
    ASK,
    CALL,
    GRANTS,
    NAME,
    OUTPUT,
    SERVER,
    Continuing,
    CountedTool,
    granted,
    result_ids,
)
from tests.fakes.staged_run import ANSWER, LENGTH, ScriptedTokens, Stage, folds, run_spec, says

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.concurrency import OnceEvent
    from gateway.engine.run_spec import RunSpec
    from gateway.entries import Entry
    from gateway.tenancy import TenantId
    from tests.fakes.staged_run import Step


SECOND_CALL = CALL.replace("Bern", "Basel")
THOUGHT = "<|channel|>analysis<|message|>Hm<|return|>"
PROMPT = run_spec().prompt_ids
DURABLE = granted(durable=True)


def stage(
    *turns: Sequence[Step], tool: CountedTool | None = None, spec: RunSpec | None = None, **how: Any
) -> Stage[ScriptedTokens]:
    return Stage(ScriptedTokens(turns), spec=spec or granted(), tools=tool, **how)


def asked_behind(output: str, call: str = CALL) -> list[int]:
    """The prompt of the turn behind a result."""
    return [*PROMPT, *script_ids(call), *result_ids(output), *OPENING]


def when_written(
    one: Stage[ScriptedTokens], kind: type[Entry], event: asyncio.Event
) -> asyncio.Event:
    """Set the event as soon as an entry of this kind is written."""
    write = one.journal.append

    def append(entry: Entry) -> None:
        write(entry)
        if isinstance(entry, kind):
            event.set()

    one.journal.append = append
    return event


def types(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def ended(entries: Sequence[Entry]) -> list[ToolEnded]:
    return [entry for entry in entries if isinstance(entry, ToolEnded)]


async def test_the_model_is_asked_again_behind_its_call_and_the_result() -> None:
    tool = CountedTool()
    one = stage(says(CALL), says(ANSWER), tool=tool)
    stream = check_stream(await one.play())
    assert tool.ran == [ARGUMENTS]
    prompts = [request.prompt_ids for request in one.tokens.requests]
    assert prompts == [PROMPT, asked_behind(OUTPUT)]
    call, answer = stream.items
    assert (call["type"], call["status"], call["output"]) == ("mcp_call", "completed", OUTPUT)
    assert answer["content"][0]["text"] == "Hello there"
    assert stream.response["status"] == "completed"
    await tool.closed.wait()


async def test_a_result_is_input_and_no_output() -> None:
    one = stage(says(CALL), says(ANSWER), tool=CountedTool())
    await one.play()
    usage = one.live.fold.usage
    assert usage.input_tokens == len(PROMPT) + len(asked_behind(OUTPUT))
    assert usage.output_tokens == len(script_ids(CALL)) + len(script_ids(ANSWER))
    assert usage.tool_output_tokens == len(result_ids(OUTPUT))
    assert usage.cached_tokens == 4


async def test_every_event_can_be_resumed_from_live_and_from_the_log() -> None:
    one = stage(says(CALL), says(ANSWER), tool=CountedTool())
    events = await one.play()
    packed = pack(one.journal.entries)
    assert unpack(packed) == one.journal.entries
    for after in range(-1, len(events)):
        kept = events[after + 1 :]
        assert await collected(partial(one.live.stream, after=after)) == kept
        fold = folds(one.spec.head, one.spec.rules)()
        replayed = [event for each in portions(packed) for event in fold.replay(each, after)]
        assert [event for event in replayed if event.sequence_number > after] == kept


async def test_calls_follow_each_other_in_one_session() -> None:
    tool = CountedTool()
    one = stage(says(CALL), says(SECOND_CALL), says(ANSWER), tool=tool)
    stream = check_stream(await one.play())
    assert tool.ran == [ARGUMENTS, '{"city": "Basel"}']
    assert types(stream.response) == ["mcp_call", "mcp_call", "message"]
    behind = [*script_ids(SECOND_CALL), *result_ids(OUTPUT), *OPENING]
    assert one.tokens.requests[2].prompt_ids == [*asked_behind(OUTPUT), *behind]
    [scope] = tool.scopes
    assert (scope.response, scope.result_ids) == (one.spec.head.uuid, 0)


async def test_operators_are_told_of_each_call_and_never_of_its_content() -> None:
    tool = CountedTool(outcome="tool_error")
    one = stage(says(CALL), says(ANSWER), tool=tool)
    await one.play()
    [attempt] = one.archive.audited
    assert (attempt.outcome, attempt.call.ordinal, attempt.call.attempt) == ("tool_error", 0, 1)
    assert (attempt.output_bytes, attempt.result_ids) == (len(OUTPUT), len(result_ids(OUTPUT)))
    assert len(attempt.arguments_hash) == 32
    exposed = one.metrics.exposition().decode()
    assert 'gateway_tool_calls_total{kind="mcp",outcome="tool_error"} 1.0' in exposed
    assert "Bern" not in exposed


async def test_a_call_that_the_gateway_may_not_make_is_the_clients() -> None:
    tool = CountedTool()
    foreign = CALL.replace("srv.f", "f")
    stream = check_stream(await stage(says(foreign), tool=tool).play())
    assert (types(stream.response), stream.response["status"]) == (["function_call"], "completed")
    assert not tool.ran


async def test_what_is_no_whole_call_is_not_run() -> None:
    tool = CountedTool()
    cut = CALL.removesuffix('"}<|call|>')
    one = stage(says(cut, LENGTH), tool=tool)
    assert check_stream(await one.play()).response["status"] == "incomplete"
    assert not tool.ran


@pytest.mark.parametrize(
    "failure", [RuntimeError("a secret"), asyncio.CancelledError(), TimeoutError()]
)
async def test_a_tool_that_breaks_tells_the_model_so(failure: BaseException) -> None:
    one = stage(says(CALL), says(ANSWER), tool=CountedTool(failure=failure))
    stream = check_stream(await one.play())
    assert stream.response["status"] == "completed"
    assert (stream.items[0]["type"], stream.items[0]["status"]) == ("mcp_call", "failed")
    assert one.tokens.requests[1].prompt_ids == asked_behind(BROKEN.output)
    assert [entry.outcome for entry in ended(one.journal.entries)] == ["transport_error"]


async def test_behind_the_result_of_a_call_that_was_required_none_is_required() -> None:
    required = replace(DURABLE, durable=False)
    rules = replace(required.rules, calls="required", open_calls=False)
    spec = replace(required, rules=rules)
    one = stage(vouched(CALL), vouched(ANSWER), tool=CountedTool(), spec=spec)
    stream = check_stream(await one.play())
    assert types(stream.response) == ["mcp_call", "message"]
    assert stream.response["status"] == "completed"
    bound, free = [request.constraint for request in one.tokens.requests]
    assert bound is not None
    assert bound != free
    assert not repairs(one)


@pytest.mark.parametrize(
    ("budget", "outcome", "reason"),
    [
        (ToolBudget(calls_max=1), "ok", "calls"),
        (ToolBudget(failures_max=1), "tool_error", "failures"),
        (ToolBudget(), "over_budget", "calls"),
    ],
)
async def test_the_model_is_told_when_there_were_enough_calls(
    budget: ToolBudget, outcome: Any, reason: str
) -> None:
    spec = granted(grants=replace(GRANTS, budget=budget))
    one = stage(says(CALL), says(ANSWER), tool=CountedTool(outcome=outcome), spec=spec)
    await one.play()
    assert one.tokens.requests[1].prompt_ids == asked_behind(OUTPUT + NOTES[reason])
    assert not one.live.fold.rules.allowed & {NAME}
    # Where a backend can be held to it, it is.
    assert one.tokens.requests[1].constraint is not None


async def test_silence_behind_a_result_is_followed_by_one_more_turn() -> None:
    one = stage(says(CALL), says(THOUGHT), says("So.<|return|>"), tool=CountedTool())
    stream = check_stream(await one.play())
    assert types(stream.response)[1:] == ["reasoning", "message"]
    assert one.live.fold.turns[2].input_tokens == 0, "the gateway asked once more by itself"


async def test_silence_behind_a_result_is_no_answer() -> None:
    one = stage(says(CALL), says(THOUGHT), says("<|return|>"), tool=CountedTool())
    stream = check_stream(await one.play())
    assert stream.response["status"] == "failed"


async def test_a_result_takes_room_in_the_window_and_none_of_what_may_be_said() -> None:
    said = len(script_ids(CALL)) + len(OPENING)
    for output, window, left in ((8, 1000, 8), (50, said + len(result_ids(OUTPUT)) + 5, 5)):
        spec = granted(run_spec(max_tokens=said + output), window_left=window)
        one = stage(says(CALL), says(ANSWER), tool=CountedTool(), spec=spec)
        response = check_stream(await one.play()).response
        assert one.tokens.requests[1].sampling.max_tokens == left
        assert response["status"] == "completed"


async def test_a_tool_is_told_how_long_its_result_may_be() -> None:
    said = len(script_ids(CALL))
    for window, most in ((100_000, 50_000), (400, 400 - said - 256), (100, 0), (None, None)):
        tool = CountedTool()
        spec = granted(run_spec(max_tokens=400), window_left=window)
        await stage(says(CALL), says(ANSWER), tool=tool, spec=spec).run()
        assert tool.ids_max == [most]


async def test_where_there_is_no_room_behind_a_result_the_response_ends() -> None:
    size = len(script_ids(CALL)) + len(result_ids(OUTPUT)) + len(OPENING)
    for window, max_tokens in ((size, 400), (None, size)):
        spec = granted(run_spec(max_tokens=max_tokens), window_left=window)
        one = stage(says(CALL), tool=CountedTool(), spec=spec)
        assert check_stream(await one.play()).response["status"] == "incomplete"


async def test_keep_alive_goes_on_while_a_tool_runs() -> None:
    tool = CountedTool(hangs=True)
    one = stage(says(CALL), says(ANSWER), tool=tool)
    one.run._engine = replace(one.engine, alive_interval_s=0.001)
    when_written(one, Alive, tool.go_on)
    await one.run()
    assert check_stream(await collected(one.live.stream)).response["status"] == "completed"


async def test_a_claim_that_is_lost_before_a_call_leaves_keeps_it_here() -> None:
    for where in ("commit", "lease"):
        tool = CountedTool()
        one = stage(says(CALL), tool=tool, spec=DURABLE)
        if where == "commit":
            one.journal.lost = ClaimLost()
        else:
            one.keeper.doubt = ClaimLost()
        await one.run()
        assert isinstance(one.journal.entries[-1], ToolStarted)
        assert one.live.handed_over
        assert not tool.ran


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_response_is_cancelled_while_a_tool_hangs(*, is_durable: bool) -> None:
    tool = CountedTool(hangs=True)
    spec = DURABLE if is_durable else granted()
    one = stage(says(CALL), tool=tool, spec=spec)
    async with asyncio.TaskGroup() as group:
        group.create_task(one.run())
        await tool.reached.wait()
        one.run.cancel()
    stream = check_stream(await collected(one.live.stream))
    assert stream.response["status"] == "cancelled"
    assert (stream.items[0]["type"], stream.items[0]["status"]) == ("mcp_call", "incomplete")
    [end] = ended(one.journal.entries)
    assert (end.outcome, end.ids) == ("cancelled", tuple(result_ids(CANCELLED.output)))
    # It learns of it, but nobody has waited for that.
    await tool.was_cancelled.wait()
    await tool.closed.wait()


async def test_a_tool_that_will_not_end_keeps_no_response_from_its_end() -> None:
    class Stubborn(CountedTool):
        @override
        async def run(self, call: Any, on_handle: Any) -> ToolResult:
            self.reached.set()
            while not self.go_on.is_set():
                try:
                    await self.go_on.wait()
                except asyncio.CancelledError:
                    self.was_cancelled.set()
            return ToolResult("late")

    tool = Stubborn()
    one = stage(says(CALL), tool=tool)
    async with asyncio.TaskGroup() as group:
        group.create_task(one.run())
        await tool.reached.wait()
        one.run.cancel()
    assert one.live.fold.shown.is_finished
    await tool.was_cancelled.wait()
    assert not tool.closed.is_set()
    tool.go_on.set()
    await tool.closed.wait()
    assert [entry.outcome for entry in ended(one.journal.entries)] == ["cancelled"]


async def test_a_run_that_is_abandoned_writes_no_end_of_its_call() -> None:
    tool = CountedTool(hangs=True)
    one = stage(says(CALL), tool=tool, spec=DURABLE)
    async with asyncio.TaskGroup() as group:
        group.create_task(one.run())
        await tool.reached.wait()
        one.run.abandon()
    assert not ended(one.journal.entries)
    assert one.live.handed_over
    await tool.was_cancelled.wait()


@pytest.mark.parametrize("is_draining", [False, True])
async def test_a_call_of_a_run_that_is_abandoned_is_audited(*, is_draining: bool) -> None:
    """It may have had an effect. One that another process resumes is audited there."""
    for handle in (None, b"execution 7"):
        tool = CountedTool(hangs=True, handle=handle)
        one = stage(says(CALL), tool=tool, spec=DURABLE)
        async with asyncio.TaskGroup() as group:
            group.create_task(one.run())
            await tool.reached.wait()
            one.engine.calls.is_draining = is_draining
            one.run.abandon()
        is_resumed = is_draining and handle is not None
        outcomes = [attempt.outcome for attempt in one.archive.audited]
        assert outcomes == ([] if is_resumed else ["cancelled"])


async def test_a_handle_is_written_as_soon_as_it_is_known_and_not_behind_the_end() -> None:
    tool = CountedTool(handle=b"execution 7", hangs=True)
    one = stage(says(CALL), says(ANSWER), tool=tool, spec=DURABLE)
    async with asyncio.TaskGroup() as group:
        group.create_task(one.run())
        await tool.reached.wait()
        assert one.journal.entries[-1] == ToolHandle(0, b"execution 7")
        tool.go_on.set()
    count = len(one.journal.entries)
    tool.handle = b"x" * 5000
    again = stage(says(CALL), says(ANSWER), tool=replace(tool, hangs=False), spec=DURABLE)
    await again.run()
    assert len(again.journal.entries) == count - 1, "what is too long is no handle"


async def test_nothing_is_begun_for_others_while_the_process_drains() -> None:
    tool = CountedTool()
    one = stage(says(CALL), tool=tool, spec=DURABLE)
    one.engine.calls.is_draining = True
    called = when_written(one, TurnEnded, asyncio.Event())
    async with asyncio.TaskGroup() as group:
        group.create_task(one.run())
        await called.wait()
        await asyncio.sleep(0)
        one.run.abandon()
    assert not tool.ran
    assert not any(isinstance(entry, ToolStarted) for entry in one.journal.entries)
    other = stage(says(CALL), says(ANSWER), tool=tool)
    other.engine.calls.is_draining = True
    await other.run()
    assert tool.ran, "a foreground response is nobody else's"


async def whole_log(tool: CountedTool) -> tuple[Stage[Continuing], list[Entry]]:
    """Of a response that nothing befell, without its end."""
    one = Stage(Continuing(), spec=DURABLE, tools=tool)
    await one.run()
    return one, one.journal.entries[:-1]


@pytest.mark.slow
@pytest.mark.parametrize("repeatable", [False, True])
async def test_another_replica_goes_on_wherever_the_first_one_died(*, repeatable: bool) -> None:
    first, log = await whole_log(CountedTool(repeatable=repeatable))
    whole = first.live.fold.response()
    for count in range(1, len(log) + 1):
        said = log[:count]
        effects = sum(isinstance(entry, ToolStarted) for entry in said)
        is_ended = bool(ended(said))
        tool = CountedTool(repeatable=repeatable)
        one = Stage(Continuing(), spec=first.spec, said=said, tools=tool)
        response = check_stream(await one.play()).response
        is_lost = effects and not is_ended and not repeatable
        output = UNKNOWN.output if is_lost else OUTPUT
        call = response["output"][0]
        assert call["status"] == ("failed" if is_lost else "completed")
        message = f"outcome unknown: {UNKNOWN.output}"
        lost = {"type": "http_error", "code": 0, "message": message} if is_lost else None
        assert call["error"] == lost
        assert len(tool.ran) == (not is_ended and not is_lost)
        assert tool.attempts == [effects + 1] * len(tool.ran)
        if not repeatable:
            assert effects + len(tool.ran) == 1, "the effect is had once"
        if not is_lost:
            assert response["output"] == whole["output"]
        assert response["status"] == "completed"
        assert one.live.fold.usage.output_tokens == whole["usage"]["output_tokens"]
        turns = [turn.input_tokens for turn in one.live.fold.turns]
        assert turns == [len(PROMPT), len(asked_behind(output))]


async def test_what_may_be_repeated_is_run_twice_at_most() -> None:
    first, log = await whole_log(CountedTool(repeatable=True))
    started = next(at for at, entry in enumerate(log) if isinstance(entry, ToolStarted)) + 1
    said = [*log[:started], *log[started - 1 : started] * (ATTEMPTS_MAX - 1)]
    tool = CountedTool(repeatable=True)
    one = Stage(Continuing(), spec=first.spec, said=said, tools=tool)
    await one.run()
    assert not tool.ran
    assert one.tokens.prompts == [asked_behind(INTERRUPTED.output)]


async def test_nobody_waits_for_a_call_that_is_resumed_in_vain() -> None:
    """A process that drains waits for what must not be run twice; here it is run again."""
    first, log = await whole_log(CountedTool(handle=b"7", repeatable=True))
    at = next(at for at, entry in enumerate(log) if isinstance(entry, ToolHandle)) + 1
    waited: list[OnceEvent | None] = []

    class Watched(CountedTool):
        @override
        async def resume(self, call: ToolCall, handle: bytes) -> ToolResult | None:
            waited.append(one.run.running_call)
            return await super().resume(call, handle)

    one = Stage(Continuing(), spec=first.spec, said=log[:at], tools=Watched(repeatable=True))
    await one.run()
    [event] = waited
    assert event is not None
    assert event.is_set()


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("repeatable", [False, True])
async def test_a_call_with_a_handle_is_taken_up(*, is_known: bool, repeatable: bool) -> None:
    first, log = await whole_log(CountedTool(handle=b"7", repeatable=repeatable))
    at = next(at for at, entry in enumerate(log) if isinstance(entry, ToolHandle)) + 1
    known = {b"7": ToolResult("Resumed.")} if is_known else {}
    tool = CountedTool(known=known, repeatable=repeatable)
    one = Stage(Continuing(), spec=first.spec, said=log[:at], tools=tool)
    await one.run()
    assert tool.resumed == [b"7"]
    output = "Resumed." if is_known else OUTPUT if repeatable else UNKNOWN.output
    assert one.tokens.prompts == [asked_behind(output)]
    assert len(tool.ran) == (repeatable and not is_known)


async def test_a_call_is_unknown_once_however_often_the_response_is_taken_over() -> None:
    first, log = await whole_log(CountedTool())
    started = next(at for at, entry in enumerate(log) if isinstance(entry, ToolStarted)) + 1
    second = Stage(Continuing(), spec=first.spec, said=log[:started], tools=CountedTool())
    await second.run()
    hop, end = second.journal.entries[:2]
    assert isinstance(hop, Hop)
    assert isinstance(end, ToolEnded)
    assert end.outcome == "unknown"
    told = [*log[:started], hop, end]
    third = Stage(Continuing(), spec=first.spec, said=told, tools=CountedTool())
    assert (await third.play())[-1].type == "response.completed"
    assert third.tokens.prompts == [asked_behind(UNKNOWN.output)]


async def test_a_replica_without_tools_says_what_it_knows() -> None:
    for repeatable in (False, True):
        first, log = await whole_log(CountedTool(repeatable=repeatable))
        kinds = [type(entry) for entry in log]
        ends: dict[type[Entry], str] = {
            ToolStarted: UNAVAILABLE.output if repeatable else UNKNOWN.output,
            ToolEnded: OUTPUT,
        }
        for end, output in ends.items():
            one = Stage(Continuing(), spec=first.spec, said=log[: kinds.index(end) + 1])
            response = check_stream(await one.play()).response
            assert types(response) == ["mcp_call", "message"]
            assert one.tokens.prompts == [asked_behind(output)]
        one = Stage(Continuing(), spec=first.spec, said=log[: kinds.index(ToolStarted)])
        await one.run()
        assert one.tokens.prompts == [asked_behind(UNAVAILABLE.output)]


UNREADABLE = '{"item": "limit.'


def unreadable(call: str) -> str:
    return call.replace(ARGUMENTS, UNREADABLE)


@pytest.mark.parametrize("call", [CALL, ASK], ids=["a call", "a request for approval"])
async def test_a_call_of_a_server_that_is_no_json_is_said_again(call: str) -> None:
    one = stage(says(unreadable(call)), says(call), says(ANSWER), tool=CountedTool())
    stream = check_stream(await one.play())
    assert stream.items[0]["arguments"] == ARGUMENTS
    assert repairs(one) == ["invalid_tool_call"]


async def test_nobody_is_asked_to_approve_what_is_never_readable() -> None:
    asked: list[object] = []

    async def ask(*what: object) -> None:
        asked.append(what)

    tool = CountedTool()
    turns = [says(unreadable(ASK))] * (GuardLimits().repairs_max + 1)
    one = stage(*turns, says(ANSWER), tool=tool, ask_approval=ask)
    stream = check_stream(await one.play())
    assert types(stream.response) == ["mcp_call", "message"]
    assert tool.ran == [UNREADABLE], "it is the tool that refuses it"
    assert not asked


async def test_what_can_be_read_and_is_wrong_is_no_request_for_approval_either() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "integer"}}}
    strict = replace(SERVER, tools=(replace(SERVER.tools[1], parameters=schema),))
    turns = [says(ASK)] * (GuardLimits().repairs_max + 1)
    one = stage(*turns, tool=CountedTool(), spec=granted(grants=Grants(servers=(strict,))))
    response = check_stream(await one.play()).response
    assert (response["status"], response["error"]["code"]) == ("failed", "invalid_tool_call")
    assert not response["output"]


APPROVED = replace(GRANTS, approved=ApprovedCall("mcpr_1", "srv.ask", ARGUMENTS))
APPROVED_PROMPT = [*PROMPT[: -len(OPENING)], *result_ids(OUTPUT, "srv.ask"), *OPENING]


async def test_an_approved_call_is_run_before_the_model_is_asked() -> None:
    tool = CountedTool()
    one = stage(says(ANSWER), tool=tool, spec=granted(grants=APPROVED, window_left=400))
    stream = check_stream(await one.play())
    assert tool.ran == [ARGUMENTS]
    assert types(stream.response) == ["mcp_call", "message"]
    [request] = one.tokens.requests
    assert list(request.prompt_ids) == APPROVED_PROMPT
    assert request.sampling.max_tokens == 400 - (len(APPROVED_PROMPT) - len(PROMPT))
    assert one.live.fold.usage.input_tokens == len(APPROVED_PROMPT)


async def test_an_approved_call_is_run_once_whichever_replica_does_it() -> None:
    first = stage(says(ANSWER), tool=CountedTool(), spec=granted(grants=APPROVED, durable=True))
    await first.run()
    log = first.journal.entries[:-1]
    assert [type(entry) for entry in log[:3]] == [ToolStarted, ToolEnded, TurnStarted]
    for count in range(len(log)):
        said, tool = log[:count], CountedTool()
        told = sum(isinstance(entry, Tokens) for entry in said)
        is_said = told > 0
        # A header that is not over is begun anew.
        rest: list[Step] = list(says(ANSWER))[told if told >= len(FINAL_HEADER) else 0 :]
        one = Stage(ScriptedTokens([rest]), spec=first.spec, said=said, tools=tool)
        await one.run()
        effects = sum(isinstance(entry, ToolStarted) for entry in said)
        assert effects + len(tool.ran) == 1
        if one.tokens.requests and count != 1 and not is_said:
            assert list(one.tokens.requests[0].prompt_ids) == APPROVED_PROMPT
        assert one.live.fold.response()["status"] == "completed"


async def test_the_user_is_asked_before_the_response_ends() -> None:
    asked: list[tuple[TenantId, str, bytes]] = []

    async def ask(tenant: TenantId, request_id: str, digest: bytes) -> None:
        await asyncio.sleep(0)
        assert not one.live.fold.shown.is_finished
        asked.append((tenant, request_id, digest))

    tool = CountedTool()
    one = stage(says(ASK), tool=tool, ask_approval=ask)
    stream = check_stream(await one.play())
    assert (types(stream.response), stream.response["status"]) == (
        ["mcp_approval_request"],
        "completed",
    )
    digest = approval_digest(SERVER, SERVER.tools[1], ARGUMENTS)
    assert asked == [(one.spec.principal.tenant_id, stream.items[0]["id"], digest)]
    assert not tool.ran


async def test_the_user_is_asked_by_whoever_ends_the_response() -> None:
    asked: list[str] = []

    async def ask(tenant: TenantId, request_id: str, digest: bytes) -> None:
        asked.append(request_id)

    first = stage(says(ASK), spec=DURABLE)
    await first.run()
    said = first.journal.entries[:-1]
    second = stage(spec=first.spec, said=said, ask_approval=ask)
    response = check_stream(await second.play()).response
    assert response["output"] == first.live.fold.response()["output"]
    assert asked == [response["output"][0]["id"]]
    assert not second.tokens.requests


@pytest.mark.parametrize("is_durable", [False, True])
async def test_what_cannot_be_recorded_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, *, is_durable: bool
) -> None:
    monkeypatch.setattr(hosted, "RETRY_PAUSE_S", 0.0)
    failures = 3

    async def ask(tenant: TenantId, request_id: str, digest: bytes) -> None:
        nonlocal failures
        await asyncio.sleep(0)
        if failures:
            failures -= 1
            raise StoreUnavailable("away")

    one = stage(says(ASK), spec=DURABLE if is_durable else granted(), ask_approval=ask)
    response = check_stream(await one.play()).response
    assert response["status"] == ("completed" if is_durable else "failed")


async def test_listings_come_first_and_once() -> None:
    listings = (ToolsListed("srv", b'[{"name":"f"}]'), ToolsListed("other", b"[]", b'"no"'))
    spec = granted(durable=True, listings=listings)
    first = stage(says(ANSWER), spec=spec)
    stream = check_stream(await first.play())
    assert first.journal.entries[:2] == list(listings)
    assert types(stream.response)[:2] == ["mcp_list_tools", "mcp_list_tools"]
    second = stage(says(ANSWER), spec=spec, said=listings[:1])
    await second.run()
    assert second.journal.entries[0] == listings[1]
    assert second.live.fold.response()["output"] == first.live.fold.response()["output"]


async def test_secrets_go_to_the_tools_and_nowhere_else() -> None:
    tool = CountedTool()
    spec = granted(secrets={"srv": {"authorization": "hunter2"}})
    one = stage(says(CALL), says(ANSWER), tool=tool, spec=spec)
    events = await one.play()
    assert tool.scopes[0].secrets == spec.secrets
    everything = repr((events, one.journal.entries, spec, one.live.fold.response()))
    assert "hunter2" not in everything


async def test_grammars_of_changed_rules_are_translated_in_a_thread() -> None:
    """Behind the result of a call that was required the rules are others."""
    lark = TextGrammar("lark", 'start: "a" | "b"')
    spec = granted()
    tools = {
        **spec.rules.tools,
        "pick": ToolRule("pick", SegmentKind.CUSTOM_CALL, "pick", grammar=lark),
    }
    rules = OutputRules(tools, frozenset(tools), calls="required", open_calls=False)
    one = stage(vouched(CALL), vouched(ANSWER), tool=CountedTool(), spec=replace(spec, rules=rules))
    await one.play()
    assert one.live.fold.rules is not rules
    assert are_translated(one.live.fold.rules)


async def test_a_result_that_no_prompt_can_hold_is_mended_and_does_not_fail_the_response() -> None:
    tool = CountedTool(output="12\ud800 degrees.")
    one = Stage(Continuing(), spec=granted(), tools=tool)
    events = await one.play()
    assert events[-1].type == "response.completed"
    assert one.tokens.prompts[1] == asked_behind("12? degrees.")


async def test_a_tool_that_leaves_something_strange_behind_costs_its_call_alone() -> None:
    class Strange(CountedTool):
        @override
        async def run(self, call: Any, on_handle: Any) -> ToolResult:
            return ToolResult(OUTPUT, state={"page": "none"})

    one = stage(says(CALL), says(ANSWER), tool=Strange())
    stream = check_stream(await one.play())
    assert stream.response["status"] == "completed"
    assert stream.items[0]["status"] == "failed"


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, b""),
        ({"a": "ä"}, '{"a":"ä"}'.encode()),
        ({"a": "\ud800"}, b'{"a": "?"}'),
        ({"a": 1 << 70, "b": object}, None),
    ],
)
def test_whatever_a_tool_shows_can_be_kept(fields: dict[str, Any], kept: bytes | None) -> None:
    packed = json_bytes(fields)
    assert kept is None or packed == kept


async def test_what_still_runs_when_the_process_ends_is_cancelled() -> None:
    calls, tool = RunningCalls(), CountedTool(hangs=True)
    await calls.close()
    task = calls.start(tool.run(ToolCall(0, NAME, "{}"), lambda _: None))
    await tool.reached.wait()
    await calls.close()
    assert task.cancelled()
    failed = calls.start(
        CountedTool(failure=ValueError()).run(ToolCall(0, NAME, ""), lambda _: None)
    )
    await asyncio.wait((failed,))
    assert not calls._tasks


async def test_a_run_leaves_nothing_that_only_a_collection_finds() -> None:
    one = stage(says(ANSWER))
    await one.play()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        del one
        gc.collect()
        assert not any(isinstance(found, Run) for found in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
