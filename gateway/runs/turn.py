"""One model call, carried from backend to backend until it ends.

There is one layer of retries for each part of a call, never one inside of another:

* before the first id the pool tries several backends for one request, at no cost;
* after it the relay asks one backend at a time, with the prompt and all ids so far. That is a hop;
  `hops_max` of them are made for a response, counted from its log, so that takeovers do not start
  the count anew. A backend that refuses has done no work, and is no hop;
* a backend that took the request and was gone without a new id may have been brought down by it:
  `losses_max` of them in a row end the response, so that it does not walk through the fleet.

The parser and the fold just go on: to them a hop is nothing but a pause.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gateway.errors import (
    ClaimLost,
    ModelNotFound,
    NoUpstreamAvailable,
    UpstreamError,
    UpstreamFailed,
    UpstreamLost,
    UpstreamRejected,
)
from gateway.generation import FinishReason, TokenRequest
from gateway.harmony.framing import continue_with_answer
from gateway.harmony.vocabulary import STOP_IDS
from gateway.log import Hop, Tokens, TurnEnded, TurnStarted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection

    from gateway.generation import Sampling, TokenChunk
    from gateway.log import Entry
    from gateway.output.fold import Fold, Turn
    from gateway.runs.journal import Journal
    from gateway.runs.live import LiveLog
    from gateway.runs.observer import Observer
    from gateway.runs.specification import RunSpecification


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
        self._first_token: Callable[[], None] | None = first_token
        self._left: set[str] = set()
        self._attempts = 0
        self._losses = 0
        self._refusals = 0
        self._refused_at = 0.0
        self._is_announced = False

    @property
    def _fold(self) -> Fold:
        return self._pen.live.fold

    def take_over(self) -> None:
        """Write down that this replica goes on with what another had begun."""
        turn = self._fold.open_turn
        resend = turn is not None and self._unsaid_finish(turn) is None
        self._hop(Hop("replica", len(self._sent_ids(turn)) if turn and resend else 0))
        # The ids that are about to be sent again are in the log with this.
        self._is_announced = resend

    async def call(self, prefill: tuple[int, ...] = ()) -> None:
        """Begin a turn, and see it to its end. Raises `UpstreamError`, `ClaimLost`."""
        prompt_ids = self._prompt_ids(prefill)
        self._pen.append(TurnStarted(0 if prefill else len(prompt_ids), prefill))
        await self.go_on()

    async def go_on(self) -> None:
        """See the open turn to its end, if there is one. Raises `UpstreamError`, `ClaimLost`."""
        turn = self._fold.open_turn
        if turn is None:
            return
        self._losses = self._refusals = 0
        while (finish := self._unsaid_finish(turn)) is None:
            try:
                await self._attempt(turn)
            except UpstreamError as error:
                await self._recover(turn, error)
            else:
                return
        self._pen.append(TurnEnded(finish))

    def _unsaid_finish(self, turn: Turn) -> FinishReason | None:
        """How a turn ended whose backend could not say so; None while there is more to come."""
        if turn.said and turn.said[-1] in STOP_IDS:
            return FinishReason.STOP
        return FinishReason.LENGTH if self._sampling(turn).max_tokens <= 0 else None

    async def _attempt(self, turn: Turn) -> None:
        """Until the turn has ended, at one backend, or before the first id at one of several."""
        self._attempts += 1
        request = self._request(turn)
        chunks = self._engine.tokens.stream(
            request, avoid=self._left, attempts_max=1 if turn.said else None
        )
        resent = len(request.prompt_ids) if turn.said else 0
        is_taken = False
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    if not is_taken:
                        self._taken(resent)
                        is_taken = True
                    self._hear(turn, chunk)
                    if self._pen.is_ahead:
                        await self._pen.catch_up()
        except UpstreamLost:
            self._taken(resent)
            raise
        except ModelNotFound as error:
            raise NoUpstreamAvailable(self._spec.model, "no backend lists it now") from error

    def _taken(self, resent: int) -> None:
        """A backend works on the turn; `resent` of the ids it reads were read before."""
        if resent and not self._is_announced:
            self._hop(Hop("backend", resent))
        self._is_announced = False

    def _hear(self, turn: Turn, chunk: TokenChunk) -> None:
        if chunk.ids:
            if self._first_token is not None:
                self._first_token()
                self._first_token = None
            self._pen.append(Tokens(tuple(chunk.ids)))
        if chunk.finish is not None:
            # What the first attempt found in its cache is what the caller pays less for; who went
            # on found the ids of the attempts before it, too, and counts nothing.
            cached_tokens = 0 if turn.hops else chunk.cached_tokens or 0
            self._pen.append(TurnEnded(chunk.finish, cached_tokens))

    async def _recover(self, turn: Turn, error: UpstreamError) -> None:
        """Return when another attempt may be made; raise `error` when none may."""
        if isinstance(error, UpstreamFailed):
            self._losses = self._refusals = 0
        elif isinstance(error, UpstreamRejected):
            raise error
        elif isinstance(error, UpstreamLost):
            self._losses += 1
            # Before the first id the pool has tried all that may be tried.
            if self._losses >= self._engine.hops.losses_max or not turn.said:
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
        return self._engine.hops.hop_wait_s if self._fold.usage.output_tokens else 0.0

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
            sampling=self._sampling(turn),
            cache_salt=self._spec.cache_salt,
        )

    def _sampling(self, turn: Turn) -> Sampling:
        """For what is left: the ids that open an answer take room in the window, too."""
        beyond = len(self._prompt_ids(turn.prefill)) - len(self._spec.prompt_ids)
        return self._spec.sampling.after(beyond + len(turn.said))

    def _sent_ids(self, turn: Turn) -> list[int]:
        prompt_ids = self._prompt_ids(turn.prefill)
        return [*prompt_ids, *turn.said] if turn.said else prompt_ids

    def _prompt_ids(self, prefill: tuple[int, ...]) -> list[int]:
        """What a turn was asked to continue: only the one that opens the answer has a prefill."""
        if not prefill:
            return self._spec.prompt_ids
        return continue_with_answer(self._spec.prompt_ids, self._fold.turns[0].said)
