"""Another continuation of a stored response, at one backend; nothing is stored.

It uses the run's ids, sampling, seed and grammar, and ends with the turn: no tool is run, no output
repaired.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from gateway import ids as new_ids
from gateway.constraints.lark import languages_of
from gateway.engine.turn import PastTurns, join_ids
from gateway.errors import InvalidRequest, UpstreamError, UpstreamRecalled
from gateway.eventlog.fold.turn_reader import Turn
from gateway.generation import NOTHING, ChatTerms, FinishReason, TokenRequest
from gateway.models.format import GrammarOptions
from gateway.text_ids import surplus_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.constraints.output_rules import OutputRules
    from gateway.engine.engine import Executor
    from gateway.engine.run_spec import RunSpec
    from gateway.eventlog.fold.fold import Fold
    from gateway.generation import Constraint, Sampling, TokenChunk, TokenSink
    from gateway.models.format import FormatOf, ModelFormat
    from gateway.services.token_view import Branch

CONTINUATION_S: Final = 120.0
"""Bound, wait for a slot included; then the part that was generated is shown."""
TOKENS_MAX: Final = 4_096
MARGIN_TOKENS: Final = 64
"""A continuation may be longer than the original by this."""
PRIORITY: Final = -1
"""The lowest `TokenRequest.priority`."""
OPERATORS: Final = "operators"
"""Admission takes it for a tenant; no tenant's id is like it."""
FORCED_CHARS_MAX: Final = 8_192

Ending = Literal["stop", "length", "time", "recalled", "broken"]
"""`recalled`: others needed the slot. `broken`: the stream broke off."""


class Pinnable(Protocol):
    """Pool of backends."""

    async def generate(
        self, request: TokenRequest, sink: TokenSink, *, only: str | None = None
    ) -> None: ...


class Variation(NamedTuple):
    """Differences from the run; `text` is put into the model's mouth."""

    backend: str | None = None
    text: str = ""
    temperature: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Prefix:
    """Ids that a continuation begins with: prompt and earlier turns, then `kept` ones of its turn.

    `drawn` counts the ids for which the run drew random numbers.
    """

    before: Sequence[int]
    kept: Sequence[int]
    drawn: int
    rules: OutputRules


@dataclass(slots=True)
class Continuation:
    """Sink of generated ids."""

    tokens_max: int
    backend: str = ""
    forced: Sequence[int] = ()
    ids: list[int] = field(default_factory=list)
    ending: Ending = "time"
    cached_tokens: int | None = None
    is_constrained: bool = False

    def on_tokens(self, chunk: TokenChunk) -> bool:
        self.ids += chunk.ids
        self.backend = chunk.upstream or self.backend
        self.is_constrained = self.is_constrained or chunk.constrained
        if chunk.cached_tokens is not None:
            self.cached_tokens = chunk.cached_tokens
        if chunk.finish is not None:
            self.ending = "length" if chunk.finish is FinishReason.LENGTH else "stop"
        return len(self.ids) <= self.tokens_max

    async def room(self) -> bool:
        # There are more ids than `tokens_max`.
        del self.ids[self.tokens_max :]
        self.ending = "length"
        return False


class Regenerator:
    def __init__(
        self, pool: Pinnable, format_of: FormatOf, threads: Executor, *, refusals: bool
    ) -> None:
        self._pool = pool
        self._format_of = format_of
        self._threads = threads
        self._refusals = refusals

    def format_of(self, spec: RunSpec) -> ModelFormat:
        format_ = self._format_of(spec.model)
        return format_.with_state(spec.template_state) if spec.template_state else format_

    async def prefix(
        self, spec: RunSpec, branch: Branch, fold: Fold | None, *, result: Sequence[int] = ()
    ) -> Prefix:
        """Return the ids before a branch of the response whose log `fold` has read.

        Without a log all that the branch keeps follows the prompt. `result` is that of the approved
        call which the response begins with.
        """
        format_, prompt = self.format_of(spec), spec.prompt_ids
        if fold is not None and fold.turns and (begun := format_.prefill_size(prompt)):
            prompt = prompt[: len(prompt) - begun]  # the log has it as the beginning of the turn
        if result:
            prompt = format_.with_result(prompt, result)
        if fold is None or not fold.turns:
            return Prefix(prompt, branch.kept, len(branch.kept), spec.rules)
        past = PastTurns(format_, fold.new_parser, self._threads)
        await past.update(fold.turns[: branch.turn])
        drawn = past.size_with(Turn(0, tuple(branch.kept))) + branch.voided
        rules = fold.rules if branch.turn else spec.rules
        return Prefix(join_ids(prompt, past.ids), branch.kept, drawn, rules)

    async def generate(
        self, spec: RunSpec, prefix: Prefix, variation: Variation, *, beside: int
    ) -> Continuation:
        """Generate a continuation, next to `beside` tokens of the original; raises `InvalidRequest`
        where nothing can be continued.
        """
        format_ = self.format_of(spec)
        if format_.framing.is_text and (prefix.kept or variation.text):
            raise InvalidRequest(
                "Servers of this model take and return text: nobody can go on with an answer that "
                "was begun. Replay the turn from its beginning.",
                code="invalid_value",
                param="at" if prefix.kept else "text",
            )
        forced = format_.encode(variation.text) if variation.text else ()
        sampling = _sampling(spec, variation, prefix.drawn + len(forced), beside)
        made = Continuation(sampling.max_tokens, forced=forced)
        begun = [*prefix.kept, *forced]
        constraint = await self._threads.run_accepted(
            partial(self._constraint, format_, prefix.rules, begun)
        )
        if constraint is not None and constraint.turn == NOTHING:
            made.ending = "stop"
            return made
        request = TokenRequest(
            request_id=f"continuation-{new_ids.new_uuid().hex}-",
            model=spec.model,
            prompt_ids=join_ids(prefix.before, begun),
            sampling=sampling,
            cache_salt=spec.cache_salt,
            stop_ids=format_.stop_ids,
            id_end=format_.vocabulary_size,
            constraint=constraint,
            priority=PRIORITY,
            chat=_chat_terms(spec, format_) if format_.framing.is_text else None,
            surplus_ids=surplus_ids(spec.prompt_ids) if format_.framing.is_text else 0,
            tenant=OPERATORS,
        )
        try:
            async with asyncio.timeout(CONTINUATION_S):
                await self._pool.generate(request, made, only=variation.backend)
        except TimeoutError:
            pass
        except UpstreamError as error:
            if not made.ids:
                raise
            made.ending = "recalled" if isinstance(error, UpstreamRecalled) else "broken"
        return made

    def _constraint(
        self, format_: ModelFormat, rules: OutputRules, begun: Sequence[int]
    ) -> Constraint | None:
        if not rules.is_binding:
            return None
        if rules.grammars:
            languages_of(rules)
        parser = format_.new_parser(rules)
        parser.feed(begun)
        place, has_thought = parser.place, parser.reasoning_tokens > 0
        options = GrammarOptions(refusals=self._refusals, has_thought=has_thought)
        return format_.turn_constraint(rules, place, begun[place.start :], options)


def _chat_terms(spec: RunSpec, format_: ModelFormat) -> ChatTerms:
    return ChatTerms(
        limits_output=True, thought=format_.framing.thought, opens_thought=spec.opens_thought
    )


def _sampling(spec: RunSpec, variation: Variation, drawn: int, beside: int) -> Sampling:
    # Raises `InvalidRequest` if the request or the window leaves no room.
    sampling = spec.sampling.after(drawn)
    room = min(sampling.max_tokens, TOKENS_MAX, beside + MARGIN_TOKENS)
    if room <= 0:
        raise InvalidRequest(
            "The response has used up its tokens at this place: there is nothing to go on with.",
            code="invalid_value",
            param="at",
        )
    changes = {"temperature": variation.temperature, "seed": variation.seed}
    changed = {name: value for name, value in changes.items() if value is not None}
    return replace(sampling, max_tokens=room, logprobs=None, **changed)  # type: ignore[arg-type] # by name
