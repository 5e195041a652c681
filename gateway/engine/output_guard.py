"""Decisions about a turn that does not go as the request demands. No I/O.

Decisions follow from the log alone, so another replica that continues decides the same. A repair
takes ids back that nobody has seen, ends the turn and opens another one behind what is left
(`_prefill_after`); those of `WITHIN_TURN` do not end it, those of `CUT_OFF` end the response.

No turn follows a call, after which the client has something to do, or an answer. A turn that ended
by itself is followed by another if it has nothing that the client can use, and (once) if it has
only a preamble, though tools may be called.

Hosted tools refuse wrong arguments in a result for the model; those of MCP servers, once no repair
is left. A hosted call ends its turn, whatever the model closed it by. Rules may change with each of
them (`Fold.rules`); budget and repairs are those of the whole response.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Final

import orjson

from gateway.errors import GatewayError
from gateway.eventlog.fold.screen import is_object
from gateway.generation import FinishReason, SegmentKind, Where
from gateway.models.format import AFTER_ANSWER_RULE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.constraints.output_rules import OutputRules
    from gateway.eventlog.fold.fold import Fold
    from gateway.eventlog.fold.screen import Body, RuleViolation
    from gateway.generation import BrokenCall, ParserPosition
    from gateway.models.format import ModelFormat

HEADER_NOT_UNDERSTOOD: Final = "header_not_understood"
REASONING_BUDGET: Final = "reasoning_budget"
THINKS_ON: Final = "thinks_on"
PREAMBLE_TOO_LONG: Final = "preamble_too_long"
PREAMBLE_ONLY: Final = "preamble_only"
REPETITION: Final = "repetition"
TOO_MANY_MESSAGES: Final = "too_many_messages"
CUT_OFF: Final = frozenset({REPETITION, TOO_MANY_MESSAGES})
"""The response ends, as if it had come to its limit."""
BEGUN_ANEW: Final = "begun_anew"
"""Another backend repeats a message that nobody has seen."""
BODY_REGENERATED: Final = "said_anew"
"""The unseen part of a body is generated again, though its beginning may have been seen."""
GRAMMAR_FAILED: Final = "grammar_failed"
"""An engine failed in its grammar: none is used for the rest of the turn."""
WITHIN_TURN: Final = frozenset({BEGUN_ANEW, BODY_REGENERATED, GRAMMAR_FAILED})
"""The open turn goes on after these repairs."""

REQUIRED_TOOL_NOT_CALLED: Final = "required_tool_not_called"
INVALID_TOOL_CALL: Final = "invalid_tool_call"
INVALID_STRUCTURED_OUTPUT: Final = "invalid_structured_output"
BACKEND_LOST: Final = "backend_lost"
"""A backend broke off in what its grammar bound, and no other could complete it."""
FAILURES: Final = {
    "call_not_allowed": INVALID_TOOL_CALL,
    "second_call": INVALID_TOOL_CALL,
    "prose_for_call": REQUIRED_TOOL_NOT_CALLED,
    PREAMBLE_TOO_LONG: REQUIRED_TOOL_NOT_CALLED,
    "not_json": INVALID_STRUCTURED_OUTPUT,
    INVALID_TOOL_CALL: INVALID_TOOL_CALL,
    INVALID_STRUCTURED_OUTPUT: INVALID_STRUCTURED_OUTPUT,
}
"""Error codes of responses that were repaired in vain, by the last rule."""

LOOP_CHECK_IDS: Final = 64
"""Ids between two searches for loops."""
WRITABLE_IDS_MAX: Final = 4096
"""Written to the log at once: parsing them takes a millisecond or two."""
PERIOD_IDS_MAX: Final = 8
"""Longest repetition that is taken for a loop."""
MESSAGES_MAX: Final = 12
"""A turn that lacks what is demanded ends here: a model that may not answer yet may think on and
on."""
BUDGET_TURNS_MAX: Final = 2
"""After the first the model may call a tool or answer, after the second its answer is opened."""

_FREE_TURNS: Final = {REASONING_BUDGET: BUDGET_TURNS_MAX, PREAMBLE_TOO_LONG: 1}
"""Turns that may end by each rule without counting as repaired."""

_MAY_BE_REASONING: Final = (None, SegmentKind.REASONING)


class OutputViolation(GatewayError):
    """Failure of a model to do what the request demands, after all repairs."""

    def __init__(self, code: str) -> None:
        super().__init__(f"the model did not do what was demanded of it: {code}")
        self.code = code


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """Bounds of one response. `repeated_tokens_max` and `preamble_tokens_max`: 0 is never.

    `refusals`: the model may refuse to answer in a format.
    """

    repairs_max: int = 3
    header_tokens_max: int = 64
    repeated_tokens_max: int = 1024
    messages_max: int = 1000
    preamble_tokens_max: int = 1024
    refusals: bool = True

    def times(self, ids_per_token: int) -> GuardLimits:
        # For a format in which a token is about `ids_per_token` ids.
        return replace(
            self,
            header_tokens_max=self.header_tokens_max * ids_per_token,
            repeated_tokens_max=self.repeated_tokens_max * ids_per_token,
            preamble_tokens_max=self.preamble_tokens_max * ids_per_token,
        )


@dataclass(frozen=True, slots=True)
class TurnEnding:
    """End of the open turn: by itself, with a repair (`rule`), or with the whole response.

    A repair takes back all ids from position `start` on, counted in prefill and output.
    """

    finish: FinishReason = FinishReason.CUT
    rule: str = ""
    start: int | None = None
    is_written: bool = False
    failure: str = ""


class OutputGuard:
    """Guard of one response, held to the rules after its last result (`hold_to`)."""

    __slots__ = (
        "_can_violate", "_continues_preambles", "_format", "_is_free", "_joins_header", "_limits",
        "_loop_ids_min", "_may_call", "_preamble_ids_max", "_reasoning_budget", "_rules",
        "has_checks", "may_bind", "text_ids",
    )  # fmt: skip

    def __init__(
        self,
        rules: OutputRules,
        limits: GuardLimits,
        format_: ModelFormat,
        *,
        reasoning_budget: int | None,
        continues_preambles: Callable[[], bool] = lambda: True,
    ) -> None:
        # If `continues_preambles` returns True, a turn that is only a preamble does not end the
        # response if tools may be called.
        self._limits = limits
        self._continues_preambles = continues_preambles
        self._format = format_
        self.text_ids = format_.text_ids
        """All other ids are markers."""
        self._reasoning_budget = reasoning_budget
        self.has_checks = rules.answer is not None or rules.checks_calls
        """Some bodies are checked before they are done."""
        self._loop_ids_min = (
            limits.repeated_tokens_max + PERIOD_IDS_MAX
            if limits.repeated_tokens_max
            else sys.maxsize
        )
        self.hold_to(rules)

    def hold_to(self, rules: OutputRules) -> None:
        # The tools of `rules` are the same as before.
        self._rules = rules
        self.may_bind = rules.is_binding or self._reasoning_budget is not None
        """Constraints may bind a turn, or a part of it."""
        self._may_call = rules.calls == "auto" and bool(rules.allowed)
        is_owing = rules.calls == "required"
        self._preamble_ids_max = self._limits.preamble_tokens_max if is_owing else 0
        is_narrowed = not rules.open_calls or rules.allowed != rules.tools.keys()
        is_held = self.has_checks or rules.calls != "auto"
        self._can_violate = is_held or rules.one_call or is_narrowed
        is_bounded = bool(rules.stop) or self._reasoning_budget is not None
        self._is_free = not self._can_violate and not is_bounded
        self._joins_header = self._is_free and (
            self._limits.header_tokens_max >= self._format.plain_header_ids_max > 0
        )

    def passes(self, ids: Sequence[int], output_count: int) -> bool:
        """Return True if ids of a body are text that may be written without an inspection.

        `output_count` includes these ids.
        """
        if not self._is_free:
            return False
        count = len(ids)
        if count == 1:
            is_text = ids[0] in self.text_ids
        else:
            is_text = count <= WRITABLE_IDS_MAX and _are_text(ids, self.text_ids)
        # Loops are looked for at multiples of `LOOP_CHECK_IDS`, once there is enough for one.
        return is_text and (
            output_count < self._loop_ids_min or output_count % LOOP_CHECK_IDS >= count
        )

    def writable(self, fold: Fold, ids: Sequence[int], at: int = 0) -> int:
        """Return how many ids from `at` on may be written before `inspect`; 0: a budget is used up.

        A marker stands alone, so that no decision depends on how the ids are cut into chunks. So
        does each id where headers are text. Where nothing is demanded, the first header of a turn
        stands as a whole.
        """
        is_bounded = self._reasoning_budget is not None or self._preamble_ids_max > 0
        if len(ids) == 1 and not is_bounded:
            return 1
        output_ids = _output_ids(fold)
        count = 1 if self._format.has_text_headers else _text_at(ids, at, self.text_ids)
        if not count:
            is_first = self._joins_header and not _position(fold)
            count = (is_first and self._format.plain_header(ids, at)) or 1
        if 0 < self._limits.repeated_tokens_max <= len(output_ids) + count:
            count = min(count, LOOP_CHECK_IDS - len(output_ids) % LOOP_CHECK_IDS)
        if self._reasoning_budget is not None:
            count = min(count, self._reasoning_ids_left(fold, ids[at]))
        if self._preamble_ids_max and ids[at] in self.text_ids and self._is_owing_preamble(fold):
            # All output that is no reasoning precedes the call.
            before_call_ids = fold.output_tokens - fold.reasoning_tokens
            count = min(count, max(0, self._preamble_ids_max - before_call_ids))
        return count

    def _is_owing_preamble(self, fold: Fold) -> bool:
        place = fold.place
        is_preamble = place.where is Where.BODY and place.kind is SegmentKind.COMMENTARY
        return is_preamble and self.lacks_call(fold)

    def _reasoning_ids_left(self, fold: Fold, token: int) -> int:
        place, says = fold.place, token in self.text_ids
        left = self._budget_left(fold)
        if place.where is Where.BODY and says:
            return max(0, left) if place.kind in _MAY_BE_REASONING else LOOP_CHECK_IDS
        in_header = place.where is Where.HEADER and token in self._format.header_markers
        return LOOP_CHECK_IDS if says or in_header or left >= 0 else 0

    def _budget_left(self, fold: Fold) -> int:
        # Ids that may still be reasoning. Below 0 if the open message may turn out to be reasoning
        # beyond the budget, counted with all ids that spell it.
        place = fold.place
        left = (self._reasoning_budget or 0) - fold.reasoning_tokens - place.waiting
        if place.kind is not None or place.where is Where.OVER:
            return max(0, left)
        return left - (_position(fold) - place.start)

    def exceeds_budget(self, fold: Fold) -> bool:
        # If the turn ended here.
        return self._budget_left(fold) < 0

    def out_of_budget(self, fold: Fold) -> TurnEnding:
        """Return the ending of a turn that exceeds the budget for reasoning, or for a preamble."""
        rule = PREAMBLE_TOO_LONG if self._is_owing_preamble(fold) else REASONING_BUDGET
        return TurnEnding(rule=rule, start=_unseen_from(fold, fold.place.start))

    def inspect(self, fold: Fold, header: ParserPosition | None) -> TurnEnding | None:
        """Return how the open turn has to end, as written so far; None if it continues.

        `header` is the next id's position in or right behind a header.
        """
        if self._can_violate and (violation := fold.violation) is not None:
            return self._end_at_violation(fold, violation)
        if header is not None and (ending := self._inspect_header(fold, header)) is not None:
            return ending
        output_ids = fold.turns[-1].output_ids
        # Loops are looked for at multiples of `LOOP_CHECK_IDS`, once there is enough for one.
        if (
            len(output_ids) >= self._loop_ids_min
            and not len(output_ids) % LOOP_CHECK_IDS
            and self._is_loop(output_ids)
        ):
            return TurnEnding(FinishReason.LENGTH, REPETITION)
        if self._rules.stop and fold.stopped:
            return TurnEnding(FinishReason.STOP)
        return None

    def _end_at_violation(self, fold: Fold, violation: RuleViolation) -> TurnEnding:
        is_repairable = self._repairs_left(fold) > 0 or fold.called
        start = _unseen_from(fold, violation.start) if is_repairable else None
        if start is None:
            return TurnEnding(failure=_cause(fold, violation.start, FAILURES[violation.rule]))
        return TurnEnding(rule=violation.rule, start=start)

    def _inspect_header(self, fold: Fold, header: ParserPosition) -> TurnEnding | None:
        if header.where is Where.OVER and self._is_hosted(header.name):
            is_ended = _output_ids(fold)[-1:] and _output_ids(fold)[-1] in self._format.stop_ids
            # Behind the id that ends a turn its backend says nothing more, either.
            return None if is_ended else TurnEnding(FinishReason.STOP)
        if header.broken is not None and self._may_be_anything(header.broken.name):
            return self._end_broken_call(fold, header.broken)
        # A header that is too long is none.
        is_long = header.where is Where.HEADER and (
            _position(fold) - header.start > self._limits.header_tokens_max
        )
        if is_long or header.doubts:
            ending = self._end_at_header(fold, header)
            if ending is not None:
                return ending
        if self._can_violate and (ending := self._inspect_demand(fold)) is not None:
            return ending
        if len(fold.shown.output) > self._limits.messages_max:
            return TurnEnding(FinishReason.LENGTH, TOO_MANY_MESSAGES)
        return None

    def _is_hosted(self, name: str) -> bool:
        rule = self._rules.tools.get(name)
        return rule is not None and rule.is_hosted

    def _end_broken_call(self, fold: Fold, call: BrokenCall) -> TurnEnding:
        # A call ended in the middle of its JSON: the turn continues there, or the response fails.
        if self._repairs_left(fold) > 0 and not fold.is_seen_behind(call.end):
            return TurnEnding(rule=BODY_REGENERATED, start=call.end)
        return TurnEnding(failure=INVALID_TOOL_CALL)

    def _may_be_anything(self, name: str) -> bool:
        rule = self._rules.tools.get(name)
        return rule is None or (rule.kind is SegmentKind.FUNCTION_CALL and not rule.is_checked)

    def _end_at_header(self, fold: Fold, place: ParserPosition) -> TurnEnding | None:
        # The parser had to guess a header, or it has no end. None: the header stays as it is.
        if self._repairs_left(fold) <= 0 and not place.answered:
            return None
        start = _unseen_from(fold, place.start)
        rule = AFTER_ANSWER_RULE if place.answered else HEADER_NOT_UNDERSTOOD
        return None if start is None else TurnEnding(rule=rule, start=start)

    def _inspect_demand(self, fold: Fold) -> TurnEnding | None:
        if self._repairs_left(fold) <= 0:
            return None
        if self._thinks_on(fold):
            return TurnEnding(rule=THINKS_ON)
        return self._stray_marker(fold)

    def _stray_marker(self, fold: Fold) -> TurnEnding | None:
        # A grammar took a marker in the middle of a checked body for text; the ids behind it would
        # not fit those before it.
        place, turn = fold.place, fold.open_turn
        if turn is None or not turn.output_ids or fold.is_text(turn.output_ids[-1]):
            return None
        marker = _position(fold) - 1
        if place.where is not Where.BODY or not self._checks(place) or fold.is_seen_behind(marker):
            return None
        is_behind_header = self._format.has_body(
            [*turn.prefill, *turn.output_ids][place.start : -1]
        )
        return TurnEnding(rule=BODY_REGENERATED, start=marker) if is_behind_header else None

    def _thinks_on(self, fold: Fold) -> bool:
        # Message followed message without anything that was demanded.
        is_between = fold.place.where is Where.BETWEEN
        if not is_between or not self._lacks_demanded(fold):
            return False
        return _output_ids(fold).count(self._format.framing.message_end) >= MESSAGES_MAX

    def _lacks_demanded(self, fold: Fold) -> bool:
        # A call, or an answer in a format where no call can come first.
        rules = self._rules
        may_call = bool(rules.allowed) and rules.calls != "none"
        lacks_answer = rules.answer is not None and not may_call and not fold.bodies
        return self.lacks_call(fold) or lacks_answer

    def _is_loop(self, ids: Sequence[int]) -> bool:
        size = self._limits.repeated_tokens_max
        return any(
            ids[-1] == ids[-1 - period] and ids[-size:] == ids[-size - period : -period]
            for period in range(1, PERIOD_IDS_MAX + 1)
        )

    def faulty(self, fold: Fold, body: Body) -> TurnEnding:
        """Return the ending of a turn whose body does not match the request."""
        rule = code = INVALID_TOOL_CALL if body.kind == "call" else INVALID_STRUCTURED_OUTPUT
        start = None
        if self._repairs_left(fold) > 0 and not body.seen:
            start = _unseen_from(fold, body.start)
        elif self._repairs_left(fold) > 0 and (fold.is_held or _breaks_off(body)):
            # No backend continues text.
            is_text = self._format.framing.is_text
            rule, start = BODY_REGENERATED, None if is_text else _unseen_rest(fold)
        if start is None:
            return TurnEnding(failure=_cause(fold, body.start, code))
        return TurnEnding(rule=rule, start=start)

    def is_left_to_tool(self, fold: Fold, body: Body) -> bool:
        """Return True for a faulty call that its tool refuses in a result for the model.

        A readable call that the user has to approve would go to the user instead.
        """
        tool = self._rules.tools.get(body.name) if body.kind == "call" else None
        if tool is None or not tool.is_hosted or not self.faulty(fold, body).failure:
            return False
        return tool.kind is SegmentKind.MCP_CALL or not is_object(body.text)

    def after_repair(self, fold: Fold, rule: str) -> TurnEnding:
        if rule in CUT_OFF:
            return TurnEnding(FinishReason.LENGTH)
        if fold.called or fold.place.answered:
            return TurnEnding(FinishReason.STOP)
        if self._repairs_left(fold) > 0 or fold.recoveries.get(rule, 0) <= _FREE_TURNS.get(rule, 0):
            return TurnEnding(FinishReason.CUT)
        failure = FAILURES.get(rule)
        return TurnEnding(FinishReason.LENGTH) if failure is None else TurnEnding(failure=failure)

    def restart_position(self, fold: Fold) -> int | None:
        """Return where another backend begins again, since a grammar cannot begin inside a body."""
        place = fold.place
        if not self._can_violate or not (place.where is Where.HEADER or self._checks(place)):
            return None
        return _unseen_from(fold, place.start)

    def _checks(self, place: ParserPosition) -> bool:
        if place.kind is SegmentKind.FINAL:
            return self._rules.answer is not None
        rule = self._rules.tools.get(place.name)
        return rule is not None and rule.is_checked

    @property
    def refusals(self) -> bool:
        # The model may refuse to answer in a format.
        return self._limits.refusals

    def may_think(self, fold: Fold) -> bool:
        return self._reasoning_budget is None or REASONING_BUDGET not in fold.recoveries

    def lacks_call(self, fold: Fold) -> bool:
        # Calls of the client and of the gateway both count.
        return self._rules.calls == "required" and not fold.called and not fold.hosted.results

    def next_prefill(self, fold: Fold, rule: str | None) -> tuple[int, ...] | None:
        """Return the ids that open the next turn; None if nothing is left to do.

        `rule` is that of the repair that ended the last turn (recovery rule R10 for one without
        output).
        """
        last = fold.turns[-1].finish
        if last is FinishReason.CUT:
            return self._prefill_after(fold, rule)
        if last is FinishReason.STOP and self._may_call and self._is_announcement(fold):
            return ()
        is_mute = not fold.shown.is_visible and not fold.stopped
        if last is not FinishReason.STOP or not (is_mute or self.lacks_call(fold)):
            return None
        # Number of turns that may end by themselves without output that the client can use.
        rules = self._rules
        is_bound = rules.answer is not None or rules.calls == "required"
        empty_turns_max = max(1, self._repairs_left(fold)) if is_bound else 1
        return self._demanded_header(fold) if _stops(fold) <= empty_turns_max else None

    def _is_announcement(self, fold: Fold) -> bool:
        # The model announced what it would do, and ended its first turn before doing it.
        # Beside an answer in a format preambles are reasoning. A try is left for that answer.
        is_beside_format = self._rules.answer is not None
        shown = fold.shown
        is_one = (
            not (shown.is_called or shown.is_answered)
            if shown.is_visible
            else is_beside_format and PREAMBLE_ONLY in fold.recoveries
        )
        if fold.stopped or not (is_one and self._continues_preambles()):
            return False
        return _stops(fold) == 1 and self._repairs_left(fold) > is_beside_format

    def shortcoming(self, fold: Fold) -> str | None:
        """Return the error code of a response that ended by itself without something demanded."""
        if fold.last_finish is not FinishReason.STOP:
            return None
        if self.lacks_call(fold):
            return REQUIRED_TOOL_NOT_CALLED
        if fold.shown.breaks_off:
            return INVALID_TOOL_CALL
        lacks_answer = self._rules.answer is not None and not fold.shown.is_visible
        return INVALID_STRUCTURED_OUTPUT if lacks_answer else None

    def _prefill_after(self, fold: Fold, rule: str | None) -> tuple[int, ...]:
        if rule == HEADER_NOT_UNDERSTOOD and not self.lacks_call(fold):
            return self._format.message_opening()
        is_first_time = rule == REASONING_BUDGET and fold.recoveries[rule] < BUDGET_TURNS_MAX
        if self._may_call and (rule == INVALID_TOOL_CALL or is_first_time):
            return ()
        return self._demanded_header(fold)

    def _demanded_header(self, fold: Fold) -> tuple[int, ...]:
        if self.lacks_call(fold):
            return self._format.call_opening(self._rules)
        faults = (INVALID_STRUCTURED_OUTPUT, "not_json")
        attempt = sum(fold.recoveries.get(fault, 0) for fault in faults)
        attempt += _stops(fold) > 1
        return self._format.answer_opening(self._rules, attempt=attempt)

    def _repairs_left(self, fold: Fold) -> int:
        cut = sum(turn.finish is FinishReason.CUT for turn in fold.turns)
        recoveries = fold.recoveries
        free = sum(min(recoveries.get(rule, 0), turns) for rule, turns in _FREE_TURNS.items())
        regenerated = recoveries.get(BODY_REGENERATED, 0)
        return self._limits.repairs_max - max(0, cut - free) - regenerated


def _are_text(ids: Sequence[int], text_ids: range) -> bool:
    return max(ids) < text_ids.stop and min(ids) >= text_ids.start


def _text_at(ids: Sequence[int], at: int, text_ids: range) -> int:
    # Counts ids from `at` on up to the next marker, at most `WRITABLE_IDS_MAX`.
    return len(tuple(takewhile(text_ids.__contains__, ids[at : at + WRITABLE_IDS_MAX])))


def _cause(fold: Fold, start: int, code: str) -> str:
    # If some of the message was seen when its backend was lost, the loss is the cause.
    turn = fold.open_turn
    is_cut = turn is not None and turn.hops > 0 and turn.hopped_at > start + 1
    return BACKEND_LOST if is_cut and fold.seen > start + 1 else code


def _breaks_off(body: Body) -> bool:
    # JSON ends in the middle at a marker that a grammar took for text.
    try:
        orjson.loads(body.text)
    except orjson.JSONDecodeError:
        return True
    return False


def _stops(fold: Fold) -> int:
    # A turn whose call the gateway answered did not end by itself.
    return sum(turn.finish is FinishReason.STOP and not turn.result for turn in fold.turns)


def _output_ids(fold: Fold) -> Sequence[int]:
    turn = fold.open_turn
    return turn.output_ids if turn is not None else ()


def _position(fold: Fold) -> int:
    turn = fold.open_turn
    return len(turn.prefill) + len(turn.output_ids) if turn is not None else 0


def _unseen_from(fold: Fold, start: int) -> int | None:
    # None: somebody has seen part of the message. Its first id may have to stay, because it showed
    # the end of the message before.
    return None if fold.is_seen_behind(start + 1) else max(start, fold.seen)


def _unseen_rest(fold: Fold) -> int | None:
    # Only ids of the model itself count. None: all were seen.
    turn = fold.open_turn
    start = max(fold.seen, len(turn.prefill)) if turn is not None else 0
    return start if start < _position(fold) else None
