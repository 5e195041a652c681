"""What is said under a grammar: of all the scripted model could say, that which may be said.

Whole drafts are tried. When none fits, the one whose headers fit is followed, and what may not be
said of it is replaced by what ends soon, so that obedient output is valid and finite.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from gateway.simulator.constrained.matcher import Guide
from gateway.simulator.constrained.walk import Walk, literals_of
from gateway.simulator.directives import NOT_HELD
from gateway.simulator.turn.script import FINAL
from gateway.simulator.turn.transcript import kind_of, messages_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gateway.models.harmony.vocabulary import Vocabulary
    from gateway.simulator.constrained.constraint_fields import OutputConstraint
    from gateway.simulator.turn.script import Continuation


def constrained(
    continuation: Continuation,
    prompt: Sequence[int],
    constraint: OutputConstraint,
    *,
    ids_max: int,
    vocabulary: Vocabulary,
) -> Continuation:
    """The continuation with at most `ids_max` ids that the constraint allows, stop id included.

    CPU work. Raises `SimulatedError` (400) for a grammar that the matcher does not take.
    """
    guide = Guide(constraint.grammar, vocabulary)
    loose_from = continuation.directives.malformed.grammar_ids
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
    return replace(continuation, ids=[*head, *rest], finish=None)


def _ids_before_answer(ids: list[int], said: list[int], vocabulary: Vocabulary) -> int | None:
    """How many ids come before the body of the answer; None when there is none to come."""
    for message in messages_of([*said, *ids], vocabulary):
        is_answer = message.role == "assistant" and kind_of(message) == FINAL
        if is_answer and message.body is not None and message.body_end >= len(said):
            return max(message.body - len(said), 0)
    return None


def _behind(head: list[int], drafts: Iterable[list[int]]) -> Iterable[list[int]]:
    return (draft[len(head) :] for draft in drafts if draft[: len(head)] == head)
