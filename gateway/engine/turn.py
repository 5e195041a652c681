from __future__ import annotations

import asyncio
from array import array
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.constraints.lark import are_translated, languages_of
from gateway.engine.failover import Failover
from gateway.engine.outcome import marked
from gateway.engine.output_guard import (
    BEGUN_ANEW,
    BODY_REGENERATED,
    GRAMMAR_FAILED,
    WITHIN_TURN,
    WRITABLE_IDS_MAX,
    OutputGuard,
    OutputViolation,
    TurnEnding,
)
from gateway.engine.tool_runner import ToolRunner
from gateway.entries import Hold, Hop, Repair, Text, Tokens, TurnEnded, TurnStarted
from gateway.errors import (
    ClaimLost,
    ModelNotFound,
    NoUpstreamAvailable,
    UpstreamError,
    UpstreamFailed,
    UpstreamLost,
    UpstreamRecalled,
)
from gateway.generation import NOTHING, ChatTerms, FinishReason, TokenRequest, Where
from gateway.models.format import GrammarOptions
from gateway.tenancy.policy import DEFAULT_POLICY
from gateway.text_ids import CHARACTERS_PER_TOKEN, prompt_tokens, surplus_ids
from gateway.upstreams.problems import GrammarFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.constraints.validation import Checker
    from gateway.engine.engine import Engine, Executor
    from gateway.engine.run_spec import RunSpec
    from gateway.eventlog.fold.screen import Body
    from gateway.eventlog.fold.turn_reader import Turn
    from gateway.eventlog.journal import Journal
    from gateway.generation import (
        Constraint,
        ParserPosition,
        ReportedUsage,
        Sampling,
        TokenChunk,
        TokenParser,
    )
    from gateway.models.format import ModelFormat


INLINE_TOOLS: Final = 64
"""Tools for whose calls a constraint is built without a thread."""
INLINE_IDS: Final = 512
"""Rendered without a thread: more take a few milliseconds."""
INLINE_CHECK_CHARS: Final = 4096
"""Characters of a body that is checked without a thread."""
ANSWER_IDS_MIN: Final = 256
"""Ids of the context window that results of tools leave for the answer."""
PIECES_MAX: Final = 32
"""Markers and runs of text that are written before the event loop has its turn; each takes up to a
tenth of a millisecond."""


class TurnRunner:
    """Model calls of one run, from what the log says.

    `epoch` tells the requests of this replica from those of one before it.
    """

    __slots__ = (
        "_attempts", "_cached_tokens", "_engine", "_epoch", "_failover", "_first_sampling",
        "_fold", "_format", "_is_hop_written", "_is_resent", "_is_text", "_journal",
        "_on_first_token", "_past_turns", "_prompt_ids", "_prompt_prefill", "_spec", "_start",
        "_tokens_max", "_upstream", "_usage", "_was_recalled", "guard", "tools",
    )  # fmt: skip

    def __init__(
        self,
        spec: RunSpec,
        journal: Journal,
        engine: Engine,
        *,
        epoch: int,
        on_first_token: Callable[[], None],
    ) -> None:
        self._spec = spec
        self._journal = journal
        # The live log replaces its fold only while it finishes, when no turn runs.
        self._fold = journal.live.fold
        self._engine = engine
        self._epoch = epoch
        self._format = engine.format_of(spec.model)
        if spec.template_state:
            self._format = self._format.with_state(spec.template_state)
        self._is_text = self._format.framing.is_text
        limits = engine.guard_limits
        self.guard = OutputGuard(
            self._fold.rules,
            limits.times(CHARACTERS_PER_TOKEN) if self._is_text else limits,
            self._format,
            reasoning_budget=spec.reasoning_budget,
            continues_preambles=partial(engine.continues_preambles, spec.model),
        )
        self._on_first_token = on_first_token
        self._failover: Failover | None = None
        self._past_turns = PastTurns(self._format, self._fold.new_parser, engine.threads)
        self.tools: ToolRunner | None = None
        if spec.head.grants is not None:
            self.tools = ToolRunner(
                spec, journal, engine, format_=self._format, epoch=epoch, room=self._room_for_result
            )
        self._prompt_ids = spec.prompt_ids
        self._prompt_prefill: tuple[int, ...] = ()
        """Ids with which the prompt begins the turn for the model, also behind results."""
        self._tokens_max = spec.sampling.max_tokens
        self._first_sampling = spec.sampling
        """Sampling of the first turn, before it has any ids."""
        if begun := self._format.prefill_size(spec.prompt_ids):
            end = len(spec.prompt_ids) - begun
            self._prompt_ids, self._prompt_prefill = (
                spec.prompt_ids[:end],
                tuple(spec.prompt_ids[end:]),
            )
            self._tokens_max += begun
            self._first_sampling = self._sampling_behind_prompt()
        self._attempts = 0
        self._is_hop_written = False
        self._is_resent = False
        self._was_recalled = False
        self._upstream = ""
        self._cached_tokens = 0
        self._usage: ReportedUsage | None = None
        self._start: TurnStarted | None = None
        """Beginning of a turn, until it is written."""

    async def complete(self) -> None:
        """Call the model, from where the log ends, until nothing is left to do.

        Raises `UpstreamError`, `ClaimLost`, and `OutputViolation` after all repairs.
        """
        if self._fold.rules.grammars:
            await self._translate()
        if self.tools is None:
            await self._complete_turns()
            return
        with closing(self.tools) as tools:
            for listing in self._spec.listings[self._fold.listed :]:
                self._journal.append(listing)
            if not self._fold.turns:
                await self._run_hosted_call(tools)
            # The prompt ends with the approved call and the opening of a message.
            if result := self._fold.approved_result:
                self._prompt_ids = self._format.with_result(self._prompt_ids, result)
                self._first_sampling = self._sampling_behind_prompt()
            await self._complete_turns()
            await tools.ask_approval()

    async def _complete_turns(self) -> None:
        turns = self._fold.turns
        if turns:
            await self._past_turns.update(turns[:-1])
            self._take_over()
        else:
            self._begin_turn(self._prompt_prefill)
        while True:
            await self._complete_turn()
            prefill = await self._next_prefill()
            if prefill is None:
                return
            self._begin_turn(prefill)

    async def _translate(self) -> None:
        # In a thread: making the languages of grammars would block the event loop.
        rules = self._fold.rules
        if not are_translated(rules):
            await self._engine.threads.run_accepted(partial(languages_of, rules))

    async def _run_hosted_call(self, tools: ToolRunner) -> bool:
        if not await tools.run_due_call():
            return False
        self.guard.hold_to(self._fold.rules)
        if self._fold.rules.grammars:
            await self._translate()
        return True

    def void_excess_reasoning(self) -> None:
        """Take back reasoning beyond the budget: the response ends here. Raises `ClaimLost`."""
        turn = self._fold.open_turn
        if turn is not None and self.guard.exceeds_budget(self._fold):
            ending = self.guard.out_of_budget(self._fold)
            self._repair(turn, ending.start, ending.rule)

    def _take_over(self) -> None:
        # This replica continues a turn that another one began.
        turn = self._fold.open_turn
        resend = turn is not None and self._unwritten_ending(turn) is None
        is_read_again = turn is not None and resend and not self._is_text
        self._hop(Hop("replica", len(self._sent_ids(turn)) if turn and is_read_again else 0))
        # This entry counts the ids that the next attempt sends again.
        self._is_hop_written = resend

    async def _next_prefill(self) -> tuple[int, ...] | None:
        # None: no other turn is needed, or the window has no room for it. A call that the gateway
        # answers has its result when this returns.
        fold = self._fold
        if self.tools is not None:
            if fold.turns[-1].result or await self._run_hosted_call(self.tools):
                await self._past_turns.update(fold.turns)
                return self._prompt_prefill
            if fold.approval_request is not None:
                return None
        prefill = self.guard.next_prefill(fold, self._journal.live.last_repair)
        if prefill is None:
            return None
        turns = [*((turn.prefill, turn.output_ids) for turn in fold.turns), (prefill, ())]
        generated = len(self._format.turn_ids(turns))
        results = sum(len(turn.result) for turn in fold.turns)
        return prefill if self._room(generated, generated + results) > 0 else None

    def _begin_turn(self, prefill: tuple[int, ...]) -> None:
        # Raises `ClaimLost`. The first request of an unbound turn is known before the turn is
        # written, so it is sent first: a backend need not wait for an entry that only readers need.
        turns = self._fold.turns
        # After a tool's result the prompt is read again; otherwise the request continues.
        is_anew = not turns or turns[-1].result or turns[-1].finish is FinishReason.LOST
        is_continued = not is_anew
        size = prompt_tokens if self._is_text else len
        read_tokens = size(self._prompt_ids) + len(self._prompt_prefill) + len(self._past_turns.ids)
        self._start = TurnStarted(0 if is_continued else read_tokens, prefill)
        if turns or prefill or self.guard.may_bind or self._first_sampling.max_tokens <= 0:
            self._write_start()

    def _write_start(self) -> None:
        # Raises `ClaimLost`.
        if self._start is not None:
            self._journal.append(self._start)
            self._start = None

    def _try_to_write_start(self) -> None:
        with suppress(ClaimLost):
            self._write_start()

    async def _complete_turn(self) -> None:
        # Another replica may have left no open turn.
        fold = self._fold
        if self._start is None and fold.open_turn is None:
            return
        self._cached_tokens, self._usage = 0, None
        if len(fold.turns) > 1:
            await self._past_turns.update(fold.turns[:-1])
        if self._failover is not None:
            self._failover.begin()
        lost: UpstreamError | None = None
        while True:
            if self._is_text:
                await self._restart_text_turn(lost)
            ending = None if self._start else self._unwritten_ending(fold.turns[-1])
            try:
                ending = ending or await self._attempt()
            except GrammarFailed as error:
                await self._do_without_grammar(error)
                continue
            except UpstreamRecalled:
                self._was_recalled = self._is_hop_written = True  # no backend was lost
                continue
            except UpstreamError as error:
                await self._failures().recover(error, fold, is_resent=self._is_resent)
                lost = error
                continue
            if await self._end(ending):
                return
            # The ids are sent again, but no backend was lost: there is no hop to write.
            self._is_hop_written = True
            self._failures().begin()

    def _failures(self) -> Failover:
        if self._failover is None:
            self._failover = Failover(self._spec, self._engine.hops, self._engine.observer)
        return self._failover

    async def _restart_text_turn(self, lost: UpstreamError | None) -> None:
        # No backend can continue text, so the open turn is generated again. `lost` is the error of
        # the backend of this replica that broke off, if one did. Unseen output is taken back.
        # Otherwise a background response keeps the seen output as incomplete items, once, and
        # begins again behind them. Raises `UpstreamError` if neither is allowed, and `ClaimLost`.
        fold = self._fold
        turn = fold.open_turn
        if turn is None or not turn.output_ids or turn.output_ids[-1] in self._format.stop_ids:
            return
        if lost is not None:
            self._hop(Hop("backend", 0))
        if not fold.is_seen_behind(0):
            self._repair(turn, 0, BEGUN_ANEW)
            return
        was_lost = any(one.finish is FinishReason.LOST for one in fold.turns)
        if was_lost or fold.called or not self._spec.head.background:
            why = "it was lost in the middle of a turn, of which somebody has seen the beginning"
            raise lost or UpstreamFailed(why, upstream=self._upstream)
        self._journal.append(TurnEnded(FinishReason.LOST))
        self._begin_turn(())
        await self._past_turns.update(fold.turns[:-1])

    async def _do_without_grammar(self, error: GrammarFailed) -> None:
        # An engine failed in the middle of a grammar: continue without one. Raises `error` when no
        # backend may continue.
        if self._is_unbound:
            await self._failures().recover(error, self._fold, is_resent=self._is_resent)
        else:
            self._failures().check_hops(error, self._fold)
            self._repair(self._fold.turns[-1], None, GRAMMAR_FAILED)

    @property
    def _is_unbound(self) -> bool:
        return self._journal.live.was_repaired(GRAMMAR_FAILED)

    def _unwritten_ending(self, turn: Turn) -> TurnEnding | None:
        # None: the turn has not ended.
        if self._is_untouched(turn):
            has_room = self._first_sampling.max_tokens > 0
            return None if has_room else TurnEnding(FinishReason.LENGTH)
        rule = self._journal.live.last_repair
        if rule is not None and rule not in WITHIN_TURN:
            return TurnEnding(rule=rule, is_written=True)
        if (ending := self.guard.inspect(self._fold, self._fold.place)) is not None:
            return ending
        if turn.output_ids and turn.output_ids[-1] in self._format.stop_ids:
            return TurnEnding(FinishReason.STOP)
        return TurnEnding(FinishReason.LENGTH) if self._sampling().max_tokens <= 0 else None

    def _is_untouched(self, turn: Turn) -> bool:
        is_first = len(self._fold.turns) == 1 and not turn.prefill
        return is_first and not turn.output_ids and not self._fold.is_repaired

    async def _end(self, ending: TurnEnding) -> bool:
        # False: the last part has to be generated again, and the turn continues. Raises
        # `OutputViolation` when all repairs are used up.
        turn = self._fold.turns[-1]
        has_budget = self._spec.reasoning_budget is not None
        if has_budget and not ending.rule and self.guard.exceeds_budget(self._fold):
            ending = self.guard.out_of_budget(self._fold)
        while ending.rule != BODY_REGENERATED:
            if ending.rule:
                if not ending.is_written:
                    self._repair(turn, ending.start, ending.rule)
                ending = self.guard.after_repair(self._fold, ending.rule)
            if ending.failure:
                raise OutputViolation(ending.failure)
            has_checks = self.guard.has_checks
            faulty = await self._faulty_body(ending.finish) if has_checks else None
            if faulty is None:
                # The caller pays less for ids that the first attempt had cached; a backend that
                # continues also has ids of earlier attempts cached, which do not count.
                cached_tokens = 0 if turn.hops else self._cached_tokens
                cut = ending.rule or ending.finish is FinishReason.CUT
                usage = None if cut else self._usage
                self._journal.append(marked("clock"))
                self._journal.append(TurnEnded(ending.finish, 0 if usage else cached_tokens, usage))
                return True
            ending = self.guard.faulty(self._fold, faulty)
        self._repair(turn, ending.start, ending.rule)
        return False

    async def _faulty_body(self, finish: FinishReason) -> Body | None:
        bodies, checker = self._fold.bodies_after(finish), self._spec.checker
        if bodies and not checker.is_compiled:
            # It is already, unless another replica accepted the response.
            await self._engine.threads.run_accepted(checker.compile)
        for body in bodies:
            if body.kind == "refusal":
                continue
            check = partial(_fault, checker, body)
            is_short = len(body.text) <= INLINE_CHECK_CHARS
            fault = check() if is_short else await self._engine.threads.run_accepted(check)
            if fault is not None and not self.guard.is_left_to_tool(self._fold, body):
                return body
        return None

    def _repair(self, turn: Turn, start: int | None, rule: str) -> None:
        # Takes back ids from position `start` on; ids of the prefill stay.
        size = len(turn.prefill)
        voided = 0 if start is None else size + len(turn.output_ids) - max(start, size)
        self._journal.append(Repair(voided, rule))
        self._engine.observer.repaired(self._spec, rule, voided, self._upstream)

    async def _attempt(self) -> TurnEnding:
        # Several backends may be tried, but only before the first id.
        self._attempts += 1
        if self._start is None:
            request = await self._request(self._fold.turns[-1])
            if request.constraint is not None and request.constraint.turn == NOTHING:
                return TurnEnding(FinishReason.STOP)
        else:
            # By the next round of the loop the backend has been asked.
            asyncio.get_running_loop().call_soon(self._try_to_write_start)
            request = self._whole_request(1, None)
        resent = request.prompt_tokens if self._is_resent else 0
        sink = TurnSink(
            self._journal,
            self.guard,
            on_first_chunk=partial(self._on_first_chunk, resent),
            on_first_token=self._on_first_token,
            is_text=self._is_text,
        )
        try:
            await self._engine.tokens.generate(
                request,
                sink,
                avoid=() if self._failover is None else self._failover.left,
                attempts_max=1 if self._is_resent else None,
            )
        except UpstreamError as error:
            self._journal.append(marked("left"))
            if isinstance(error, UpstreamLost):
                self._note_hop(resent)
            raise
        except ModelNotFound as error:
            raise NoUpstreamAvailable(self._spec.model, "no backend lists it now") from error
        except asyncio.CancelledError:
            # A `ClaimLost` must not hide the cancellation.
            self._try_to_write_start()
            self._start = None
            raise
        finally:
            self._cached_tokens = sink.cached_tokens or self._cached_tokens
            self._usage = sink.usage
            self._write_start()
        if sink.ending is not None:
            return sink.ending
        if sink.finish is None:
            raise UpstreamFailed("the generation has no end", upstream=self._upstream)
        return TurnEnding(sink.finish)

    def _restart_message(self, turn: Turn) -> None:
        # Another backend had better begin the open message again.
        start = self.guard.restart_position(self._fold)
        if start is not None and max(start, len(turn.prefill)) < len(turn.prefill) + len(
            turn.output_ids
        ):
            self._repair(turn, start, BEGUN_ANEW)

    def _note_hop(self, resent: int) -> None:
        # `resent` ids are read again by this backend; written unless an entry says so already.
        if resent and not self._is_hop_written:
            self._hop(Hop("backend", resent))
        self._is_hop_written = False

    def _on_first_chunk(self, resent: int, first: TokenChunk) -> None:
        # The first chunk says whether the backend enforces the output rules.
        self._write_start()
        self._note_hop(resent)
        self._upstream = first.upstream
        if not self.guard.has_checks:
            return
        self._engine.observer.constrained(first.upstream, is_constrained=first.constrained)
        # Servers of text are believed, where somebody waits for each word.
        is_believed = first.constrained and (self._spec.streamed or not self._is_text)
        if not (is_believed or self._fold.is_held):
            self._journal.append(Hold())

    def _hop(self, hop: Hop) -> None:
        self._journal.append(hop)
        self._engine.observer.hopped(self._spec, hop)

    async def _request(self, turn: Turn) -> TokenRequest:
        self._is_resent = bool(turn.output_ids)
        if self._is_resent and not self._is_unbound:
            self._restart_message(turn)
        constraint = await self._constraint(turn) if self.guard.may_bind else None
        request = self._whole_request(len(self._fold.turns), constraint)
        if self._is_untouched(turn):
            return request
        was_recalled, self._was_recalled = self._was_recalled, False
        return replace(
            request,
            prompt_ids=self._sent_ids(turn),
            sampling=self._sampling(),
            was_recalled=was_recalled,
        )

    def _whole_request(self, number: int, constraint: Constraint | None) -> TokenRequest:
        spec, fold = self._spec, self._fold
        # Work was done for the response that would be lost if it had to wait too long.
        turns = len(fold.turns)
        has_begun = turns > 1 or bool(fold.approved_result) or (turns > 0 and fold.has_generated)
        return TokenRequest(
            # No id is the beginning of another: SGLang aborts all that begin with one.
            request_id=f"{spec.head.uuid.hex}-{number}-{self._epoch}-{self._attempts}-",
            model=spec.model,
            prompt_ids=self._prompt_ids,
            sampling=self._first_sampling,
            cache_salt=spec.cache_salt,
            stop_ids=self._format.stop_ids,
            id_end=self._format.vocabulary_size,
            constraint=constraint,
            priority=spec.priority,
            background=spec.head.background,
            has_begun=has_begun or spec.compacted is not None,
            chat=self._chat_terms if self._is_text else None,
            surplus_ids=surplus_ids(self._prompt_ids) if self._is_text else 0,
            route=spec.route,
            tenant=spec.principal.tenant_id.hex,
            # No method of this object, which would live as long as the request.
            on_sent=partial(_note_sent, self._journal),
            share=spec.share_weight / DEFAULT_POLICY.share_weight,
        )

    @property
    def _chat_terms(self) -> ChatTerms:
        spec, framing = self._spec, self._format.framing
        # Otherwise what the window leaves is all that limits the output.
        is_requested = spec.window_left is None or spec.sampling.max_tokens < spec.window_left
        return ChatTerms(is_requested, framing.thought, spec.opens_thought)

    async def _constraint(self, turn: Turn) -> Constraint | None:
        # A constraint that takes long to build is built in a thread.
        if self._is_unbound:
            return None
        place = self._fold.place
        options = GrammarOptions(
            refusals=self.guard.refusals,
            reasoning=self.guard.may_think(self._fold),
            has_thought=self._fold.has_thought,
        )
        message = [*turn.prefill, *turn.output_ids][place.start :]
        work = partial(self._format.turn_constraint, self._fold.rules, place, message, options)
        if place.where is not Where.BODY and len(self._spec.rules.tools) <= INLINE_TOOLS:
            return work()
        return await self._engine.threads.run_accepted(work)

    def _sampling(self) -> Sampling:
        # The ids that open an answer take room in the window, too. Voided ids take none, but they
        # move the random numbers on.
        last = self._fold.turns[-1]
        generated, behind = self._past_turns.generated_with(last), self._past_turns.size_with(last)
        drawn = behind + self._fold.usage.voided_tokens
        if not drawn:
            return self._first_sampling
        sampling = self._spec.sampling.after(drawn)
        return replace(sampling, max_tokens=self._room(generated, behind))

    def _room(self, generated: int, behind: int) -> int:
        # The limit of the request and the window both bound it; `behind` counts the ids behind the
        # prompt, results of tools included.
        window_left = self._spec.window_left
        if window_left is None:
            return self._tokens_max - behind
        window_left -= len(self._prompt_ids) - len(self._spec.prompt_ids)
        return min(self._tokens_max - generated, window_left - behind)

    def _room_for_result(self) -> int | None:
        # Half of the window behind the prompt is for results, and some of it is left to the answer.
        # None: the window is not known.
        window_left, fold = self._spec.window_left, self._fold
        if window_left is None:
            return None
        output = sum(len(turn.prefill) + turn.tokens(len(turn.output_ids)) for turn in fold.turns)
        left = window_left - output - fold.hosted.result_ids - ANSWER_IDS_MIN
        return max(0, min(left, window_left // 2 - fold.hosted.result_ids))

    def _sampling_behind_prompt(self) -> Sampling:
        # For a prompt that is not that of the request, id for id.
        begun = len(self._prompt_prefill)
        return replace(self._spec.sampling, max_tokens=self._room(begun, begun))

    def _sent_ids(self, turn: Turn) -> Sequence[int]:
        if len(self._fold.turns) == 1 and not (turn.prefill or turn.output_ids):
            return self._prompt_ids
        return join_ids(self._prompt_ids, self._past_turns.ids_with(self._fold.turns[-1]))


@dataclass(slots=True, eq=False)
class PastTurns:
    """Finished turns of one response, rendered once each.

    A tool's result is input: it is not parsed as output of the model, and stays id for id as it is.
    """

    _format: ModelFormat
    _new_parser: Callable[[], TokenParser]
    _threads: Executor
    ids: list[int] = field(default_factory=list)
    """Ids that a backend gets behind the prompt."""
    _turns: int = 0
    _generated: int = 0
    _results: int = 0

    async def update(self, finished: Sequence[Turn]) -> None:
        new = finished[self._turns :]
        if not new:
            return
        work = partial(self._render, new)
        is_short = sum(len(turn.output_ids) for turn in new) <= INLINE_IDS
        ids, generated = work() if is_short else await self._threads.run_accepted(work)
        self.ids += ids
        self._generated += generated
        self._results += sum(len(turn.result) for turn in new)
        self._turns += len(new)

    def _render(self, turns: Sequence[Turn]) -> tuple[list[int], int]:
        # Returns the ids as they are sent to a backend, and how many of them the model generated.
        ids: list[int] = []
        for turn in turns:
            rendered = self._format.rerender(
                [([*turn.prefill, *turn.output_ids], turn.finish)], self._new_parser
            )
            ids += self._format.with_result(rendered, turn.result) if turn.result else rendered
        parts = [*((turn.prefill, turn.output_ids) for turn in turns), ((), ())]
        return ids, len(self._format.turn_ids(parts))

    def ids_with(self, last: Turn) -> list[int]:
        # Ids as sent to a backend: finished turns rendered, `last` id for id.
        return [*self.ids, *last.prefill, *last.output_ids]

    def generated_with(self, last: Turn) -> int:
        """Count the ids behind the prompt, without the results of tools.

        Finished turns count as generated or as rendered, whichever is more.
        """
        finished = max(self._generated, len(self.ids) - self._results)
        return finished + len(last.prefill) + len(last.output_ids)

    def size_with(self, last: Turn) -> int:
        # Counts ids behind the prompt, results of tools included.
        return self.generated_with(last) + self._results


class TurnSink:
    """Token sink of one attempt at a turn, which writes the log up to where the turn is to end.

    Writing raises `ClaimLost` once the log is another's.
    """

    __slots__ = (
        "_entry", "_fold", "_guard", "_has_chunk", "_has_token", "_in_body", "_journal",
        "_on_first_chunk", "_on_first_token", "_output_ids", "_unwritten", "_written",
        "cached_tokens",
        "ending", "finish", "usage",
    )  # fmt: skip

    def __init__(
        self,
        journal: Journal,
        guard: OutputGuard,
        *,
        on_first_chunk: Callable[[TokenChunk], None],
        on_first_token: Callable[[], None],
        is_text: bool = False,
    ) -> None:
        # With `is_text` the ids are those of text (`gateway.text_ids`).
        self._entry = Text if is_text else Tokens
        self.usage: ReportedUsage | None = None
        """Usage of a turn of text, from its server."""
        self.ending: TurnEnding | None = None
        """End of the turn by the gateway."""
        self.finish: FinishReason | None = None
        """End of the turn by the backend."""
        self.cached_tokens = 0
        self._journal = journal
        self._output_ids: Sequence[int] = ()
        # The live log replaces its fold only while it finishes, when no turn runs.
        self._fold = journal.live.fold
        self._guard = guard
        self._on_first_chunk = on_first_chunk
        self._on_first_token = on_first_token
        self._has_chunk = False
        self._has_token = False
        self._in_body = False
        self._unwritten: TokenChunk | None = None
        self._written = 0

    def on_tokens(self, chunk: TokenChunk) -> bool:
        ids = chunk.ids
        if (
            self._in_body
            and ids
            and chunk.finish is None
            and self._guard.passes(ids, len(self._output_ids) + len(ids))
        ):
            # Nearly every chunk is more text of a body.
            logprobs = chunk.logprobs
            self._journal.append(self._entry(tuple(ids), tuple(logprobs) if logprobs else ()))
        else:
            self._take(chunk)
            if self.ending is not None or self._unwritten is not None:
                return False
        return not self._journal.is_full

    async def room(self) -> bool:
        """Wait until every chunk is written and the database has caught up. Raises `ClaimLost`."""
        while (chunk := self._unwritten) is not None:
            await asyncio.sleep(0)
            self._write(chunk)
        if self._journal.is_full:
            await self._journal.room()
        return self.ending is None

    def _take(self, chunk: TokenChunk) -> None:
        # For chunks that `on_tokens` does not write itself: the first one, one with a marker or an
        # end, one of many ids.
        if not self._has_chunk:
            self._has_chunk = True
            self._on_first_chunk(chunk)
            turn = self._fold.open_turn
            assert turn is not None, "`on_first_chunk` has begun a turn"
            self._output_ids = turn.output_ids
        if chunk.cached_tokens:
            self.cached_tokens = chunk.cached_tokens
        self.finish = chunk.finish
        self.usage = chunk.usage
        if chunk.ids:
            if not self._has_token:
                self._has_token = True
                self._journal.append(marked("token"))
                self._on_first_token()
            self._written = 0
            self._write(chunk)

    def _write(self, chunk: TokenChunk) -> None:
        # After each piece the guard inspects the turn, and may end it. The rest after `PIECES_MAX`
        # pieces stays in `_unwritten` until `room`.
        ids, fold, guard = chunk.ids, self._fold, self._guard
        begin = self._written
        self._unwritten = None
        with nullcontext() if len(ids) == 1 else self._journal.live.gathered():
            for _ in range(PIECES_MAX):
                at = self._written
                if at == len(ids) or at - begin >= WRITABLE_IDS_MAX:
                    break
                count = guard.writable(fold, ids, at)
                if not count:
                    self.ending = guard.out_of_budget(fold)
                    break
                logprobs = tuple(chunk.logprobs[at : at + count]) if chunk.logprobs else ()
                self._journal.append(self._entry(tuple(ids[at : at + count]), logprobs))
                self._written = at + count
                at_header = not self._in_body or ids[at] not in guard.text_ids
                header = fold.place if at_header else None
                if header is not None:
                    self._note_header(header)
                self.ending = guard.inspect(fold, header)
                if self.ending is not None:
                    break
        if self.ending is None and self._written < len(ids):
            self._unwritten = chunk

    def _note_header(self, header: ParserPosition) -> None:
        was_in_body, self._in_body = self._in_body, header.where is Where.BODY
        if self._in_body and not was_in_body:
            kind = header.kind
            self._journal.append(marked("message", "" if kind is None else kind.value))


def _note_sent(journal: Journal, upstream: str) -> None:
    journal.append(marked("backend", upstream))


def join_ids(prompt: Sequence[int], behind: Sequence[int]) -> Sequence[int]:
    # A long prompt stays packed: converting each of its ids would block the event loop for
    # milliseconds.
    return prompt + array("I", behind) if isinstance(prompt, array) else [*prompt, *behind]


def _fault(checker: Checker, body: Body) -> str | None:
    # None: the body matches the request.
    if body.kind == "call":
        return checker.call_fault(body.name, body.text)
    return checker.answer_fault(body.text)
