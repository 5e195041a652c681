"""Laws of a run: where it is cut off, and by what, shows nowhere in what was generated."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import UpstreamError, UpstreamFailed, UpstreamLost, UpstreamUnavailable
from gateway.generation import FinishReason, TokenChunk, TokenRequest
from gateway.harmony.framing import continue_with_answer
from gateway.harmony.vocabulary import STOP_IDS
from gateway.log import Entry, Hop
from gateway.runs.turn import HopPolicy
from tests.fakes.harmony_script import script_ids
from tests.fakes.staged_run import Stage, specification

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterator, Sequence

laws = settings(deadline=None)

_NEXT: Final = "<|start|>assistant"
ANSWERS: Final = (
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
PROMPT: Final = specification().prompt_ids
POLICY: Final = HopPolicy(hops_max=64, hop_wait_s=60.0, pause_s=0.0)

Cut = tuple[int, type[UpstreamError]]


@dataclass
class Deterministic:
    """Backends that all say the same after the same prompt, until each meets its end.

    A cut is how many ids come before it, and what it is for a backend that said none; when there
    are no more cuts, the rest is said. `sizes` are those of the chunks, over and over.
    """

    turns: Sequence[list[int]]
    cuts: Iterator[Cut]
    sizes: Iterator[int]
    max_tokens: int
    calls: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    stop_after: int | None = None

    async def stream(
        self,
        request: TokenRequest,
        *,
        avoid: Collection[str] = (),
        attempts_max: int | None = None,
    ) -> AsyncGenerator[TokenChunk, None]:
        self.calls += 1
        name = f"gpu-{self.calls}"
        rest = self._rest(request.prompt_ids)[: request.sampling.max_tokens]
        said, kind = next(self.cuts, (len(rest), None))
        is_new = attempts_max is None
        if kind is not None and said == 0 and not is_new:
            raise kind("cut", upstream=name)
        for chunk in self._chunks(rest[:said] if said or not is_new else rest[:1]):
            await asyncio.sleep(0)
            yield TokenChunk(chunk)
            self._count(len(chunk))
        if kind is not None:
            raise UpstreamFailed("cut", upstream=name)
        stopped = bool(rest) and rest[-1] in STOP_IDS
        is_short = len(rest) == request.sampling.max_tokens and not stopped
        yield TokenChunk([], FinishReason.LENGTH if is_short else FinishReason.STOP)

    def _rest(self, prompt_ids: list[int]) -> list[int]:
        first = self.turns[0]
        continued = continue_with_answer(PROMPT, first)
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
    """What is said, into which chunks it falls, and how much of it may be said."""

    turns: tuple[str, ...]
    sizes: tuple[int, ...]
    max_tokens: int

    def stage(
        self, cuts: Sequence[Cut] = (), said: Sequence[Entry] | None = None
    ) -> Stage[Deterministic]:
        turns = [script_ids(turn) for turn in self.turns]
        tokens = Deterministic(turns, iter(cuts), cycle(self.sizes), self.max_tokens)
        spec = replace(specification(max_tokens=self.max_tokens), durable=True)
        return Stage(tokens, spec=spec, hops=POLICY, said=said)


scenes = st.builds(
    Scene,
    st.sampled_from(ANSWERS),
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
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


def outcome(stage: Stage[Any]) -> tuple[object, ...]:
    """All that a client has at the end, and what is stored, but the cache's share."""
    fold = stage.live.fold
    body = fold.response()
    usage = body.pop("usage")
    del usage["input_tokens_details"]
    body.pop("completed_at")
    return body, usage, fold.items(), fold.recoveries


@laws
@given(scenes, cuts.filter(survives))
def test_cuts_change_nothing_of_what_was_generated(scene: Scene, cuts: list[Cut]) -> None:
    async def play() -> None:
        whole, cut = scene.stage(), scene.stage(cuts)
        await whole.run()
        await cut.run()
        assert outcome(cut) == outcome(whole)
        hops = [entry for entry in cut.journal.entries if isinstance(entry, Hop)]
        assert len(hops) == cut.live.fold.hops <= min(len(cuts), POLICY.hops_max)
        assert cut.live.fold.usage.recomputed_tokens == sum(h.recomputed_tokens for h in hops)

    asyncio.run(play())


@laws
@given(scenes, cuts, st.integers(0, 3))
def test_there_are_never_more_hops_than_may_be(
    scene: Scene, cuts: list[Cut], hops_max: int
) -> None:
    async def play() -> None:
        stage = scene.stage(cuts)
        stage = Stage(stage.tokens, spec=stage.spec, hops=HopPolicy(hops_max, pause_s=0.0))
        await stage.run()
        assert stage.live.fold.is_finished
        assert stage.live.fold.hops <= hops_max

    asyncio.run(play())


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
        assert outcome(resumed) == outcome(whole)
        assert resumed.live.fold.takeovers == min(length, 1)

    asyncio.run(play())


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
        assert outcome(first) == outcome(whole)

    asyncio.run(play())
