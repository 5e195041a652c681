"""One run, top to bottom: prompt → backend → log → (commit) → the last event.

Whatever happens, the log ends with exactly one `Finished`, and what `store: true` promised is
committed before a reader sees the end.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gateway.errors import GatewayError
from gateway.generation import FinishReason, TokenRequest
from gateway.harmony.framing import FINAL_HEADER, continue_with_answer
from gateway.log import Tokens, TurnEnded, TurnStarted
from gateway.runs import outcome
from gateway.runs.keepalive import KeepAlive

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from gateway.generation import TokenChunk
    from gateway.log import Finished
    from gateway.output.fold import Fold
    from gateway.runs.archive import Archive
    from gateway.runs.live import LiveLog
    from gateway.runs.observer import Observer
    from gateway.runs.specification import RunSpecification


class TokenSource(Protocol):
    """Where tokens come from: the pool of backends, which picks one and tries others."""

    def stream(self, request: TokenRequest) -> AsyncGenerator[TokenChunk, None]: ...


@dataclass(frozen=True, slots=True)
class Engine:
    """What all runs of a process share."""

    tokens: TokenSource
    archive: Archive
    observer: Observer
    alive_interval_s: float
    run_time_max_s: float


class Run:
    """One attempt to generate one response. Call it once."""

    def __init__(
        self,
        specification: RunSpecification,
        live: LiveLog,
        engine: Engine,
        *,
        requested_at: float | None = None,
    ) -> None:
        """`requested_at` is when the request came, in seconds of `time.perf_counter`; now."""
        self._spec = specification
        self._live = live
        self._engine = engine
        self._turns = 0
        self._output_ids: list[int] = []
        self._requested_at = time.perf_counter() if requested_at is None else requested_at
        self._scope: asyncio.Timeout | None = None
        self._cancelled: Callable[[int], Finished] | None = None
        self.begun = asyncio.Event()
        """What `store: true` promises is recorded, or the log says why it is not."""
        self.first_token_s: float | None = None
        """Seconds from the request to the first id."""

    def cancel(self, because: Callable[[int], Finished] = outcome.hung_up) -> None:
        """End the generation, if it is still going on; what exists is committed and shown."""
        self._cancelled = self._cancelled or because
        # A scope that has expired is being left already, and refuses to expire again.
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def __call__(self) -> None:
        """Record, generate, commit, show the end: readers can see it when this returns."""
        try:
            if await self._begin():
                with KeepAlive(self._live, self._engine.alive_interval_s):
                    finished = await self._generate()
                await self._finish(finished)
        except Exception as error:  # noqa: BLE001 - the outermost frame: readers wait for an end
            self._engine.observer.failed(self._spec, error)
            self._live.give_up(error)
        finally:
            self.begun.set()

    async def _begin(self) -> bool:
        """Whether the response is recorded, before a token is spent.

        It happens here and not before the run, because a client that leaves meanwhile must not
        leave a response behind that never ends.
        """
        if self._spec.store:
            try:
                await self._engine.archive.begin(self._spec)
            except GatewayError as error:
                self._fail(error)
                finished = outcome.not_stored(_now())
                self._live.close(finished, self._live.fold.apply(finished))
                return False
        self.begun.set()
        return True

    async def _generate(self) -> Finished:
        if self._cancelled:
            return self._cancelled(_now())
        scope = asyncio.timeout(self._engine.run_time_max_s)
        try:
            async with scope as self._scope:
                await self._turns_until_answer()
        except Exception as error:  # noqa: BLE001 - whatever broke, readers get an end
            if scope.expired():
                return self._expired()
            self._fail(error)
            return outcome.broken(error, _now())
        finally:
            self._scope = None
        fold = self._live.fold
        return outcome.ended(fold.last_finish, _now(), visible=fold.visible)

    def _expired(self) -> Finished:
        return (self._cancelled or outcome.took_too_long)(_now())

    async def _turns_until_answer(self) -> None:
        await self._turn(self._spec.prompt_ids)
        if self._stopped_without_answer():
            prompt_ids = continue_with_answer(self._spec.prompt_ids, self._output_ids)
            await self._turn(prompt_ids, FINAL_HEADER)

    def _stopped_without_answer(self) -> bool:
        """Recovery rule R10 applies: nothing is visible, and there is room to go on."""
        fold = self._live.fold
        return (
            fold.last_finish is FinishReason.STOP
            and not fold.visible
            and len(self._output_ids) + len(FINAL_HEADER) + 2 < self._spec.sampling.max_tokens
        )

    async def _turn(self, prompt_ids: list[int], prefill: tuple[int, ...] = ()) -> None:
        self._turns += 1
        request = TokenRequest(
            request_id=f"{self._spec.head.uuid.hex}-{self._turns}",
            model=self._spec.model,
            prompt_ids=prompt_ids,
            # The ids that open the answer take room in the context window, too.
            sampling=self._spec.sampling.after(len(prompt_ids) - len(self._spec.prompt_ids)),
            cache_salt=self._spec.cache_salt,
        )
        self._live.append(TurnStarted(0 if prefill else len(prompt_ids), prefill))
        async with aclosing(self._engine.tokens.stream(request)) as chunks:
            async for chunk in chunks:
                if chunk.ids:
                    self._hear(chunk.ids)
                if chunk.finish is not None:
                    self._live.append(TurnEnded(chunk.finish, chunk.cached_tokens or 0))

    def _hear(self, ids: list[int]) -> None:
        if not self._output_ids:
            self.first_token_s = time.perf_counter() - self._requested_at
            self._engine.observer.first_token(self._spec, self.first_token_s)
        self._output_ids += ids
        self._live.append(Tokens(tuple(ids)))

    async def _finish(self, finished: Finished) -> None:
        fold, archive = self._live.fold, self._engine.archive
        events = fold.apply(finished)
        if self._spec.store:
            try:
                await archive.finish(self._spec, finished, fold)
            except Exception as error:  # noqa: BLE001 - whatever broke, readers get an end
                self._fail(error)
                finished = outcome.not_stored(_now())
                fold = self._live.refold()
                events = fold.apply(finished)
        self._engine.observer.finished(self._spec, finished, fold)
        self._live.close(finished, events)
        if not self._spec.store:
            await self._meter(finished, fold)

    async def _meter(self, finished: Finished, fold: Fold) -> None:
        """The client has its answer: a database that is away must not take it back."""
        try:
            await self._engine.archive.meter(self._spec, finished, fold)
        except Exception as error:  # noqa: BLE001 - whatever broke, the response stays as it is
            self._engine.observer.not_metered(self._spec, error)

    def _fail(self, error: Exception) -> None:
        self._engine.observer.failed(self._spec, error)
        self._live.failure = error


def _now() -> int:
    return int(time.time())
