"""Laws of a run: where it is cut off, and by what, shows nowhere in what was generated."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.constraints.validation import Checker
from gateway.engine.failover import HopPolicy
from gateway.engine.output_guard import WITHIN_TURN
from gateway.entries import Entry, Hop
from gateway.errors import UpstreamError, UpstreamFailed, UpstreamLost, UpstreamUnavailable
from gateway.generation import FinishReason, TokenChunk, TokenRequest
from gateway.models.harmony.harmony_format import answer_header, turn_ids
from gateway.models.harmony.tokenizer import END, STOP_IDS
from gateway.protocol.call_items import call_fields
from tests.fakes.guarded_run import ANY_TOOL, FREE, IN_JSON, JSON_ANSWER, REQUIRED, STRICT
from tests.fakes.harmony_script import script_ids
from tests.fakes.staged_run import NO_RULES, THOUGHT, Stage, run_spec
from tests.fakes.token_delivery import tell

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterator, Sequence

    from gateway.constraints.output_rules import OutputRules
    from gateway.generation import RenderedItem, TokenSink

    Json = dict[str, Any]
    Outcome = tuple[Json, Json, list[RenderedItem], Json]

laws = settings(deadline=None)

_NEXT: Final = "<|start|>assistant"
SHELL: Final = "<|channel|>commentary to=functions.local_shell <|constrain|>json<|message|>"
FREE_SPEECHES: Final = (
    ("<|channel|>final<|message|>One, two, three.<|return|>",),
    (
        "<|channel|>analysis<|message|>Hm, well.<|end|>"
        + _NEXT
        + "<|channel|>final<|message|>Grüße \U0001f469‍\U0001f680<|return|>",
    ),
    (
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
        + '{"city": "Bern"}<|call|>',
    ),
    # What stops without an answer is asked for one: a second turn.
    ("<|channel|>analysis<|message|>Hm, well.<|end|>", "So it is.<|return|>"),
    # Not quite Harmony: the parser repairs it.
    ("Just text, without any header.<|return|>",),
)
SPEECHES: Final = (
    *((NO_RULES, turns) for turns in FREE_SPEECHES),
    (IN_JSON, (THOUGHT + _NEXT + JSON_ANSWER,)),
    (IN_JSON, (THOUGHT + _NEXT + "<|channel|>final<|message|>I'm sorry, I cannot.<|return|>",)),
    (IN_JSON, (THOUGHT + "<|return|>", '{"n": 2}<|return|>')),
    (REQUIRED, (THOUGHT + _NEXT + FREE + "<|call|>",)),
    (ANY_TOOL, (THOUGHT + _NEXT + FREE + "<|end|>" + _NEXT + STRICT + '{"n": 1}<|call|>',)),
    (ANY_TOOL, (SHELL + '{"command": ["ls", "-l"]}<|call|>',)),
    (ANY_TOOL, ("<|channel|>final<|message|>None of these.<|return|>",)),
)
"""What is demanded, and what a model says that obeys."""
PROMPT: Final = run_spec().prompt_ids
POLICY: Final = HopPolicy(hops_max=64, hop_wait_s=60.0, pause_s=0.0)

Cut = tuple[int, type[UpstreamError]]


@dataclass
class Deterministic:
    """Backends that all say the same after the same prompt, until each meets its end.

    A cut is how many ids come before it, and what it is for a backend that said none; when there
    are no more cuts, the rest is said. `sizes` are those of the chunks, over and over. `vouches`
    tells of one attempt after the other whether it is held to its constraint, if it has one.
    """

    turns: Sequence[list[int]]
    cuts: Iterator[Cut]
    sizes: Iterator[int]
    vouches: Iterator[bool]
    header: tuple[int, ...]
    calls: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    stop_after: int | None = None

    async def generate(
        self,
        request: TokenRequest,
        sink: TokenSink,
        *,
        avoid: Collection[str] = (),
        attempts_max: int | None = None,
    ) -> None:
        self.calls += 1
        await tell(sink, self._say(request, is_new=attempts_max is None))

    async def _say(
        self, request: TokenRequest, *, is_new: bool
    ) -> AsyncGenerator[TokenChunk, None]:
        name = f"gpu-{self.calls}"
        rest = self._rest(list(request.prompt_ids))[: request.sampling.max_tokens]
        said, kind = next(self.cuts, (len(rest), None))
        is_held = next(self.vouches) and request.constraint is not None
        if kind is not None and said == 0 and not is_new:
            raise kind("cut", upstream=name)
        for chunk in self._chunks(rest[:said] if said or not is_new else rest[:1]):
            await asyncio.sleep(0)
            yield TokenChunk(chunk, constrained=is_held)
            self._count(len(chunk))
        if kind is not None:
            raise UpstreamFailed("cut", upstream=name)
        stopped = bool(rest) and rest[-1] in STOP_IDS
        is_short = len(rest) == request.sampling.max_tokens and not stopped
        finish = FinishReason.LENGTH if is_short else FinishReason.STOP
        yield TokenChunk([], finish, constrained=is_held)

    def _rest(self, prompt_ids: list[int]) -> list[int]:
        first = self.turns[0]
        continued = [*PROMPT, *turn_ids([((), first), (self.header, ())])]
        if len(self.turns) > 1 and prompt_ids[: len(continued)] == continued:
            return self.turns[1][len(prompt_ids) - len(continued) :]
        return first[len(prompt_ids) - len(PROMPT) :]

    def _chunks(self, ids: list[int]) -> Iterator[list[int]]:
        while ids:
            size = next(self.sizes)
            yield ids[:size]
            ids = ids[size:]

    def _count(self, said: int) -> None:
        if self.stop_after is not None:
            self.stop_after -= said
            if self.stop_after <= 0:
                self.reached.set()


@dataclass(frozen=True)
class Scene:
    """What is said, into which chunks it falls, who vouches, and how much of it may be said."""

    speech: tuple[OutputRules, tuple[str, ...]]
    sizes: tuple[int, ...]
    vouches: tuple[bool, ...]
    max_tokens: int

    def stage(
        self, cuts: Sequence[Cut] = (), said: Sequence[Entry] | None = None
    ) -> Stage[Deterministic]:
        rules, scripts = self.speech
        tokens = Deterministic(
            [script_ids(script) for script in scripts],
            iter(cuts),
            cycle(self.sizes),
            cycle(self.vouches),
            answer_header(rules, attempt=0),
        )
        spec = replace(
            run_spec(max_tokens=self.max_tokens),
            rules=rules,
            checker=Checker(rules, call_fields),
            durable=True,
        )
        return Stage(tokens, spec=spec, hops=POLICY, said=said)


scenes = st.builds(
    Scene,
    st.sampled_from(SPEECHES),
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    st.lists(st.booleans(), min_size=1, max_size=3).map(tuple),
    st.integers(3, 40) | st.just(1000),
)
cuts = st.lists(
    st.tuples(
        st.integers(0, 5), st.sampled_from([UpstreamFailed, UpstreamLost, UpstreamUnavailable])
    ),
    max_size=12,
).map(
    lambda drawn: [
        (said or 1, kind) if kind is UpstreamFailed else (said, kind) for said, kind in drawn
    ]
)


def survives(cuts: list[Cut]) -> bool:
    """Never are two in a row lost without a word, refusals between them aside."""
    losses = 0
    for said, kind in cuts:
        if said:
            losses = 0
        losses += not said and kind is UpstreamLost
        if losses == POLICY.losses_max:
            return False
    return True


def outcome(stage: Stage[Any]) -> Outcome:
    """All that a client has at the end, and what is stored, but the cache's share, and what was
    done about the cuts.
    """
    fold = stage.live.fold
    body = fold.response()
    usage = body.pop("usage")
    del usage["input_tokens_details"]
    body.pop("completed_at")
    recoveries = {rule: n for rule, n in fold.recoveries.items() if rule not in WITHIN_TURN}
    return body, usage, fold.items(), recoveries


def is_closed(stage: Stage[Any]) -> bool:
    """The model itself ended what it said last. No backend is asked for that alone: where a turn
    broke off and all is said, the turn is over.
    """
    said = stage.live.fold.turns[-1].output_ids
    return bool(said) and said[-1] in STOP_IDS


def is_found_complete(stage: Stage[Any], other: Stage[Any]) -> bool:
    """It broke off behind a call that is complete, so nobody asked the model for the end, while in
    `other` the model closed that call as if there was more to say.
    """
    turns, whole = stage.live.fold.turns, other.live.fold.turns
    said = turns[-1].output_ids
    if turns[-1].finish is not FinishReason.STOP or is_closed(stage) or len(turns) > len(whole):
        return False
    more = whole[len(turns) - 1].output_ids[len(said) :]
    return bool(more) and more[0] == END


def check_alike(one: Stage[Any], other: Stage[Any]) -> None:
    """The same outcome, but for the id that the model would have ended a broken turn with."""
    outcomes = [outcome(stage) for stage in (one, other)]
    for found, whole, (mine, theirs) in ((one, other, (0, 1)), (other, one, (1, 0))):
        if is_found_complete(found, whole):
            output = outcomes[mine][0]["output"]
            assert output == outcomes[theirs][0]["output"][: len(output)]
            return
    if is_closed(one) != is_closed(other):
        closed = 0 if is_closed(one) else 1
        outcomes[closed] = unclosed(*outcomes[closed])
    assert outcomes[0] == outcomes[1]


def unclosed(body: Json, usage: Json, items: list[RenderedItem], recoveries: Json) -> Outcome:
    """An outcome whose last turn the model did not end."""
    counts = {name: usage[name] - 1 for name in ("output_tokens", "total_tokens")}
    return body, {**usage, **counts}, [*items[:-1], replace(items[-1], ids=None)], recoveries


@pytest.mark.slow
@laws
@given(scenes, cuts.filter(survives))
def test_cuts_change_nothing_of_what_was_generated(scene: Scene, cuts: list[Cut]) -> None:
    async def play() -> None:
        whole, cut = scene.stage(), scene.stage(cuts)
        await whole.run()
        await cut.run()
        check_alike(cut, whole)
        hops = [entry for entry in cut.journal.entries if isinstance(entry, Hop)]
        assert len(hops) == cut.live.fold.hops <= min(len(cuts), POLICY.hops_max)
        assert cut.live.fold.usage.recomputed_tokens == sum(h.recomputed_tokens for h in hops)

    asyncio.run(play())


@pytest.mark.slow
@laws
@given(scenes, cuts, st.integers(0, 3))
def test_there_are_never_more_hops_than_may_be(
    scene: Scene, cuts: list[Cut], hops_max: int
) -> None:
    async def play() -> None:
        stage = scene.stage(cuts)
        stage = Stage(stage.tokens, spec=stage.spec, hops=HopPolicy(hops_max, pause_s=0.0))
        await stage.run()
        assert stage.live.fold.shown.is_finished
        assert stage.live.fold.hops <= hops_max

    asyncio.run(play())


@pytest.mark.slow
@laws
@given(scenes, cuts.filter(survives), st.data())
def test_every_prefix_of_a_log_leads_to_the_same_end(
    scene: Scene, cuts: list[Cut], data: st.DataObject
) -> None:
    async def play() -> None:
        whole = scene.stage(cuts)
        await whole.run()
        log = whole.journal.entries[:-1]
        length = data.draw(st.integers(0, len(log)))
        resumed = scene.stage(said=log[:length])
        await resumed.run()
        check_alike(resumed, whole)
        hops = [entry for entry in resumed.journal.entries if isinstance(entry, Hop)]
        assert sum(hop.reason == "replica" for hop in hops) == min(length, 1)

    asyncio.run(play())


@pytest.mark.slow
@laws
@given(scenes, cuts.filter(survives), st.integers(1, 30))
def test_after_it_was_abandoned_a_run_writes_nothing_and_another_ends_it(
    scene: Scene, cuts: list[Cut], stop_after: int
) -> None:
    async def play() -> None:
        whole, first = scene.stage(), scene.stage(cuts)
        first.tokens.stop_after = stop_after
        written: list[Entry] = []

        async def abandon() -> None:
            await first.tokens.reached.wait()
            if not first.live.closed.is_set():
                written.extend(first.journal.entries)
                first.run.abandon()

        async with asyncio.TaskGroup() as group:
            abandoning = group.create_task(abandon())
            await first.run()
            abandoning.cancel()
        await whole.run()
        if first.live.handed_over:
            assert first.journal.entries == written
            first = scene.stage(said=written)
            await first.run()
        check_alike(first, whole)

    asyncio.run(play())
