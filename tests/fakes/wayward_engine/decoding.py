"""Output under a grammar: of all that the scripted model could write, what the grammar allows.

Whole drafts are tried. When none fits, the one whose headers fit is followed, and what the grammar
forbids of it is replaced by what ends soon, so that obedient output is valid and finite.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from gateway.generation import FinishReason
from gateway.models.harmony.tokenizer import CALL, CHANNEL, END, MESSAGE, RETURN, START, STOP_IDS
from gateway.simulator.scripted_turns import ANALYSIS, FINAL, is_call, kind_of, messages_of
from tests.fakes.wayward_engine.matcher import Guide
from tests.fakes.wayward_engine.misbehaviour import NOT_HELD, WaywardContinuation, malformed_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gateway.models.harmony.tokenizer import Vocabulary
    from tests.fakes.wayward_engine.constraint_fields import OutputConstraint
    from tests.fakes.wayward_engine.matcher import Choices

_SKIPPED_MAX: Final = 8
"""How many ids of a draft may be left out to find back to it."""
_AHEAD_MAX: Final = 1024
"""How many ids of a draft are looked at in one step."""
OWN_IDS_MAX: Final = 4096
"""How many ids may stand in for a draft: a grammar without a finite text, such as that of a schema
that requires itself, would have them fill the context, and each costs more than the one before."""
_LETTERS: Final = "etaoinsrhldcu"
MARKS: Final = ('"', "0", "1", "null", "true", "{", "[", ":", ",", *".-_@/+);!?(", *_LETTERS)
FREE: Final = (*MARKS, "\n", " ")
_CLOSING: Final = ("}", "]", '"', "{")
_HEADER_WORDS: Final = ("final", "commentary", "analysis")
_QUOTED: Final = re.compile(r'"(?:[^"\\\n]|\\.)+"')
_LITERALS_MAX: Final = 100


def _to_stop(draft: list[int]) -> list[int]:
    end = next((i for i, one in enumerate(draft, 1) if one in STOP_IDS), len(draft))
    return draft[:end]


@dataclass(frozen=True, slots=True)
class _Fit:
    """A draft, and the number of ids at its front that the grammar allows."""

    draft: list[int]
    count: int

    @property
    def is_whole(self) -> bool:
        return self.count == len(self.draft)

    @property
    def body(self) -> int:
        # Index of the start of the last body in the draft.
        backwards = reversed(range(len(self.draft)))
        return next((place + 1 for place in backwards if self.draft[place] == MESSAGE), 0)


class Walk:
    """One way through a grammar. `said[i]` stands for `draft[places[i]]`, or was put in before."""

    def __init__(
        self, guide: Guide, before: list[int], *, literals: list[list[int]], vocabulary: Vocabulary
    ) -> None:
        self._guide = guide
        self._literals = literals
        self._uses: Counter[tuple[int, ...]] = Counter()
        self._before = before
        self._vocabulary = vocabulary
        self.said: list[int] = []
        self.places: list[int] = []
        self._own = 0

    def follow(self, drafts: Iterable[list[int]], ids_max: int) -> list[int]:
        """Generate the draft that fits best, and return it."""
        best = self._best(_to_stop(draft[:ids_max]) for draft in drafts)
        place = 0
        while len(self.said) < ids_max and not self._is_over and not self.is_cut:
            place = self._step(best, place)
        return best

    @property
    def is_cut(self) -> bool:
        # Given up because no end was in sight.
        return self._own >= OWN_IDS_MAX

    def loosened(self, draft: Sequence[int], loose_from: int) -> list[int]:
        """Return the generated ids up to id `loose_from` of a body, and then the draft.

        From that id on the grammar is not checked.
        """
        for message in messages_of([*self._before, *self.said], self._vocabulary):
            if message.body is None or kind_of(message) == ANALYSIS:
                continue
            loose = message.body + loose_from
            is_open = message.body_end >= len(self._before)
            count = max(loose - len(self._before), 0)
            if is_open and loose <= message.body_end and count < len(self.said):
                return [*self.said[:count], *draft[self.places[count] :]]
        return self.said

    @property
    def _is_over(self) -> bool:
        return bool(self.said) and self.said[-1] in STOP_IDS

    def _best(self, drafts: Iterable[list[int]]) -> list[int]:
        # Takes the first draft that fits up to its last body, in the version that fits best: the
        # recipient or channel stays, even if the text has to change.
        fits: list[_Fit] = []
        for draft in drafts:
            fits.append(_Fit(draft, self._guide.accepts(draft)))
            if fits[0].is_whole:
                return draft
        meant = next((fit for fit in fits if fit.count >= fit.body), None)
        if meant is not None:
            header = meant.draft[: meant.body]
            fits = [fit for fit in fits if fit.draft[: meant.body] == header]
        whole = next((fit for fit in fits if fit.is_whole), None)
        return (whole or max(fits, key=lambda fit: fit.count)).draft

    def _step(self, draft: Sequence[int], place: int) -> int:
        # Says as much as is clear and returns the new index in the draft.
        for start in range(place, min(place + 1 + _SKIPPED_MAX, len(draft))):
            count = self._guide.accepts(draft[start : start + _AHEAD_MAX])
            if count:
                self._say(draft[start : start + count], start)
                return start + count
            if self._guide.may_end or self._guide.forced():
                break
        if self._guide.may_end:
            self._say([self._stop_id()], place)
        else:
            self._say(self._guide.forced() or self._chosen(), place, moves=False)
        return place

    def _say(self, ids: Sequence[int], place: int, *, moves: bool = True) -> None:
        if ids[-1] not in STOP_IDS:
            self._guide.say(ids)
        self.said += ids
        self.places += range(place, place + len(ids)) if moves else [place] * len(ids)
        self._own += 0 if moves else len(ids)

    def _stop_id(self) -> int:
        # The id that ends the open message.
        messages = messages_of([*self._before, *self.said], self._vocabulary)
        return CALL if messages and is_call(kind_of(messages[-1])) else RETURN

    def _chosen(self) -> list[int]:
        # Ids that bring the end nearer; deterministic at each position.
        choices = self._guide.choices()
        is_free = all(one in choices for one in self._ids(*_LETTERS))
        markers = (MESSAGE, START, CHANNEL)
        (quote,) = self._ids('"')
        if is_free:  # a string is closed, unless that was just tried
            first = [END] if self.said[-1:] == [quote] else [END, quote]
        else:
            first = [END, *self._ids(" to"), *markers, *self._ids(*_HEADER_WORDS, *_CLOSING)]
        known = next((one for one in first if one in choices), None)
        return self._fair(choices, FREE if is_free else MARKS) if known is None else [known]

    def _fair(self, choices: Choices, pieces: Sequence[str]) -> list[int]:
        # The least used so far, so that whatever leads on has its turn.
        literals = [ids for ids in self._literals if self._guide.accepts(ids) == len(ids)]
        single = [[one] for one in self._ids(*pieces) if one in choices]
        lowest = choices.lowest()
        others = [[RETURN if lowest is None else lowest]]
        chosen = min([*literals, *single] or others, key=lambda ids: self._uses[tuple(ids)])
        self._uses[tuple(chosen)] += 1
        return chosen

    def _ids(self, *texts: str) -> list[int]:
        return [self._vocabulary.encode(text)[0] for text in texts]


def literals_of(grammar: str, vocabulary: Vocabulary) -> list[list[int]]:
    """Return the ids of the first quoted words of a grammar."""
    found = list(dict.fromkeys(_QUOTED.findall(grammar)))[:_LITERALS_MAX]
    texts = [text for text in map(_unquoted, found) if text.strip()]
    return [vocabulary.encode(text) for text in texts]


def _unquoted(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:
        return ""


def constrained(
    continuation: WaywardContinuation,
    prompt: Sequence[int],
    constraint: OutputConstraint,
    *,
    ids_max: int,
    vocabulary: Vocabulary,
) -> WaywardContinuation:
    """Return the continuation with at most `ids_max` ids that the constraint allows.

    The stop id counts. A continuation that finds no end is cut, as if its limit were reached. CPU
    work. Raises `SimulatedError` (400) for a grammar that the matcher does not accept.
    """
    guide = Guide(constraint.grammar, vocabulary)
    loose_from = malformed_of(continuation.directives).grammar_ids
    if loose_from == NOT_HELD:
        return continuation
    said = list(prompt[continuation.turn_start :])
    free = _ids_before_answer(continuation.ids, said, vocabulary) if constraint.answer_only else 0
    if free is None:
        return continuation
    head = continuation.ids[:free]
    others = [] if loose_from is not None else continuation.others()
    drafts = _behind(head, chain([continuation.ids], others))
    literals = literals_of(constraint.grammar, vocabulary)
    walk = Walk(guide, [*said, *head], literals=literals, vocabulary=vocabulary)
    draft = walk.follow(drafts, ids_max - len(head))
    rest = walk.said if loose_from is None else walk.loosened(draft, loose_from)
    is_cut = walk.is_cut and rest is walk.said
    finish = FinishReason.LENGTH if is_cut else None
    return replace(continuation, ids=[*head, *rest], finish=finish)


def _ids_before_answer(ids: list[int], said: list[int], vocabulary: Vocabulary) -> int | None:
    # None: the turn has no answer.
    for message in messages_of([*said, *ids], vocabulary):
        is_answer = message.role == "assistant" and kind_of(message) == FINAL
        if is_answer and message.body is not None and message.body_end >= len(said):
            return max(message.body - len(said), 0)
    return None


def _behind(head: list[int], drafts: Iterable[list[int]]) -> Iterable[list[int]]:
    return (draft[len(head) :] for draft in drafts if draft[: len(head)] == head)
