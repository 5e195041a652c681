"""One model call, carried from backend to backend until it ends.

The parser and the fold just go on: to them a hop is nothing but a pause. What is done about a
backend that fails is decided in `failover`, and about a model that does not do as it was told in
`steering`; what comes of it is written into the log here.
"""

from __future__ import annotations

import asyncio
from array import array
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from gateway.constraints.lark import are_translated, languages_of
from gateway.engine.failover import Failover
from gateway.engine.output_guard import (
    BEGUN_ANEW,
    GRAMMAR_FAILED,
    SAID_ANEW,
    WITHIN_TURN,
    OutputGuard,
    OutputViolation,
    TurnEnding,
)
from gateway.engine.output_validation import OutputValidation
from gateway.engine.retold import Retold
from gateway.engine.tools import ToolRunner
from gateway.engine.turn_sink import TurnSink
from gateway.entries import Hold, Hop, Repair, TurnEnded, TurnStarted
from gateway.errors import (
    ClaimLost,
    ModelNotFound,
    NoUpstreamAvailable,
    UpstreamError,
    UpstreamFailed,
    UpstreamLost,
)
from gateway.generation import NOTHING, FinishReason, TokenRequest, Where
from gateway.models.format import GrammarOptions
from gateway.upstreams.problems import GrammarFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence

    from gateway.engine.failover import HopPolicy
    from gateway.engine.observer import Observer
    from gateway.engine.output_guard import GuardLimits
    from gateway.engine.output_validation import Executor
    from gateway.engine.run_spec import RunSpec
    from gateway.engine.tools import HostedTools
    from gateway.eventlog.fold.fold import Turn
    from gateway.eventlog.journal import JournalWriter
    from gateway.generation import Constraint, Sampling, TokenChunk, TokenSink
    from gateway.models.format import FormatOf


INLINE_TOOLS: Final = 64
"""What binds the calls of so many tools is put together in less than a millisecond."""


class TokenSource(Protocol):
    """Where tokens come from: the pool of backends.

    `generate` returns when the generation has ended, or the sink has enough. `avoid`
    names backends to use only if no other is left, `attempts_max` how many may be tried (None: as
    many as the pool tries for a new request). Raises `UpstreamError`: `UpstreamFailed` after the
    first chunk, any other before it; and what the sink raises.
    """

    async def generate(
        self,
        request: TokenRequest,
        sink: TokenSink,
        *,
        avoid: Collection[str] = (),
        attempts_max: int | None = None,
    ) -> None: ...


class Dependencies(Protocol):
    """What a turn runner needs of the engine."""

    @property
    def tokens(self) -> TokenSource: ...

    @property
    def tools(self) -> HostedTools | None: ...

    @property
    def hops(self) -> HopPolicy: ...

    @property
    def observer(self) -> Observer: ...

    @property
    def steering(self) -> GuardLimits: ...

    @property
    def format_of(self) -> FormatOf: ...

    @property
    def threads(self) -> Executor: ...


class TurnRunner:
    """The model calls of one run. All it knows of them it reads from the log.

    `epoch` tells the requests of this replica from those of one before it. `on_first_token` is
    called when the first id comes.
    """

    def __init__(
        self,
        spec: RunSpec,
        pen: JournalWriter,
        engine: Dependencies,
        *,
        epoch: int,
        on_first_token: Callable[[], None],
    ) -> None:
        self._spec = spec
        self._pen = pen
        # Nobody folds the log again while its run still writes.
        self._fold = pen.live.fold
        self._engine = engine
        self._epoch = epoch
        self._format = engine.format_of(spec.model)
        self._guard = OutputGuard(
            spec.rules,
            engine.steering,
            self._format,
            reasoning_budget=spec.reasoning_budget,
        )
        self._tell_first_token: Callable[[], None] | None = on_first_token
        self._failover = Failover(spec, engine.hops, engine.observer)
        self._inspection = OutputValidation(spec.checker, engine.threads)
        self._retold = Retold(self._format, self._fold.new_parser, engine.threads)
        self._tools = ToolRunner(
            spec, pen, engine.tools, format_=self._format, observer=engine.observer
        )
        self._attempts = 0
        self._is_announced = False
        self._is_resent = False
        self._upstream = ""
        self._cached_tokens = 0
        self._start: TurnStarted | None = None
        self._may_bind = spec.rules.is_binding or spec.reasoning_budget is not None

    async def complete(self) -> None:
        """Call the model until there is nothing left to do, from wherever the log stands.

        Raises `UpstreamError`, `ClaimLost`, and `OutputViolation` for a model that will not obey.
        """
        if not are_translated(self._spec.rules):
            translate = partial(languages_of, self._spec.rules)
            await self._engine.threads.run_accepted(translate)
        if self._fold.turns:
            await self._retold.keep_up(self._fold.turns[:-1])
            self._take_over()
            await self._go_on()
        else:
            await self._call(())
        while (prefill := await self._next_opening()) is not None:
            await self._call(prefill)

    def leave_off(self) -> None:
        """The response ends where it stands: what was said of a message beyond the reasoning budget
        must not come out as a thought. Raises `ClaimLost`.
        """
        turn = self._fold.open_turn
        if turn is not None and self._guard.exceeds_budget(self._fold):
            ending = self._guard.out_of_budget(self._fold)
            self._repair(turn, ending.start, ending.rule)

    @property
    def shortcoming(self) -> str | None:
        """With which code a response fails that ended as it should, but lacks what was demanded."""
        return self._guard.shortcoming(self._fold)

    def _take_over(self) -> None:
        """Write down that this replica goes on with what another had begun."""
        turn = self._fold.open_turn
        resend = turn is not None and self._unsaid_ending(turn) is None
        self._hop(Hop("replica", len(self._sent_ids(turn)) if turn and resend else 0))
        # The ids that are about to be sent again are in the log with this.
        self._is_announced = resend

    async def _next_opening(self) -> tuple[int, ...] | None:
        """What opens the next turn, once a tool is run that the last one called; None: there is
        none.
        """
        if not await self._tools.answer():
            return self._next_prefill()
        await self._retold.keep_up(self._fold.turns)
        return ()

    def _next_prefill(self) -> tuple[int, ...] | None:
        """What opens the next turn; None when no other is needed, or there is no room for it."""
        prefill = self._guard.next_prefill(self._fold, self._pen.live.last_repair)
        if prefill is None or self._generated([*self._turns(), (prefill, ())]) >= self._tokens_max:
            return None
        return prefill

    def _call(self, prefill: tuple[int, ...]) -> Coroutine[object, object, None]:
        """Begin a turn, and see it to its end.

        What the first one asks of a backend is known before it has begun, unless it is bound. So
        that is asked first: a backend need not wait for what only readers want to know.
        """
        self._start = TurnStarted(self._input_tokens(), prefill)
        if self._fold.turns or self._may_bind or self._tokens_max <= 0:
            self._write_start()
        # Not a coroutine of its own: it would be there as long as the turn.
        return self._go_on()

    def _input_tokens(self) -> int:
        """How much input a turn that begins now is: its prompt, unless the gateway goes on with
        what it has asked for before. Behind a tool's result it asks anew.
        """
        turns = self._fold.turns
        if turns and not turns[-1].result:
            return 0
        return len(self._spec.prompt_ids) + self._retold.told

    def _write_start(self) -> None:
        """Write that the turn has begun, if that is not written yet. Raises `ClaimLost`."""
        if self._start is not None:
            self._pen.append(self._start)
            self._start = None

    def _try_to_write_start(self) -> None:
        """The same for when nobody is there to be told that the claim is lost."""
        with suppress(ClaimLost):
            self._write_start()

    async def _go_on(self) -> None:
        """See the open turn to its end, if there is one."""
        if self._start is None and self._fold.open_turn is None:
            return
        self._cached_tokens = 0
        await self._retold.keep_up(self._fold.turns[:-1])
        while not await self._end(await self._run_turn()):
            # The prompt is read again, but nobody goes on who had not begun.
            self._is_announced = True

    @property
    def _turn(self) -> Turn:
        """The open turn."""
        turn = self._fold.open_turn
        assert turn is not None, "it has begun, and nobody else ends it"
        return turn

    async def _run_turn(self) -> TurnEnding:
        """Have a turn said to its end."""
        self._failover.begin()
        while (ending := None if self._start else self._unsaid_ending(self._turn)) is None:
            try:
                return await self._attempt()
            except GrammarFailed as error:
                await self._do_without_grammar(self._turn, error)
            except UpstreamError as error:
                await self._failover.recover(error, self._fold, is_resent=self._is_resent)
        return ending

    async def _do_without_grammar(self, turn: Turn, error: GrammarFailed) -> None:
        """An engine failed in the middle of a grammar: go on without one, where it does not matter.

        Raises `error` when nobody may go on.
        """
        if self._is_unbound:
            await self._failover.recover(error, self._fold, is_resent=self._is_resent)
        else:
            self._failover.check_hops(error, self._fold)
            self._repair(turn, None, GRAMMAR_FAILED)

    @property
    def _is_unbound(self) -> bool:
        """An engine has failed of the open turn's grammar."""
        return self._pen.live.was_repaired(GRAMMAR_FAILED)

    def _unsaid_ending(self, turn: Turn) -> TurnEnding | None:
        """How a turn ends whose end nobody has written; None while there is more to come."""
        if self._is_untouched(turn):
            return None if self._tokens_max > 0 else TurnEnding(FinishReason.LENGTH)
        rule = self._pen.live.last_repair
        if rule is not None and rule not in WITHIN_TURN:
            return TurnEnding(rule=rule, is_written=True)
        if (ending := self._guard.look(self._fold, self._fold.place)) is not None:
            return ending
        if turn.said and turn.said[-1] in self._format.stop_ids:
            return TurnEnding(FinishReason.STOP)
        return TurnEnding(FinishReason.LENGTH) if self._sampling().max_tokens <= 0 else None

    def _is_untouched(self, turn: Turn) -> bool:
        """Nothing was said yet that could be wrong, nor is there a turn before."""
        is_first = len(self._fold.turns) == 1 and not turn.prefill
        return is_first and not turn.said and not self._fold.is_repaired

    async def _end(self, ending: TurnEnding) -> bool:
        """Write the end of a turn, once all is checked that it would show.

        False when the last of it has to be said again: then the turn goes on.
        """
        turn = self._turn
        if not ending.rule and self._guard.exceeds_budget(self._fold):
            ending = self._guard.out_of_budget(self._fold)
        while ending.rule != SAID_ANEW:
            finish = self._settle(turn, ending)
            if (fault := await self._fault(finish)) is None:
                # What the first attempt found in its cache is what the caller pays less for; who
                # went on found the ids of the attempts before it, too, and counts nothing.
                self._pen.append(TurnEnded(finish, 0 if turn.hops else self._cached_tokens))
                return True
            ending = fault
        self._repair(turn, ending.start, ending.rule)
        return False

    def _settle(self, turn: Turn, ending: TurnEnding) -> FinishReason:
        """Take back what must not be shown. Raises `OutputViolation` when all tries are used up."""
        if ending.rule:
            if not ending.is_written:
                self._repair(turn, ending.start, ending.rule)
            ending = self._guard.after_repair(self._fold, ending.rule)
        if ending.failure:
            raise OutputViolation(ending.failure)
        return ending.finish

    async def _fault(self, finish: FinishReason) -> TurnEnding | None:
        """What is to be done about the first body that is wrong, of those that would be shown."""
        if not self._guard.has_checks:
            return None
        body = await self._inspection.faulty(self._fold, finish)
        return None if body is None else self._guard.faulty(self._fold, body)

    def _repair(self, turn: Turn, start: int | None, rule: str) -> None:
        """Take back what was said from position `start` on, of that what the model said itself."""
        size = len(turn.prefill)
        voided = 0 if start is None else size + len(turn.said) - max(start, size)
        self._pen.append(Repair(voided, rule))
        self._engine.observer.repaired(self._spec, rule, voided, self._upstream)

    async def _attempt(self) -> TurnEnding:
        """Until the turn ends, at one backend, or before the first id at one of several."""
        self._attempts += 1
        if self._start is None:
            request = await self._request(self._turn)
            if request.constraint is not None and request.constraint.turn == NOTHING:
                return TurnEnding(FinishReason.STOP)
        else:
            # In the next round of the loop the backend was asked.
            asyncio.get_running_loop().call_soon(self._try_to_write_start)
            request = self._whole_request(1, None)
        resent = len(request.prompt_ids) if self._is_resent else 0
        sink = TurnSink(
            self._pen,
            self._guard,
            on_first_chunk=partial(self._on_first_chunk, resent),
            on_first_token=self._on_first_token,
        )
        try:
            await self._engine.tokens.generate(
                request,
                sink,
                avoid=self._failover.left,
                attempts_max=1 if self._is_resent else None,
            )
        except UpstreamLost:
            self._taken(resent)
            raise
        except ModelNotFound as error:
            raise NoUpstreamAvailable(self._spec.model, "no backend lists it now") from error
        except asyncio.CancelledError:
            # That it is cancelled says more than that its claim was lost before.
            self._try_to_write_start()
            self._start = None
            raise
        finally:
            self._cached_tokens = sink.cached_tokens or self._cached_tokens
            self._write_start()
        if sink.ending is not None:
            return sink.ending
        if sink.finish is None:
            raise UpstreamFailed("the generation has no end", upstream=self._upstream)
        return TurnEnding(sink.finish)

    def _begin_anew(self, turn: Turn) -> None:
        """Take back a message that another backend does better to begin again."""
        start = self._guard.begin_anew(self._fold)
        if start is not None and max(start, len(turn.prefill)) < len(turn.prefill) + len(turn.said):
            self._repair(turn, start, BEGUN_ANEW)

    def _taken(self, resent: int) -> None:
        """A backend works on the turn; `resent` of the ids it reads were read before."""
        if resent and not self._is_announced:
            self._hop(Hop("backend", resent))
        self._is_announced = False

    def _on_first_chunk(self, resent: int, first: TokenChunk) -> None:
        """A backend sends its first chunk: it tells whether it holds the model to the rules."""
        self._write_start()
        self._taken(resent)
        self._upstream = first.upstream
        if not self._guard.has_checks:
            return
        self._engine.observer.constrained(first.upstream, is_constrained=first.constrained)
        if not first.constrained and not self._fold.is_held:
            self._pen.append(Hold())

    def _on_first_token(self) -> None:
        if self._tell_first_token is not None:
            self._tell_first_token()
            self._tell_first_token = None

    def _hop(self, hop: Hop) -> None:
        self._pen.append(hop)
        self._engine.observer.went_on(self._spec, hop)

    async def _request(self, turn: Turn) -> TokenRequest:
        """For the rest of a turn."""
        self._is_resent = bool(turn.said)
        if self._is_resent and not self._is_unbound:
            self._begin_anew(turn)
        constraint = await self._constraint(turn) if self._may_bind else None
        request = self._whole_request(len(self._fold.turns), constraint)
        if self._is_untouched(turn):
            return request
        return replace(request, prompt_ids=self._sent_ids(turn), sampling=self._sampling())

    def _whole_request(self, number: int, constraint: Constraint | None) -> TokenRequest:
        """For all that is to be said, if this turn is the first."""
        spec = self._spec
        return TokenRequest(
            request_id=f"{spec.head.uuid.hex}-{number}-{self._epoch}-{self._attempts}",
            model=spec.model,
            prompt_ids=spec.prompt_ids,
            sampling=spec.sampling,
            cache_salt=spec.cache_salt,
            stop_ids=self._format.stop_ids,
            id_end=self._format.vocabulary_size,
            constraint=constraint,
            priority=spec.priority,
        )

    async def _constraint(self, turn: Turn) -> Constraint | None:
        """What binds the rest of a turn; where that is much work it is done in a thread."""
        if self._is_unbound:
            return None
        place = self._fold.place
        options = GrammarOptions(
            refusals=self._guard.refusals,
            reasoning=self._guard.may_think(self._fold),
        )
        message = [*turn.prefill, *turn.said][place.start :]
        work = partial(self._format.turn_constraint, self._fold.rules, place, message, options)
        if place.where is not Where.BODY and len(self._spec.rules.tools) <= INLINE_TOOLS:
            return work()
        return await self._engine.threads.run_accepted(work)

    @property
    def _tokens_max(self) -> int:
        return self._spec.sampling.max_tokens

    def _sampling(self) -> Sampling:
        """For what is left: the ids that open an answer take room in the window, too.

        What was taken back takes none, but the random numbers must be others than before.
        """
        generated = self._retold.generated(self._fold.turns[-1])
        drawn = generated + self._fold.usage.voided_tokens
        if not drawn:
            return self._spec.sampling
        sampling = self._spec.sampling.after(drawn)
        return replace(sampling, max_tokens=self._tokens_max - generated)

    def _generated(self, turns: Sequence[tuple[Sequence[int], Sequence[int]]]) -> int:
        """How many ids these turns put behind the prompt, with the results of tools."""
        results = sum(len(turn.result) for turn in self._fold.turns)
        return len(self._format.said_ids(turns)) + results

    def _sent_ids(self, turn: Turn) -> Sequence[int]:
        if len(self._fold.turns) == 1 and not turn.said:
            return self._spec.prompt_ids
        prompt, behind = self._spec.prompt_ids, self._retold.before(self._fold.turns[-1])
        # A long prompt stays packed: a number for each of its ids would take the loop milliseconds.
        return prompt + array("I", behind) if isinstance(prompt, array) else [*prompt, *behind]

    def _turns(self) -> list[tuple[Sequence[int], Sequence[int]]]:
        return [(turn.prefill, turn.said) for turn in self._fold.turns]
