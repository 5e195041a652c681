"""Whatever happens in a room, whoever calls its tool gets a result, within bounds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from gateway.errors import ClaimLost
from gateway.protocol.grants import Grants, ServerGrant, ToolBudget
from gateway.telemetry.metrics import Metrics
from gateway.tenancy import TenantId
from gateway.tools.tool_contract import ToolCall, ToolResult, ToolScope, ToolStart, explained
from gateway.tools.tool_executor import ToolExecutor, ToolLimits
from tests.fakes.harmony_script import harmony
from tests.fakes.hosted_tools import CountedTool
from tests.fakes.logs import captured_logs
from tests.fakes.threads import THREADS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.tools.tool_contract import ToolSession

LIMITS = ToolLimits(slot_wait_s=0.0)
SERVERS = (ServerGrant("srv", "https://a.example"), ServerGrant("other", "https://b.example"))


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Office:
    """An executor with a room for MCP servers."""

    room: CountedTool = field(default_factory=CountedTool)
    limits: ToolLimits = LIMITS
    metrics: Metrics = field(default_factory=Metrics)
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.executor = ToolExecutor(
            {"mcp": self.room}, self.limits, threads=THREADS, metrics=self.metrics, clock=self.clock
        )

    def session(self, **fields: Any) -> ToolSession:
        budget = fields.pop("budget", ToolBudget())
        scope = ToolScope(
            tenant_id=TenantId(UUID(int=fields.pop("tenant", 1))),
            response=UUID(int=2),
            grants=Grants(servers=SERVERS, budget=budget),
            stored=False,
            states=(),
            count_ids=harmony().count_ids,
        )
        return self.executor.session(replace(scope, **fields))

    def hits(self, bound: str) -> float:
        value = self.metrics.registry.get_sample_value(
            "gateway_tool_budget_hits_total", {"bound": bound}
        )
        return value or 0.0


def call(ordinal: int = 0, name: str = "srv.f", arguments: str | None = None) -> ToolCall:
    """Each with arguments of its own."""
    return ToolCall(ordinal, name, f'{{"n": {ordinal}}}' if arguments is None else arguments)


def ignore(_: bytes) -> None:
    """No handle is of interest."""


async def run(session: ToolSession, made: ToolCall) -> ToolResult:
    session.start(made)
    return await session.run(made, ignore)


async def test_a_call_goes_to_the_room_of_its_kind_and_a_session_is_made_when_it_is_needed() -> (
    None
):
    office = Office()
    session = office.session()
    assert not office.room.scopes
    result = await run(session, call())
    assert (result.output, result.outcome, office.room.ran) == (
        office.room.output,
        "ok",
        ['{"n": 0}'],
    )
    assert len(office.room.scopes) == 1
    await session.close()
    assert office.room.closed.is_set()


@pytest.mark.parametrize("name", ["builtin:browser.search", "builtin:python"])
async def test_a_tool_without_a_room_is_not_available(name: str) -> None:
    session = Office().session()
    made = call(name=name)
    assert session.start(made) == ToolStart(repeatable=False)
    assert (await session.run(made, ignore)).outcome == "refused"
    assert await session.resume(made, b"7") is None


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param('{"text": "' + "x" * 65_536 + '"}', id="long"),
        pytest.param("[" * 33 + "]" * 33, id="deep"),
    ],
)
async def test_arguments_that_are_too_much_are_refused(arguments: str) -> None:
    office = Office()
    assert (await run(office.session(), call(arguments=arguments))).outcome == "refused"
    assert not office.room.ran


async def test_brackets_in_strings_are_no_depth() -> None:
    office = Office()
    arguments = '{"a": "' + "[" * 99 + '\\""}'
    assert (await run(office.session(), call(arguments=arguments))).outcome == "ok"


@pytest.mark.parametrize(
    "arguments",
    ['{"a": "' + "[" * 99, '{"' + '\\"' * 32_000, '{"' + '\\"[' * 20_000 + "\\"],
    ids=["open", "many_quotes", "half_an_escape"],
)
async def test_a_string_that_never_ends_is_read_once(arguments: str) -> None:
    """Looked for from each of its quotes it would hold up the event loop for a minute."""
    office = Office()
    assert (await run(office.session(), call(arguments=arguments))).outcome == "ok"


async def test_the_same_call_again_and_again_is_not_run() -> None:
    office = Office()
    session = office.session()
    outcomes = [(await run(session, call(n, arguments="{}"))).outcome for n in range(3)]
    assert outcomes == ["ok", "ok", "over_budget"]
    assert (await run(session, call(3))).outcome == "ok"
    assert office.hits("repeats") == 1


async def test_a_call_has_its_time_and_is_cancelled_then() -> None:
    office = Office(CountedTool(hangs=True), replace(LIMITS, call_max_s={"mcp": 0.01}))
    result = await run(office.session(), call())
    assert result.outcome == "timeout"
    assert "Do not simply repeat" in result.output
    assert office.room.was_cancelled.is_set()


async def test_of_what_may_be_repeated_nobody_says_that_it_may_not() -> None:
    room = CountedTool(hangs=True, repeatable=True)
    office = Office(room, replace(LIMITS, call_max_s={"mcp": 0.01}))
    assert "repeat" not in (await run(office.session(), call())).output


async def test_all_calls_of_a_response_have_their_time() -> None:
    office = Office()

    class Slow(CountedTool):
        async def run(self, call: Any, on_handle: Any) -> ToolResult:  # type: ignore[explicit-override]
            office.clock.now += 6
            return ToolResult("done")

    office.room = Slow()
    office.__post_init__()
    session = office.session(budget=ToolBudget(time_max_s=10))
    outcomes = [(await run(session, call(n))).outcome for n in range(3)]
    assert outcomes == ["ok", "ok", "over_budget"]
    assert office.hits("time") == 1


async def test_all_results_of_a_response_have_their_length() -> None:
    room = CountedTool(output="word " * 4000)
    office = Office(room, replace(LIMITS, error_ids_max=50))
    session = office.session(budget=ToolBudget(result_ids_max=1000), result_ids=100)
    sizes, outcomes = [], []
    for number in range(3):
        result = await run(session, call(number))
        sizes.append(harmony().count_ids(result.output))
        outcomes.append(result.outcome)
    assert outcomes == ["ok", "ok", "ok"]
    assert 700 < sizes[0] <= 900
    assert sizes[1] <= 1000 - 100 - sizes[0] or sizes[1] <= 50
    assert sizes[2] <= 50
    more = [(await run(session, call(number))).outcome for number in range(3, 9)]
    assert more[-1] == "over_budget"


async def test_all_results_of_a_response_have_their_bytes() -> None:
    office = Office(CountedTool(output="é" * 300))
    budget = ToolBudget(result_bytes_max=1200)
    session = office.session(budget=budget)
    results = [await run(session, call(number)) for number in range(3)]
    assert [result.outcome for result in results] == ["ok", "ok", "over_budget"]
    assert office.hits("result_bytes") == 1
    # Whoever takes the response over goes on from what the ended calls left.
    states = tuple(result.state for result in results[:1])
    later = office.session(budget=budget, states=states)
    outcomes = [(await run(later, call(number))).outcome for number in range(1, 3)]
    assert outcomes == ["ok", "over_budget"]


async def test_no_more_of_a_result_is_shown_than_there_is_room_for() -> None:
    office = Office(CountedTool(output="word " * 4000))
    for ids_max in (0, 3, 100):
        result = await run(office.session(), replace(call(), ids_max=ids_max))
        assert harmony().count_ids(result.output) <= ids_max


async def test_a_long_result_is_cut_in_a_thread_and_says_how_to_get_the_rest() -> None:
    office = Office(CountedTool(output="\n".join(f"line {n}" for n in range(50_000))))
    result = await run(office.session(), call())
    assert harmony().count_ids(result.output) <= 8192
    assert "Ask for less" in result.output
    cut = office.metrics.registry.get_sample_value("gateway_tool_truncated_total", {"kind": "mcp"})
    assert cut == 1


@pytest.mark.parametrize("failure", [RuntimeError("secret"), asyncio.CancelledError()])
async def test_a_defect_of_a_room_is_a_result_and_a_line_in_the_log(failure: BaseException) -> None:
    office = Office(CountedTool(failure=failure))
    with captured_logs() as logs:
        result = await run(office.session(), call())
    assert result.outcome == "transport_error"
    assert "secret" not in result.output
    assert len(logs) == isinstance(failure, RuntimeError)


async def test_a_room_that_cannot_begin_or_end_costs_nobody_else_anything() -> None:
    class Broken(CountedTool):
        def start(self, call: ToolCall) -> ToolStart:  # type: ignore[explicit-override]
            raise RuntimeError

        async def close(self) -> None:  # type: ignore[explicit-override]
            raise RuntimeError

    office = Office(Broken())
    session = office.session()
    with captured_logs():
        assert session.start(call()) == ToolStart(repeatable=False)
        assert (await session.run(call(), ignore)).outcome == "ok"
        await session.close()


async def test_who_is_cancelled_cancels_the_call() -> None:
    office = Office(CountedTool(hangs=True))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(run(office.session(), call()))
        await office.room.reached.wait()
        running.cancel()
    assert office.room.was_cancelled.is_set()
    assert running.cancelled()


async def test_nothing_leaves_for_a_response_that_is_anothers() -> None:
    async def assured() -> None:
        raise ClaimLost

    office = Office()
    with pytest.raises(ClaimLost):
        await run(office.session(assured=assured), call())
    assert not office.room.ran


async def test_a_tenant_with_too_many_calls_is_told_so() -> None:
    office = Office(CountedTool(hangs=True), replace(LIMITS, tenant_running_max=1))
    async with asyncio.TaskGroup() as group:
        first = group.create_task(run(office.session(), call()))
        await office.room.reached.wait()
        second = await run(office.session(), call())
        assert second.outcome == "refused"
        office.room.go_on.set()
    assert first.result().outcome == "ok"
    assert office.hits("running") == 1


async def test_a_server_that_is_down_is_left_alone_by_one_tenant_for_a_while() -> None:
    room = CountedTool(outcome="transport_error")
    office = Office(room, replace(LIMITS, breaker_failures_max=2, breaker_rest_s=30))

    async def ran(name: str = "srv.f", tenant: int = 1) -> bool:
        before = len(room.ran)
        result = await run(office.session(tenant=tenant), call(name=name))
        assert result.outcome == "transport_error"
        return len(room.ran) > before

    assert [await ran(), await ran(), await ran()] == [True, True, False]
    assert await ran("other.f")
    assert await ran(tenant=2)
    office.clock.now = 31
    room.outcome = "tool_error"
    assert (await run(office.session(), call())).outcome == "tool_error"
    room.outcome = "transport_error"
    assert await ran(), "it answered, so it is well"


@pytest.mark.parametrize(
    ("outcome", "more", "calls"),
    [("unknown", 5, 2), ("timeout", 5, 2), ("timeout", 10, 4), ("refused", 5, 4)],
)
async def test_a_call_that_was_not_sent_or_got_too_little_time_is_no_failure_of_its_server(
    outcome: Any, more: int, calls: int
) -> None:
    office = Office(limits=replace(LIMITS, breaker_failures_max=2, breaker_rest_s=300))

    class Slow(CountedTool):
        async def run(self, call: Any, on_handle: Any) -> ToolResult:  # type: ignore[explicit-override]
            office.clock.now += more
            return await super().run(call, on_handle)

    office.room = Slow(outcome=outcome)
    office.__post_init__()
    for _ in range(4):
        await run(office.session(budget=ToolBudget(time_max_s=10)), call())
    assert len(office.room.ran) == calls


async def test_what_is_taken_up_is_bounded_like_what_is_run() -> None:
    room = CountedTool(known={b"7": ToolResult("word " * 20_000)})
    session = Office(room).session()
    result = await session.resume(call(), b"7")
    assert result is not None
    assert harmony().count_ids(result.output) <= 8192
    assert await session.resume(call(), b"8") is None


async def test_a_handle_is_passed_on() -> None:
    handles: list[bytes] = []
    keep: Callable[[bytes], None] = handles.append
    session = Office(CountedTool(handle=b"7")).session()
    session.start(call())
    await session.run(call(), keep)
    assert handles == [b"7"]


@pytest.mark.parametrize(
    ("outcome", "kind", "code", "message"),
    [
        ("unknown", "http_error", 0, "outcome unknown: Lost."),
        ("timeout", "http_error", 0, "Lost."),
        ("transport_error", "http_error", 0, "Lost."),
        ("refused", "mcp_protocol_error", -32600, "Lost."),
        ("over_budget", "mcp_protocol_error", -32600, "Lost."),
    ],
)
def test_a_call_of_which_no_server_said_why_it_failed_says_so(
    outcome: Any, kind: str, code: int, message: str
) -> None:
    result = ToolResult("Lost.", outcome)
    error = {"type": kind, "code": code, "message": message}
    assert explained("srv.book", result).shown == {"output": None, "error": error}
    for name in ("builtin:python", "builtin:browser.search"):
        assert explained(name, result) is result
    theirs = replace(result, shown={"output": None, "error": {"type": "theirs"}})
    assert explained("srv.book", theirs) is theirs


@pytest.mark.parametrize("outcome", ["ok", "cancelled"])
def test_a_call_that_did_not_fail_has_nothing_to_explain(outcome: Any) -> None:
    result = ToolResult("Said.", outcome)
    assert explained("srv.book", result) is result
