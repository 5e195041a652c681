"""`truncation: auto`: make a context fit by leaving out its oldest turns, never parts of one.

A turn is a user message and all that follows it up to the next one. A user message that interrupts
a tool loop, between a call and its output, opens none: the two are never separated, nor are an MCP
approval request and the call that was approved. Leading system and developer messages always stay.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from gateway.errors import ContextLengthExceeded
from gateway.generation import PREAMBLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.generation import Prompt
    from gateway.protocol.context_item import ContextItem

ANSWER_SHARE: Final = 16
"""Where a request does not say how long its answer may be, old turns make room for the window's
length divided by this."""


def missing_tokens(prompt: Prompt, context_length: int, *, answer_tokens: int | None) -> int:
    """Return how many tokens of the prompt must go to fit an answer of `answer_tokens`.

    0 or less: none. An answer gets at most half of the window.
    """
    wanted = min(answer_tokens or context_length // ANSWER_SHARE, context_length // 2)
    return prompt.tokens + wanted - context_length


def costs_of(prompt: Prompt, count: int) -> list[int]:
    """Return the number of prompt tokens of each of its `count` items."""
    costs = [0] * count
    for span in prompt.spans:
        if span.source != PREAMBLE:
            costs[span.source] += span.end - span.start
    return costs


def drop_oldest_turns(
    items: Sequence[ContextItem],
    costs: Sequence[int],
    excess_tokens: int,
    *,
    wanted_tokens: int = 0,
) -> list[int]:
    """Return the indexes of the items to keep when at least `excess_tokens` have to go.

    Turns are dropped until `wanted_tokens` are gone, too, or only the last one is left. `costs[i]`
    is the number of prompt tokens of item `i`. Raises `ContextLengthExceeded` if the last turn
    alone is too long: the request is about it, so it is never dropped.
    """
    first = _first_after_instructions(items)
    starts = _turn_starts(items, first)
    if not starts or starts[0] != first:
        starts.insert(0, first)
    dropped, gone = first, 0
    for start, end in pairwise(starts):
        if gone >= max(excess_tokens, wanted_tokens):
            break
        gone += sum(costs[start:end])
        dropped = end
    if gone < excess_tokens:
        raise ContextLengthExceeded(
            "Your input exceeds the context window of this model even after its older turns were "
            "left out. Please shorten the last message."
        )
    return [*range(first), *range(dropped, len(items))]


def _first_after_instructions(items: Sequence[ContextItem]) -> int:
    for index, item in enumerate(items):
        if item.role not in {"system", "developer"}:
            return index
    return len(items)


def _turn_starts(items: Sequence[ContextItem], first: int) -> list[int]:
    approved = {item.call_id for item in items if item.approves}
    waiting: set[str | None] = set()
    is_asked = False
    starts = []
    for index, item in enumerate(items[first:], first):
        if item.role == "user":
            if not waiting and not is_asked:
                starts.append(index)
        elif item.kind == "mcp_approval_request":
            is_asked = item.item_id in approved
        elif item.is_output:
            waiting.discard(item.call_id)
        elif item.kind != "mcp_approval_response":
            is_asked = False  # the model goes on
            if item.is_call and item.complete:
                waiting.add(item.call_id)
    return starts
