"""Calls and their outputs: what belongs together, and what lost the other half.

A context that is continued always has whole pairs, but for the calls at its end that wait for their
outputs. Items of a conversation can be added and deleted by hand, though: without an answer to what
is left of a pair the conversation would be refused for ever. So it is left out of the prompt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.protocol.context import ContextItem

_OUTPUT_SUFFIX: Final = "_output"
"""The kind of an output is that of its call, and this."""
_ANY_OUTPUT: Final = "function_call_output"
"""Answers every call: in Open Responses all are calls of functions (`protocol.open_responses`), and
Codex answers its local shell as one (`LocalShellCall` in its source)."""


def fits(output: str, call: str | None) -> bool:
    """Whether an output of one kind may answer a call of another; None: there is no call."""
    fitting = output == _ANY_OUTPUT or call == output.removesuffix(_OUTPUT_SUFFIX)
    return call is not None and fitting


def without_cut_calls(
    history: Sequence[ContextItem], added: Sequence[ContextItem]
) -> list[ContextItem]:
    """The history without calls that were cut off. One that has an output, in the history or among
    the items `added` to it, is a call like any other: its client made something of it.
    """
    if not any(is_cut_call(item) for item in history):
        return list(history)
    answered = _answered(history, added)
    return [
        replace(item, complete=True) if index in answered else item
        for index, item in enumerate(history)
        if index in answered or not is_cut_call(item)
    ]


def is_cut_call(item: ContextItem) -> bool:
    """Whether it is a call that was not written to its end."""
    return item.is_call and not item.complete


def _answered(history: Sequence[ContextItem], added: Sequence[ContextItem]) -> set[int]:
    """Indexes of the calls of the history that have an output behind them: of several with one
    `call_id` that wait, a whole one, or else the last.
    """
    waiting: dict[str | None, tuple[int, ContextItem]] = {}
    answered: set[int] = set()
    for index, item in enumerate((*history, *added)):
        before = waiting.get(item.call_id)
        if item.is_call and not (is_cut_call(item) and before and before[1].complete):
            waiting[item.call_id] = index, item
        elif item.is_output and before and fits(item.kind, before[1].kind):
            answered.add(before[0])
            del waiting[item.call_id]
    return answered


def without_orphans(
    history: Sequence[ContextItem], added: Sequence[ContextItem]
) -> list[ContextItem]:
    """The history without outputs that have no call, and without calls that nobody will answer.

    Those are the ones that `added` does not answer although the history goes on behind them: with
    a message that is not the assistant's, or with another call of the same `call_id`. What a
    compaction hides cannot be answered at all.
    """
    if all(item.call_id is None for item in history):
        return list(history)  # nothing in it belongs to anything
    waiting: dict[str | None, int] = {}
    orphans: set[int] = set()
    gone_on_at = -1
    for index, item in enumerate(history):
        if item.is_call:
            if item.call_id in waiting:
                orphans.add(waiting[item.call_id])
            waiting[item.call_id] = index
        elif item.is_output:
            call = waiting.get(item.call_id)
            if call is None or not fits(item.kind, history[call].kind):
                orphans.add(index)
            else:
                del waiting[item.call_id]
        elif item.kind == "compaction":
            orphans.update(waiting.values())
            waiting.clear()
        elif item.kind == "message" and item.role != "assistant":
            gone_on_at = index
    answered = {item.call_id for item in added if item.is_output}
    orphans |= {
        index
        for call_id, index in waiting.items()
        if index < gone_on_at and call_id not in answered
    }
    return [item for index, item in enumerate(history) if index not in orphans]
