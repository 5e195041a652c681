"""A turn outlives its backends, and the process that began it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from gateway.engine.failover import HopPolicy
from gateway.entries import Entry, Hop, Queued, Tokens, TurnEnded, TurnStarted
from gateway.errors import (
    ContextOverflow,
    ModelNotFound,
    NoUpstreamAvailable,
    UpstreamError,
    UpstreamFailed,
    UpstreamLost,
    UpstreamRecalled,
    UpstreamUnavailable,
)
from gateway.generation import TokenChunk
from gateway.models.harmony.harmony_format import turn_ids
from gateway.models.harmony.tokenizer import FINAL_HEADER
from tests.fakes.harmony_script import script_ids
from tests.fakes.staged_run import (
    ANSWER,
    STOP,
    THOUGHT,
    ScriptedTokens,
    Stage,
    Step,
    run_spec,
    says,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.eventlog.live_log import LiveLog

IDS = script_ids(ANSWER)
PROMPT = run_spec().prompt_ids
PATIENT = HopPolicy(hop_wait_s=60.0, upstream_wait_s=60.0, pause_s=0.0)


def died(upstream: str = "gpu-1") -> UpstreamFailed:
    return UpstreamFailed("connection lost", upstream=upstream)


def lost(upstream: str) -> UpstreamLost:
    return UpstreamLost("connection lost", upstream=upstream)


def refused(upstream: str) -> UpstreamUnavailable:
    return UpstreamUnavailable("answered 503", upstream=upstream)


def nobody() -> NoUpstreamAvailable:
    return NoUpstreamAvailable("gpt-oss-20b", "all gone")


def ids(*tokens: int) -> list[Step]:
    return [TokenChunk([token]) for token in tokens]


def hops(stage: Stage[ScriptedTokens]) -> list[Hop]:
    return [entry for entry in stage.journal.entries if isinstance(entry, Hop)]


def asked_to_answer(thought: list[int]) -> list[int]:
    """The prompt of the turn behind one that only thought."""
    return [*PROMPT, *turn_ids([((), thought), (FINAL_HEADER, ())])]


def metric(stage: Stage[ScriptedTokens], name: str, **labels: str) -> float | None:
    return stage.metrics.registry.get_sample_value(f"gateway_{name}_total", labels)


async def test_another_backend_goes_on_with_prompt_and_ids_so_far() -> None:
    spec = run_spec(max_tokens=50)
    tokens = ScriptedTokens([[*ids(*IDS[:3]), died()], [*ids(*IDS[3:]), TokenChunk([], STOP, 9)]])
    stage = Stage(tokens, spec=spec)
    events = await stage.play()
    assert events[-1].type == "response.completed"
    assert stage.text == "Hello there"
    first, second = tokens.requests
    assert second.prompt_ids == [*PROMPT, *IDS[:3]]
    assert (first.sampling.max_tokens, second.sampling.max_tokens) == (50, 47)
    assert first.request_id != second.request_id
    assert tokens.avoided == [set(), {"gpu-1"}]
    assert tokens.attempts_max == [None, 1]
    assert hops(stage) == [Hop("backend", len(PROMPT) + 3)]
    assert metric(stage, "hops", reason="backend") == 1
    assert metric(stage, "recomputed_tokens") == len(PROMPT) + 3


@dataclass
class WatchedTokens:
    """A backend that does not answer, and counts the turns of the log while it is asked."""

    waits: bool
    live: LiveLog | None = None
    turns: list[int] = field(default_factory=list)

    async def generate(self, *_: object, **__: object) -> None:
        assert self.live is not None
        self.turns.append(len(self.live.fold.turns))
        if self.waits:
            await asyncio.sleep(0)
            self.turns.append(len(self.live.fold.turns))
        raise refused("gpu-1")


@pytest.mark.parametrize("waits", [True, False])
async def test_a_backend_is_asked_first_and_then_the_turn_has_begun(*, waits: bool) -> None:
    stage = Stage(WatchedTokens(waits))
    stage.tokens.live = stage.live
    await stage.run()
    assert stage.tokens.turns[:2] == [0, 1]
    assert [turn.input_tokens for turn in stage.live.fold.turns] == [len(PROMPT)]


async def test_a_run_that_is_abandoned_as_it_asks_writes_nothing() -> None:
    stage = Stage(ScriptedTokens([says(ANSWER)]))
    running = asyncio.create_task(stage.run())
    asyncio.get_running_loop().call_soon(stage.run.abandon)
    await running
    assert not stage.live.fold.turns


async def test_what_is_counted_is_what_was_asked_for_and_what_was_said() -> None:
    tokens = ScriptedTokens([[*ids(*IDS[:3]), died()], [*ids(*IDS[3:]), TokenChunk([], STOP, 9)]])
    stage = Stage(tokens)
    await stage.play()
    usage = stage.live.fold.usage
    assert (usage.input_tokens, usage.output_tokens) == (len(PROMPT), len(IDS))
    assert usage.cached_tokens == 0, "the second backend's cache is not the caller's"
    assert usage.recomputed_tokens == len(PROMPT) + 3


async def test_after_a_stop_id_nothing_is_sent_again() -> None:
    stage = Stage(ScriptedTokens([[*ids(*IDS), died()]]))
    assert (await stage.play())[-1].type == "response.completed"
    assert not hops(stage)


async def test_when_all_tokens_are_there_nothing_is_sent_again() -> None:
    stage = Stage(ScriptedTokens([[*ids(*IDS[:4]), died()]]), spec=run_spec(max_tokens=4))
    assert (await stage.play())[-1].type == "response.incomplete"
    assert not hops(stage)


async def test_what_was_called_back_goes_on_when_it_is_its_turn_and_no_backend_was_lost() -> None:
    recalled = UpstreamRecalled("another goes before it", upstream="gpu-1")
    ended = [*ids(*IDS[4:]), TokenChunk([], STOP)]
    turns = [[*ids(*IDS[:3]), recalled], [*ids(IDS[3]), recalled], ended]
    stage = Stage(ScriptedTokens(turns), hops=HopPolicy(hops_max=0))
    events = await stage.play()
    assert events[-1].type == "response.completed"
    assert stage.text == "Hello there"
    first, second, third = stage.tokens.requests
    assert (first.was_recalled, second.was_recalled, third.was_recalled) == (False, True, True)
    assert list(third.prompt_ids) == [*PROMPT, *IDS[:4]]
    assert stage.tokens.avoided == [set()] * 3
    assert hops(stage) == []


async def test_where_nothing_is_kept_it_still_waits_as_its_tenant() -> None:
    salts = "one", "other"
    stages = [
        Stage(ScriptedTokens([says(ANSWER)]), spec=replace(run_spec(), cache_salt=salt))
        for salt in salts
    ]
    for stage in stages:
        await stage.play()
    requests = [stage.tokens.requests[0] for stage in stages]
    assert tuple(one.cache_salt for one in requests) == salts
    assert {one.tenant for one in requests} == {run_spec().principal.tenant_id.hex}


async def test_hops_are_bounded() -> None:
    script = [[*ids(token), died(f"gpu-{token}")] for token in IDS]
    stage = Stage(ScriptedTokens(script), hops=HopPolicy(hops_max=2))
    events = await stage.play()
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert len(hops(stage)) == 2
    assert len(stage.tokens.requests) == 3
    assert stage.live.fold.usage.output_tokens == 3


async def test_hops_of_the_replica_before_count() -> None:
    said: list[Entry] = [
        TurnStarted(len(PROMPT)),
        Tokens((IDS[0],)),
        Hop("backend", 9),
        Tokens((IDS[1],)),
    ]
    stage = Stage(ScriptedTokens([[*ids(IDS[2]), died()]]), hops=HopPolicy(hops_max=1), said=said)
    assert (await stage.play())[-1].type == "response.failed"
    assert [hop.reason for hop in hops(stage)] == ["replica"]


@pytest.mark.parametrize("failures", [[lost("a"), lost("b")], [lost("a"), refused("b"), lost("c")]])
async def test_a_turn_that_brings_backends_down_is_given_up(failures: list[UpstreamError]) -> None:
    stage = Stage(
        ScriptedTokens([[*ids(*IDS[:3]), died()], *[[failure] for failure in failures]]),
        hops=PATIENT,
    )
    assert (await stage.play())[-1].type == "response.failed"
    assert stage.live.failure is failures[-1]
    assert len(hops(stage)) == 2, "both read the prompt, who refused did not"


async def test_who_says_something_new_was_not_brought_down() -> None:
    script: list[list[Step]] = [
        [*ids(IDS[0]), died("a")],
        [lost("b")],
        [*ids(IDS[1]), died("c")],
        [lost("d")],
        says(ANSWER),
    ]
    stage = Stage(ScriptedTokens(script), hops=HopPolicy(hops_max=9))
    assert (await stage.play())[-1].type == "response.completed"
    assert len(hops(stage)) == 4
    assert stage.tokens.avoided[-1] == {"a", "b", "c", "d"}


async def test_losses_are_hops_too() -> None:
    script: list[list[Step]] = [[*ids(IDS[0]), died("a")], [lost("b")]]
    stage = Stage(ScriptedTokens(script), hops=HopPolicy(hops_max=1, losses_max=9))
    assert (await stage.play())[-1].type == "response.failed"
    assert len(hops(stage)) == 1


async def test_before_the_first_token_what_the_pool_lost_is_not_tried_again() -> None:
    error = lost("a")
    stage = Stage(ScriptedTokens([[error]]), hops=PATIENT, spec=run_spec(background=True), said=[])
    assert (await stage.play())[-1].type == "response.failed"
    assert stage.live.failure is error


async def test_a_refusal_while_going_on_is_final() -> None:
    error = ContextOverflow("too long", upstream="b")
    stage = Stage(ScriptedTokens([[*ids(IDS[0]), died("a")], [error]]), hops=PATIENT)
    assert (await stage.play())[-1].type == "response.failed"
    assert not hops(stage)


async def test_every_backend_is_asked_once_before_anything_is_given_up() -> None:
    script: list[list[Step]] = [[*ids(IDS[0]), died("a")], [refused("b")], [refused("c")]]
    stage = Stage(ScriptedTokens([*script, [refused("b")]]))
    assert (await stage.play())[-1].type == "response.failed"
    assert not hops(stage)
    assert stage.tokens.avoided[1:] == [{"a"}, {"a", "b"}, {"a", "b", "c"}]


async def test_a_response_that_has_begun_waits_for_a_backend() -> None:
    script: list[list[Step]] = [[*ids(IDS[0]), died("a")], [nobody()], [refused("a")], [nobody()]]
    stage = Stage(ScriptedTokens([*script, [*ids(*IDS[1:]), TokenChunk([], STOP)]]), hops=PATIENT)
    assert (await stage.play())[-1].type == "response.completed"
    assert len(hops(stage)) == 1, "who refuses has done no work"


async def test_a_foreground_response_that_has_not_begun_does_not_wait() -> None:
    stage = Stage(ScriptedTokens([[nobody()]]), hops=PATIENT)
    assert (await stage.play())[-1].type == "response.failed"
    assert not stage.live.fold.usage.output_tokens


async def test_a_background_response_waits_even_for_its_first_backend() -> None:
    stage = Stage(
        ScriptedTokens([[nobody()], [nobody()], says(ANSWER)]),
        hops=PATIENT,
        spec=run_spec(background=True),
        said=[Queued()],
    )
    assert (await stage.play())[-1].type == "response.completed"
    assert not hops(stage)
    assert len({request.request_id for request in stage.tokens.requests}) == 3


async def test_a_model_that_no_backend_lists_for_a_moment_is_waited_for() -> None:
    stage = Stage(
        ScriptedTokens([[ModelNotFound("gpt-oss-20b")], says(ANSWER)]),
        hops=PATIENT,
        spec=run_spec(background=True),
        said=[Queued()],
    )
    assert (await stage.play())[-1].type == "response.completed"


async def test_waiting_for_a_backend_ends_with_the_run() -> None:
    tokens = ScriptedTokens([[*ids(IDS[0]), died("a")], [nobody()]])
    stage = Stage(tokens, hops=HopPolicy(hop_wait_s=3600.0, pause_s=3600.0, pause_max_s=3600.0))

    async def leave() -> None:
        await tokens.last_asked.wait()
        stage.run.cancel()

    await asyncio.gather(stage.run(), leave())
    assert stage.archive.finished[0].status == "cancelled"


async def test_a_stream_that_just_ends_is_one_that_broke_off() -> None:
    stage = Stage(ScriptedTokens([ids(*IDS[:3]), [*ids(*IDS[3:]), TokenChunk([], STOP)]]))
    assert (await stage.play())[-1].type == "response.completed"
    assert len(hops(stage)) == 1


async def test_a_continued_turn_hops_with_its_own_prompt() -> None:
    answer = script_ids("Now I know.<|return|>")
    script = [says(THOUGHT), [*ids(*answer[:2]), died()], [*ids(*answer[2:]), TokenChunk([], STOP)]]
    stage = Stage(ScriptedTokens(script))
    assert (await stage.play())[-1].type == "response.completed"
    assert stage.text == "Now I know."
    _, second, third = stage.tokens.requests
    assert third.prompt_ids == [*second.prompt_ids, *answer[:2]]
    assert third.sampling.max_tokens == second.sampling.max_tokens - 2


STARTED = TurnStarted(len(PROMPT))


async def test_a_replica_goes_on_where_the_log_ends() -> None:
    tokens = ScriptedTokens([[*ids(*IDS[2:]), TokenChunk([], STOP, 7)]])
    stage = Stage(tokens, said=[STARTED, Tokens(tuple(IDS[:2]))])
    assert (await stage.play())[-1].type == "response.completed"
    assert stage.text == "Hello there"
    assert tokens.requests[0].prompt_ids == [*PROMPT, *IDS[:2]]
    assert "-2-" in tokens.requests[0].request_id, "the epoch tells replicas apart"
    assert hops(stage) == [Hop("replica", len(PROMPT) + 2)]
    assert stage.live.fold.usage.cached_tokens == 0
    assert stage.run.first_token_s is None


async def test_a_replica_that_loses_its_first_backend_goes_on_once_more() -> None:
    tokens = ScriptedTokens([[lost("a")], [*ids(*IDS[2:]), TokenChunk([], STOP)]])
    stage = Stage(tokens, said=[STARTED, Tokens(tuple(IDS[:2]))])
    assert (await stage.play())[-1].type == "response.completed"
    assert [hop.reason for hop in hops(stage)] == ["replica", "backend"]


async def test_a_replica_whose_first_backend_refuses_has_not_hopped_yet() -> None:
    tokens = ScriptedTokens([[refused("a")], [*ids(*IDS[2:]), TokenChunk([], STOP)]])
    stage = Stage(tokens, said=[STARTED, Tokens(tuple(IDS[:2]))])
    assert (await stage.play())[-1].type == "response.completed"
    assert [hop.reason for hop in hops(stage)] == ["replica"]


async def test_a_turn_that_had_said_nothing_begins_again() -> None:
    stage = Stage(ScriptedTokens([says(ANSWER)]), said=[Queued(), STARTED])
    assert (await stage.play())[-1].type == "response.completed"
    assert stage.tokens.attempts_max == [None]
    assert hops(stage) == [Hop("replica", len(PROMPT))]
    assert stage.run.first_token_s is not None


async def test_a_log_without_a_turn_has_nothing_to_go_on_with() -> None:
    stage = Stage(ScriptedTokens([says(ANSWER)]), said=[Queued()])
    assert (await stage.play())[-1].type == "response.completed"
    assert not hops(stage)


@pytest.mark.parametrize(
    "said", [[STARTED, Tokens(tuple(IDS))], [STARTED, Tokens(tuple(IDS)), TurnEnded(STOP, 2)]]
)
async def test_an_answer_that_is_all_there_needs_no_backend(said: Sequence[Entry]) -> None:
    stage = Stage(ScriptedTokens([]), said=said)
    assert (await stage.play())[-1].type == "response.completed"
    assert hops(stage) == [Hop("replica", 0)]
    assert stage.text == "Hello there"


async def test_a_replica_continues_a_turn_that_ended_without_an_answer() -> None:
    thought = script_ids(THOUGHT + "<|return|>")
    stage = Stage(ScriptedTokens([says("Well.<|return|>")]), said=[STARTED, Tokens(tuple(thought))])
    assert (await stage.play())[-1].type == "response.completed"
    assert stage.tokens.requests[0].prompt_ids == asked_to_answer(thought)


async def test_a_replica_goes_on_with_a_continued_turn_and_continues_it_no_more() -> None:
    thought, answer = script_ids(THOUGHT + "<|return|>"), script_ids("<|return|>")
    said: list[Entry] = [
        *(STARTED, Tokens(tuple(thought)), TurnEnded(STOP)),
        TurnStarted(0, FINAL_HEADER),
    ]
    stage = Stage(ScriptedTokens([[*ids(*answer), TokenChunk([], STOP)]]), said=said)
    assert (await stage.play())[-1].type == "response.failed"
    assert stage.tokens.requests[0].prompt_ids == asked_to_answer(thought)
