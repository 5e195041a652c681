"""A run: whatever its backend does, one end, after everything it promised."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast
from uuid import UUID

import orjson
import pytest
from typing_extensions import override

from gateway.engine import outcome
from gateway.engine.turn import TurnRunner
from gateway.entries import Alive, Compacted, Queued
from gateway.errors import (
    ClaimLost,
    ConversationLocked,
    NoUpstreamAvailable,
    StoreUnavailable,
    UpstreamRejected,
)
from gateway.eventlog.live_log import LiveLog
from gateway.limits.accounting import Charge
from gateway.models.harmony.tokenizer import FINAL_HEADER, OPENING
from gateway.store.claims import Claim
from tests.fakes.following import collected
from tests.fakes.harmony_script import script_ids
from tests.fakes.staged_run import (
    ANSWER,
    LENGTH,
    TENANT,
    THOUGHT,
    MemoryArchive,
    RecordingJournal,
    ScriptedTokens,
    Stage,
    run_spec,
    says,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from gateway.entries import Entry
    from gateway.generation import TokenRequest, TokenSink
    from gateway.limits.accounting import Gates, Used


async def test_an_answer_is_committed_before_the_last_event() -> None:
    stage = Stage(ScriptedTokens([says(THOUGHT + "<|start|>assistant" + ANSWER)]))
    events = await stage.play()
    assert events[-1].type == "response.completed"
    assert [finished.status for finished in stage.archive.finished] == ["completed"]
    assert stage.live.fold.usage.cached_tokens == 2
    assert stage.tokens.closed == 1


async def test_a_run_that_is_over_holds_on_to_nothing() -> None:
    stage = Stage(ScriptedTokens([says(ANSWER)]))
    await stage.play()
    with pytest.raises(ClaimLost):
        stage.journal.append(Alive())


async def test_the_length_limit_makes_it_incomplete() -> None:
    stage = Stage(ScriptedTokens([says("<|channel|>final<|message|>Hello", LENGTH)]))
    assert (await stage.play())[-1].type == "response.incomplete"
    assert stage.live.fold.response()["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_turn_without_an_answer_is_continued_once_in_the_final_channel() -> None:
    stage = Stage(ScriptedTokens([says(THOUGHT), says("Now I know.<|return|>")]))
    events = await stage.play()
    first, second = stage.tokens.requests
    expected = [*first.prompt_ids, *script_ids(THOUGHT)]
    assert second.prompt_ids == [*expected, *OPENING, *FINAL_HEADER]
    spent = len(second.prompt_ids) - len(first.prompt_ids)
    assert second.sampling.max_tokens == first.sampling.max_tokens - spent
    assert events[-1].type == "response.completed"
    response = stage.live.fold.response()
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["output"][1]["content"][0]["text"] == "Now I know."
    assert response["usage"]["input_tokens"] == len(first.prompt_ids)


async def test_nothing_at_all_is_continued_right_behind_the_prompt() -> None:
    stage = Stage(ScriptedTokens([says(""), says("Well.<|return|>")]))
    await stage.play()
    first, second = stage.tokens.requests
    assert second.prompt_ids == [*first.prompt_ids, *FINAL_HEADER]


async def test_never_an_empty_completed_response() -> None:
    stage = Stage(ScriptedTokens([says(THOUGHT), says("<|return|>")]))
    events = await stage.play()
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert stage.archive.finished[0].code == "server_error"


async def test_without_room_there_is_no_continuation() -> None:
    spec = run_spec(max_tokens=len(script_ids(THOUGHT)) + 2)
    stage = Stage(ScriptedTokens([says(THOUGHT)]), spec=spec)
    assert (await stage.play())[-1].type == "response.failed"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NoUpstreamAvailable("m", "all gone"), "No server for this model could take"),
        (UpstreamRejected("too long", upstream="gpu-1"), "refused the request"),
        (RuntimeError("a bug"), "had an error while processing"),
    ],
)
async def test_a_failure_is_told_once_and_without_internals(error: Exception, words: str) -> None:
    said = says("<|channel|>final<|message|>Hel", None)
    stage = Stage(ScriptedTokens([[*said, error]]))
    events = await stage.play()
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert stage.live.failure is error
    response = stage.live.fold.response()
    assert words in response["error"]["message"]
    assert "gpu-1" not in response["error"]["message"]
    assert response["output"][0]["content"][0]["text"] == "Hel"
    assert response["output"][0]["status"] == "incomplete"


async def test_a_client_that_leaves_stops_the_backend_and_what_there_is_is_kept() -> None:
    said = says("<|channel|>final<|message|>Hel", None)
    stage = Stage(ScriptedTokens([said], hang=True))

    async def leave() -> None:
        await stage.tokens.reached.wait()
        stage.run.cancel()

    await asyncio.gather(stage.run(), leave())
    assert stage.tokens.closed == 1
    assert stage.archive.finished[0].status == "cancelled"
    assert stage.live.fold.response()["output"][0]["content"][0]["text"] == "Hel"


async def test_cancelling_before_the_start_sends_nothing() -> None:
    stage = Stage(ScriptedTokens([says(ANSWER)]))
    stage.run.cancel(outcome.shut_down)
    await stage.play()
    assert stage.archive.finished[0].status == "failed"


async def test_cancelling_after_the_end_changes_nothing() -> None:
    stage = Stage(ScriptedTokens([says(ANSWER)]))
    await stage.play()
    stage.run.cancel()
    assert stage.archive.finished[0].status == "completed"


async def test_a_run_that_takes_too_long_fails() -> None:
    stage = Stage(ScriptedTokens([[]], hang=True), run_time_max_s=0)
    events = await stage.play()
    assert events[-1].type == "response.failed"
    assert "longer than this server allows" in (stage.archive.finished[0].message or "")


async def test_what_cannot_be_stored_is_not_called_completed() -> None:
    failure = StoreUnavailable("gone")
    stage = Stage(ScriptedTokens([says(ANSWER)]), archive=MemoryArchive(failure))
    events = await stage.play()
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert stage.live.failure is failure
    assert "could not be stored" in stage.live.fold.response()["error"]["message"]
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_an_unstored_response_needs_no_database() -> None:
    archive = MemoryArchive(StoreUnavailable("gone"))
    stage = Stage(ScriptedTokens([says(ANSWER)]), archive, run_spec(store=False))
    assert (await stage.play())[-1].type == "response.completed"
    assert stage.live.failure is None


async def test_an_unstored_response_is_metered() -> None:
    stage = Stage(ScriptedTokens([says(ANSWER)]), spec=run_spec(store=False))
    await stage.play()
    assert len(stage.archive.metered) == 1
    assert not stage.archive.finished


async def test_what_cannot_be_recorded_costs_no_token() -> None:
    refusal = StoreUnavailable("gone")
    stage = Stage(ScriptedTokens([says(ANSWER)]), archive=MemoryArchive(refusal=refusal))
    events = await stage.play()
    assert not stage.tokens.requests
    assert stage.run.begun.is_set()
    assert stage.live.failure is refusal
    assert events[-1].type == "response.failed"


SUMMARY = Compacted((1, 2), "seal", input_tokens=30, output_tokens=20)


async def test_a_summary_for_what_cannot_be_recorded_is_booked() -> None:
    refusal = ConversationLocked()
    stage = Stage(
        ScriptedTokens([says(ANSWER)]),
        MemoryArchive(refusal=refusal),
        replace(run_spec(), compacted=SUMMARY),
    )
    await stage.play()
    assert [finished.status for finished in stage.archive.metered] == ["failed"]
    assert (stage.live.fold.usage.input_tokens, stage.live.fold.usage.output_tokens) == (30, 20)
    assert stage.live.failure is refusal


async def test_a_summary_for_a_client_that_has_left_is_billed_with_its_response() -> None:
    stage = Stage(ScriptedTokens([says(ANSWER)]), spec=replace(run_spec(), compacted=SUMMARY))
    stage.run.cancel()
    await stage.play()
    assert not stage.tokens.requests
    assert [finished.status for finished in stage.archive.finished] == ["cancelled"]
    assert stage.live.fold.usage.output_tokens == 20
    assert stage.archive.metered == []


async def test_a_summary_alone_is_no_turn_without_output() -> None:
    spec = run_spec()
    mute = replace(spec.sampling, max_tokens=0)
    stage = Stage(ScriptedTokens([]), spec=replace(spec, compacted=SUMMARY, sampling=mute))
    await stage.play()
    assert [finished.status for finished in stage.archive.finished] == ["completed"]
    assert b"empty_output_total 0.0" in stage.metrics.exposition()


async def test_a_client_that_leaves_while_the_response_is_recorded_leaves_no_open_row() -> None:
    stage = Stage(ScriptedTokens([says(ANSWER)]))

    async def leave() -> None:
        stage.run.cancel()

    await asyncio.gather(stage.run(), leave())
    assert stage.archive.begun == 1
    assert [finished.status for finished in stage.archive.finished] == ["cancelled"]
    assert not stage.tokens.requests


@dataclass
class SlowToLeave(ScriptedTokens):
    """A backend whose connection takes its time to close."""

    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    may_leave: asyncio.Event = field(default_factory=asyncio.Event)

    @override
    async def generate(
        self,
        request: TokenRequest,
        sink: TokenSink,
        *,
        avoid: Collection[str] = (),
        attempts_max: int | None = None,
    ) -> None:
        try:
            await super().generate(request, sink)
        finally:
            self.leaving.set()
            await self.may_leave.wait()


async def test_a_run_that_is_ending_already_may_be_cancelled_again() -> None:
    tokens = SlowToLeave([[]], hang=True)
    stage = Stage(tokens)

    async def cancel_twice() -> None:
        await tokens.reached.wait()
        stage.run.cancel()
        await tokens.leaving.wait()
        stage.run.cancel(outcome.shut_down)
        tokens.may_leave.set()

    await asyncio.gather(stage.run(), cancel_twice())
    assert [finished.status for finished in stage.archive.finished] == ["cancelled"]


async def test_a_defect_of_the_archive_is_a_response_that_was_not_stored() -> None:
    stage = Stage(ScriptedTokens([says(ANSWER)]), archive=MemoryArchive(ValueError("a bug")))
    events = await stage.play()
    assert events[-1].type == "response.failed"
    assert "could not be stored" in stage.live.fold.response()["error"]["message"]


async def test_a_defect_of_the_engine_lets_readers_go(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(TurnRunner, "complete", broken)
    monkeypatch.setattr(RecordingJournal, "finish", broken)
    monkeypatch.setattr(LiveLog, "close", broken)
    stage = Stage(ScriptedTokens([says(ANSWER)]))
    with pytest.raises(ValueError, match="a bug"):
        await stage.play()
    assert stage.live.closed.is_set()


async def test_a_stored_response_is_held_while_it_runs() -> None:
    stage = Stage(ScriptedTokens([says(ANSWER)], hang=True))

    async def look() -> None:
        await stage.tokens.reached.wait()
        assert stage.keeper.held == {stage.spec.head.uuid: stage.run}
        assert stage.run.claim == Claim(TENANT, stage.spec.head.uuid, 1)
        stage.run.cancel()

    await asyncio.gather(stage.run(), look())
    assert stage.keeper.dropped == [stage.run.claim]


async def test_an_abandoned_run_stops_its_backend_and_writes_nothing_more() -> None:
    stage = Stage(
        ScriptedTokens([says(THOUGHT, None)], hang=True),
        spec=run_spec(background=True),
        said=[Queued()],
    )
    written: list[Entry] = []

    async def abandon() -> None:
        await stage.tokens.reached.wait()
        written.extend(stage.journal.entries)
        stage.run.abandon()

    await asyncio.gather(stage.run(), abandon())
    assert stage.tokens.closed == 1
    assert stage.journal.entries == written
    assert stage.live.handed_over
    assert not stage.archive.finished
    assert stage.keeper.dropped == [stage.run.claim]


async def test_a_run_that_was_abandoned_does_not_end_because_it_is_cancelled_as_well() -> None:
    stage = Stage(ScriptedTokens([says(ANSWER)]), spec=run_spec(background=True), said=[Queued()])
    stage.run.abandon()
    stage.run.cancel()
    await stage.run()
    assert stage.live.handed_over
    assert not stage.journal.entries


async def test_abandoning_what_is_over_changes_nothing() -> None:
    stage = Stage(ScriptedTokens([says(ANSWER)]))
    await stage.play()
    stage.run.abandon()
    assert not stage.live.handed_over


async def test_a_claim_that_is_lost_at_the_end_shows_no_end() -> None:
    stage = Stage(
        ScriptedTokens([says(ANSWER)]),
        archive=MemoryArchive(ClaimLost()),
        spec=run_spec(background=True),
        said=[Queued()],
    )
    events = await stage.play()
    assert not events[-1].is_terminal
    assert stage.live.handed_over


@dataclass
class Books:
    """What was settled, and what was left to others."""

    settled: list[Used] = field(default_factory=list)
    left: int = 0

    def settle(self, charge: Charge, used: Used) -> None:
        self.settled.append(used)

    def release(self, charge: Charge) -> None:
        self.left += 1


@pytest.mark.parametrize("failure", [None, ClaimLost(), StoreUnavailable("gone")])
async def test_a_key_is_charged_once_for_a_response_whose_claim_is_lost(
    failure: Exception | None,
) -> None:
    """Who goes on with it, or has ended it, settles all of it."""
    books = Books()
    charge = Charge(cast("Gates", books), UUID(int=1), UUID(int=1), "gpt-oss-20b", "default")
    stage = Stage(
        ScriptedTokens([says(ANSWER)]),
        archive=MemoryArchive(failure),
        spec=replace(run_spec(background=True), charge=charge),
        said=[Queued()],
    )
    await stage.play()
    stage.run.settle()
    assert books.left == (failure is not None)
    assert [one.is_whole for one in books.settled] == ([] if failure else [True])


async def test_a_foreground_response_that_was_given_up_by_others_has_failed() -> None:
    """At its end, or while it talks: nobody goes on with it."""
    late = Stage(ScriptedTokens([says(ANSWER)]), archive=MemoryArchive(ClaimLost()))
    early = Stage(ScriptedTokens([says(THOUGHT, None)], hang=True))

    async def abandon() -> None:
        await early.tokens.reached.wait()
        early.run.abandon()

    await asyncio.gather(late.run(), early.run(), abandon())
    for stage in (late, early):
        events = await collected(stage.live.stream)
        assert events[-1].type == "response.failed"
        assert isinstance(stage.live.failure, ClaimLost)
        assert not stage.live.handed_over
        assert stage.keeper.dropped == [stage.run.claim]
        ((end, body),) = stage.archive.deposited
        assert end.status == "failed"
        assert body == orjson.loads(events[-1].data)["response"]


async def test_a_durable_end_that_cannot_be_committed_is_left_to_the_next_owner() -> None:
    stage = Stage(
        ScriptedTokens([says(ANSWER)]),
        archive=MemoryArchive(StoreUnavailable("gone")),
        spec=run_spec(background=True),
        said=[Queued()],
    )
    events = await stage.play()
    assert not events[-1].is_terminal
    assert stage.live.handed_over
    assert stage.text == "Hello there"


async def test_a_backend_is_not_read_while_the_database_is_behind() -> None:
    stage = Stage(ScriptedTokens([says(ANSWER)]), full_after=3)
    assert (await stage.play())[-1].type == "response.completed"
    assert stage.journal.waits == 1


async def test_a_claim_that_is_lost_while_the_database_is_behind_ends_the_run() -> None:
    stage = Stage(
        ScriptedTokens([says(ANSWER)]),
        spec=run_spec(background=True),
        said=[Queued()],
        full_after=3,
    )
    stage.journal.lost = ClaimLost()
    await stage.run()
    assert stage.live.handed_over
    assert stage.tokens.closed == 1
    assert len(stage.journal.entries) == 3


async def test_the_time_to_the_first_token_is_known() -> None:
    stage = Stage(ScriptedTokens([says(ANSWER)]))
    assert stage.run.first_token_s is None
    await stage.play()
    assert stage.run.first_token_s is not None
