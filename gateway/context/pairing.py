"""Calls and their outputs: what belongs together, and what lost the other half.

A context that is continued always has whole pairs, but for the calls at its end that wait for their
outputs. Items of a conversation can be added and deleted by hand, though: without an answer to what
is left of a pair the conversation would be refused for ever. So it is left out of the prompt.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from gateway.protocol.context_item import ContextItem

_OUTPUT_SUFFIX: Final = "_output"
"""The kind of an output is that of its call, and this."""
_ANY_OUTPUT: Final = "function_call_output"
"""Answers every call: in Open Responses all are calls of functions, and Codex answers its local
shell as one (`LocalShellCall` in its source)."""


def fits(output: str, call: str | None) -> bool:
    """Whether an output of one kind may answer a call of another; None: there is no call."""
    fitting = output == _ANY_OUTPUT or call == output.removesuffix(_OUTPUT_SUFFIX)
    return call is not None and fitting


def told_apart(
    history: Sequence[ContextItem], added: Sequence[ContextItem]
) -> tuple[Sequence[ContextItem], Sequence[ContextItem]]:
    """The same items, where outputs without a `call_id` have that of the call that they answer.

    That is the last call of the name they tell before them that nothing else answers; where they
    tell none, the last of any name. An output whose name no such call has stands alone: it is shown
    as what that tool said, without having been asked.
    """
    if not any(map(_names_no_call, chain(history, added))):
        return history, added
    items = [*history, *added]
    unanswered = _OpenCalls(_answered(items))
    for index, item in enumerate(items):
        if item.kind == "compaction":
            unanswered.forget()  # what it hides is over
        elif item.is_call and item.complete:
            unanswered.add(index, item.name)
        elif _names_no_call(item) and (call := unanswered.take(item.name)) is not None:
            items[index] = _answering(item, items[call].call_id)
    return items[: len(history)], items[len(history) :]


def _names_no_call(item: ContextItem) -> bool:
    return item.is_output and item.call_id is None


class _OpenCalls:
    """Calls, by their index, that nothing answers which names its call."""

    def __init__(self, answered: Collection[int]) -> None:
        self._answered = set(answered)
        self.forget()

    def forget(self) -> None:
        """None of them can be answered any more."""
        self._all: list[int] = []
        self._by_name: defaultdict[str | None, list[int]] = defaultdict(list)

    def add(self, call: int, name: str | None) -> None:
        self._all.append(call)
        self._by_name[name].append(call)

    def take(self, name: str | None) -> int | None:
        """The last one of this name, or of any; it is answered now."""
        calls = self._all if name is None else self._by_name[name]
        while calls:
            call = calls.pop()
            if call not in self._answered:
                self._answered.add(call)
                return call
        return None


def _answering(output: ContextItem, call_id: str | None) -> ContextItem:
    """The output with the `call_id` of its call, also where it is listed."""
    body = {**orjson.loads(output.json), "call_id": call_id} if output.json else None
    return replace(
        output,
        json=orjson.dumps(body) if body else b"",
        call_id=call_id,
        parsed=output.parsed and output.parsed.model_copy(update={"call_id": call_id}),
    )


def without_cut_calls(
    history: Sequence[ContextItem], added: Sequence[ContextItem]
) -> list[ContextItem]:
    """The history without calls that were cut off. One that has an output, in the history or among
    the items `added` to it, is a call like any other: its client made something of it.
    """
    if not any(is_cut_call(item) for item in history):
        return list(history)
    answered = _answered((*history, *added))
    return [
        replace(item, complete=True) if index in answered else item
        for index, item in enumerate(history)
        if index in answered or not is_cut_call(item)
    ]


def is_cut_call(item: ContextItem) -> bool:
    """Whether it is a call that was not written to its end."""
    return item.is_call and not item.complete


def _answered(items: Iterable[ContextItem]) -> set[int]:
    """Indexes of the calls that have an output behind them: of several with one `call_id` that
    wait, a whole one, or else the last.
    """
    waiting: dict[str | None, tuple[int, ContextItem]] = {}
    answered: set[int] = set()
    for index, item in enumerate(items):
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
    if not any(item.is_call or item.is_output for item in history):
        return list(history)  # nothing in it belongs to anything
    waiting: dict[str | None, int] = {}
    orphans: set[int] = set()
    gone_on_at = -1
    for index, item in enumerate(history):
        if item.is_call:
            if item.call_id in waiting:
                orphans.add(waiting[item.call_id])
            waiting[item.call_id] = index
        elif item.is_output and not item.stands_alone:
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
