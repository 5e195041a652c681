"""One model call, carried from backend to backend until it ends.

There is one layer of retries for each part of a call, never one inside of another:

* before the first id the pool tries several backends for one request, at no cost;
* after it the relay asks one backend at a time, with the prompt and all ids so far. That is a hop;
  `hops_max` of them are made for a response, counted from its log, so that takeovers do not start
  the count anew. A backend that refuses has done no work, and is no hop;
* a backend that took the request and was gone without a new id may have been brought down by it:
  `losses_max` of them in a row end the response, so that it does not walk through the fleet.

The parser and the fold just go on: to them a hop is nothing but a pause. What is done about a model
that does not do as it was told is decided in `steering`, and written into the log here.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from gateway.errors import (
    ClaimLost,
    ModelNotFound,
    NoUpstreamAvailable,
    UpstreamError,
    UpstreamFailed,
    UpstreamLost,
    UpstreamRejected,
)
from gateway.generation import FinishReason, TokenRequest, Where
from gateway.harmony.framing import thread_ids
from gateway.harmony.grammar import GrammarOptions, turn_constraint
from gateway.harmony.vocabulary import FIRST_SPECIAL, STOP_IDS
from gateway.log import Hold, Hop, Repair, Tokens, TurnEnded, TurnStarted
from gateway.runs.steering import BEGUN_ANEW, Course, Ending, Unruly

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Sequence

    from gateway.constraint import Constraint
    from gateway.generation import Sampling, TokenChunk
    from gateway.harmony.vocabulary import Vocabulary
    from gateway.log import Entry
    from gateway.output.fold import Body, Fold, Turn
    from gateway.runs.journal import Journal
    from gateway.runs.live import LiveLog
    from gateway.runs.observer import Observer
    from gateway.runs.specification import RunSpecification
    from gateway.runs.steering import Steering

INLINE_CHECK_CHARS: Final = 4096
"""So much text is checked at once, more in a thread."""


class TokenSource(Protocol):
    """Where tokens come from: the pool of backends.

    `avoid` names backends to use only if no other is left, `attempts_max` how many may be tried
    (None: as many as the pool tries for a new request). Raises `UpstreamError`: `UpstreamFailed`
    after the first chunk, any other before it.
    """

    def stream(
        self,
        request: TokenRequest,
        *,
        avoid: Collection[str] = (),
        attempts_max: int | None = None,
    ) -> AsyncGenerator[TokenChunk, None]: ...


@dataclass(frozen=True, slots=True)
class HopPolicy:
    """How much is done to keep a response alive whose backends die.

    `hop_wait_s` is how long a foreground response that has begun waits for a backend to go on,
    `upstream_wait_s` how long a background response waits for one at any time. Between two looks
    lie up to `pause_s`, doubled each time up to `pause_max_s`.
    """

    hops_max: int = 3
    losses_max: int = 2
    hop_wait_s: float = 10.0
    upstream_wait_s: float = 60.0
    pause_s: float = 0.05
    pause_max_s: float = 1.0


class Surroundings(Protocol):
    """What a relay needs of the engine."""

    @property
    def tokens(self) -> TokenSource: ...

    @property
    def hops(self) -> HopPolicy: ...

    @property
    def observer(self) -> Observer: ...

    @property
    def steering(self) -> Steering: ...

    @property
    def vocabulary(self) -> Vocabulary: ...


class Pen:
    """Writes into a journal until it is put down; then `append` raises `ClaimLost`."""

    def __init__(self, journal: Journal) -> None:
        self.is_down = False
        self._journal = journal

    @property
    def live(self) -> LiveLog:
        """What was written so far."""
        return self._journal.live

    def append(self, entry: Entry) -> None:
        """Write one entry. Never waits: see `is_ahead`."""
        if self.is_down:
            raise ClaimLost
        self._journal.append(entry)

    @property
    def is_ahead(self) -> bool:
        """It is time to let the database `catch_up`."""
        return self._journal.is_full

    async def catch_up(self) -> None:
        """Wait until the database is not too far behind. Raises `ClaimLost`."""
        await self._journal.room()


class Relay:
    """The model calls of one run. All it knows of them it reads from the log.

    `epoch` tells the requests of this replica from those of one before it. `first_token` is called
    when the first id comes.
    """

    def __init__(
        self,
        specification: RunSpecification,
        pen: Pen,
        engine: Surroundings,
        *,
        epoch: int,
        first_token: Callable[[], None],
    ) -> None:
        self._spec = specification
        self._pen = pen
        self._engine = engine
        self._epoch = epoch
        self._course = Course(
            specification.rules,
            engine.steering,
            engine.vocabulary,
            reasoning_budget=specification.reasoning_budget,
        )
        self._first_token: Callable[[], None] | None = first_token
        self._left: set[str] = set()
        self._attempts = 0
        self._losses = 0
        self._refusals = 0
        self._refused_at = 0.0
        self._is_announced = False
        self._is_resent = False
        self._at_header = True
        self._upstream = ""
        self._cached_tokens = 0
        self._is_compiled = False

    @property
    def _fold(self) -> Fold:
        return self._pen.live.fold

    async def complete(self) -> None:
        """Call the model until there is nothing left to do, from wherever the log stands.

        Raises `UpstreamError`, `ClaimLost`, and `Unruly` for a model that will not obey.
        """
        if self._fold.turns:
            self._take_over()
            await self._go_on()
        else:
            await self._call(())
        while (prefill := self._next_prefill()) is not None:
            await self._call(prefill)

    @property
    def lacks_call(self) -> bool:
        """A call is required, and none was made."""
        return self._course.lacks_call(self._fold)

    def _take_over(self) -> None:
        """Write down that this replica goes on with what another had begun."""
        turn = self._fold.open_turn
        resend = turn is not None and self._unsaid_ending(turn) is None
        self._hop(Hop("replica", len(self._sent_ids(turn)) if turn and resend else 0))
        # The ids that are about to be sent again are in the log with this.
        self._is_announced = resend

    def _next_prefill(self) -> tuple[int, ...] | None:
        """What opens the next turn; None when no other is needed, or there is no room for it."""
        prefill = self._course.next_prefill(self._fold, self._pen.live.last_repair)
        if prefill is None or self._generated([*self._turns(), (prefill, ())]) >= self._tokens_max:
            return None
        return prefill

    async def _call(self, prefill: tuple[int, ...]) -> None:
        """Begin a turn, and see it to its end."""
        input_tokens = 0 if self._fold.turns else len(self._spec.prompt_ids)
        self._pen.append(TurnStarted(input_tokens, prefill))
        await self._go_on()

    async def _go_on(self) -> None:
        """See the open turn to its end, if there is one."""
        turn = self._fold.open_turn
        if turn is None:
            return
        self._losses = self._refusals = self._cached_tokens = 0
        self._at_header = True
        while (ending := self._unsaid_ending(turn)) is None:
            try:
                ending = await self._attempt(turn)
            except UpstreamError as error:
                await self._recover(error)
            else:
                break
        await self._end(turn, ending)

    def _unsaid_ending(self, turn: Turn) -> Ending | None:
        """How a turn ends whose end nobody has written; None while there is more to come."""
        rule = self._pen.live.last_repair
        if rule is not None and rule != BEGUN_ANEW:
            return Ending(rule=rule, is_written=True)
        if (ending := self._course.look(self._fold, at_header=True)) is not None:
            return ending
        if turn.said and turn.said[-1] in STOP_IDS:
            return Ending(FinishReason.STOP)
        return Ending(FinishReason.LENGTH) if self._sampling().max_tokens <= 0 else None

    async def _end(self, turn: Turn, ending: Ending) -> None:
        """Write the end of a turn, once all is checked that it would show."""
        if not ending.rule and self._course.exceeds_budget(self._fold):
            ending = self._course.out_of_budget(self._fold)
        finish = self._settle(turn, ending)
        while (fault := await self._fault(finish)) is not None:
            finish = self._settle(turn, fault)
        # What the first attempt found in its cache is what the caller pays less for; who went on
        # found the ids of the attempts before it, too, and counts nothing.
        self._pen.append(TurnEnded(finish, 0 if turn.hops else self._cached_tokens))

    def _settle(self, turn: Turn, ending: Ending) -> FinishReason:
        """Take back what must not be shown. Raises `Unruly` when there is no use in going on."""
        if ending.rule:
            if not ending.is_written:
                self._repair(turn, ending.start, ending.rule)
            ending = self._course.after_repair(self._fold, ending.rule)
        if ending.failure:
            raise Unruly(ending.failure)
        return ending.finish

    async def _fault(self, finish: FinishReason) -> Ending | None:
        """What is to be done about the first body that is wrong, of those that would be shown."""
        if not self._course.has_checks:
            return None
        bodies = self._fold.bodies_after(finish)
        if bodies and not self._is_compiled:
            # It is already, unless another replica accepted the response.
            await asyncio.to_thread(self._spec.checker.compile)
            self._is_compiled = True
        for body in bodies:
            if body.kind != "refusal" and await self._is_faulty(body):
                return self._course.faulty(self._fold, body)
        return None

    async def _is_faulty(self, body: Body) -> bool:
        checker = self._spec.checker

        def fault() -> str | None:
            if body.kind == "call":
                return checker.call_fault(body.name, body.text)
            return checker.answer_fault(body.text)

        is_short = len(body.text) <= INLINE_CHECK_CHARS
        return (fault() if is_short else await asyncio.to_thread(fault)) is not None

    def _repair(self, turn: Turn, start: int | None, rule: str) -> None:
        """Take back what was said from position `start` on, of that what the model said itself."""
        size = len(turn.prefill)
        voided = 0 if start is None else size + len(turn.said) - max(start, size)
        self._pen.append(Repair(voided, rule))
        self._engine.observer.repaired(self._spec, rule, voided, self._upstream)

    async def _attempt(self, turn: Turn) -> Ending:
        """Until the turn ends, at one backend, or before the first id at one of several."""
        self._attempts += 1
        self._is_resent = bool(turn.said)
        if self._is_resent:
            self._begin_anew(turn)
        request = self._request(turn)
        chunks = self._engine.tokens.stream(
            request, avoid=self._left, attempts_max=1 if self._is_resent else None
        )
        resent = len(request.prompt_ids) if self._is_resent else 0
        is_taken, finish = False, None
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    if not is_taken:
                        self._taken(resent)
                        self._meet(chunk)
                        is_taken = True
                    if (ending := self._hear(chunk)) is not None:
                        return ending
                    finish = chunk.finish
                    if self._pen.is_ahead:
                        await self._pen.catch_up()
        except UpstreamLost:
            self._taken(resent)
            raise
        except ModelNotFound as error:
            raise NoUpstreamAvailable(self._spec.model, "no backend lists it now") from error
        if finish is None:
            raise UpstreamFailed("the generation has no end", upstream=self._upstream)
        return Ending(finish)

    def _begin_anew(self, turn: Turn) -> None:
        """Take back a message that another backend does better to begin again."""
        start = self._course.begin_anew(self._fold)
        if start is not None and max(start, len(turn.prefill)) < len(turn.prefill) + len(turn.said):
            self._repair(turn, start, BEGUN_ANEW)

    def _taken(self, resent: int) -> None:
        """A backend works on the turn; `resent` of the ids it reads were read before."""
        if resent and not self._is_announced:
            self._hop(Hop("backend", resent))
        self._is_announced = False

    def _meet(self, first: TokenChunk) -> None:
        """A backend sends its first chunk: it tells whether it holds the model to the rules."""
        self._upstream = first.upstream
        if not self._course.has_checks:
            return
        self._engine.observer.constrained(first.upstream, is_constrained=first.constrained)
        if not first.constrained and not self._fold.is_held:
            self._pen.append(Hold())

    def _hear(self, chunk: TokenChunk) -> Ending | None:
        """Write what a chunk brings, up to where the gateway ends the turn, if it does."""
        if chunk.cached_tokens:
            self._cached_tokens = chunk.cached_tokens
        if chunk.ids and self._first_token is not None:
            self._first_token()
            self._first_token = None
        at = 0
        while at < len(chunk.ids):
            ids = chunk.ids[at:] if at else chunk.ids
            count = self._course.stretch(self._fold, ids)
            if not count:
                return self._course.out_of_budget(self._fold)
            logprobs = chunk.logprobs[at : at + count] if chunk.logprobs else ()
            self._pen.append(Tokens(tuple(ids[:count]), tuple(logprobs)))
            if (ending := self._look(ids[0])) is not None:
                return ending
            at += count
        return None

    def _look(self, token: int) -> Ending | None:
        """After a marker, or text that begins with `token`: what is to be done, if anything."""
        at_header = self._at_header or token >= FIRST_SPECIAL
        ending = self._course.look(self._fold, at_header=at_header)
        if at_header:
            self._at_header = self._fold.place.where is not Where.BODY
        return ending

    async def _recover(self, error: UpstreamError) -> None:
        """Return when another attempt may be made; raise `error` when none may."""
        if isinstance(error, UpstreamFailed):
            self._losses = self._refusals = 0
        elif isinstance(error, UpstreamRejected):
            raise error
        elif isinstance(error, UpstreamLost):
            self._losses += 1
            # Before the first id the pool has tried all that may be tried.
            if self._losses >= self._engine.hops.losses_max or not self._is_resent:
                raise error
        else:
            await self._wait_for_a_backend(error)
            return
        if self._fold.hops >= self._engine.hops.hops_max:
            raise error
        self._leave(error)

    async def _wait_for_a_backend(self, error: UpstreamError) -> None:
        """Nobody took the request, which cost nothing: try the others, then wait for any."""
        now = asyncio.get_running_loop().time()
        if not self._refusals:
            self._refused_at = now
        self._refusals += 1
        if not isinstance(error, NoUpstreamAvailable) and error.upstream not in self._left:
            self._leave(error)
            return
        left_s = self._refused_at + self._wait_max_s() - now
        if left_s <= 0:
            raise error
        policy = self._engine.hops
        ceiling_s = min(policy.pause_s * 2.0 ** min(self._refusals, 30), policy.pause_max_s, left_s)
        await asyncio.sleep(random.uniform(0, ceiling_s))  # noqa: S311 - spreads load, no secret

    def _wait_max_s(self) -> float:
        if self._spec.head.background:
            return self._engine.hops.upstream_wait_s
        usage = self._fold.usage
        is_begun = usage.output_tokens or usage.voided_tokens
        return self._engine.hops.hop_wait_s if is_begun else 0.0

    def _leave(self, error: UpstreamError) -> None:
        self._left.add(error.upstream)
        self._engine.observer.left(self._spec, error)

    def _hop(self, hop: Hop) -> None:
        self._pen.append(hop)
        self._engine.observer.went_on(self._spec, hop)

    def _request(self, turn: Turn) -> TokenRequest:
        number = len(self._fold.turns)
        return TokenRequest(
            request_id=f"{self._spec.head.uuid.hex}-{number}-{self._epoch}-{self._attempts}",
            model=self._spec.model,
            prompt_ids=self._sent_ids(turn),
            sampling=self._sampling(),
            cache_salt=self._spec.cache_salt,
            constraint=self._constraint(turn),
            priority=self._spec.priority,
        )

    def _constraint(self, turn: Turn) -> Constraint | None:
        place = self._fold.place
        options = GrammarOptions(
            refusals=self._course.refusals, reasoning=self._course.may_think(self._fold)
        )
        message = [*turn.prefill, *turn.said][place.start :]
        return turn_constraint(self._spec.rules, place, message, options)

    @property
    def _tokens_max(self) -> int:
        return self._spec.sampling.max_tokens

    def _sampling(self) -> Sampling:
        """For what is left: the ids that open an answer take room in the window, too.

        What was taken back takes none, but the random numbers must be others than before.
        """
        generated = self._generated(self._turns())
        sampling = self._spec.sampling.after(generated + self._fold.usage.voided_tokens)
        return replace(sampling, max_tokens=self._tokens_max - generated)

    def _generated(self, turns: Sequence[tuple[Sequence[int], Sequence[int]]]) -> int:
        """How many ids these turns put behind the prompt."""
        return len(thread_ids((), turns))

    def _sent_ids(self, turn: Turn) -> list[int]:
        if len(self._fold.turns) == 1 and not turn.said:
            return self._spec.prompt_ids
        return thread_ids(self._spec.prompt_ids, self._turns())

    def _turns(self) -> list[tuple[Sequence[int], Sequence[int]]]:
        return [(turn.prefill, turn.said) for turn in self._fold.turns]
