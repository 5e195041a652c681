from __future__ import annotations

from array import array
from collections import defaultdict, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gateway.errors import InvalidRequest
from gateway.generation import PREAMBLE
from gateway.protocol.call_items import NO_RESULT, hosted_author, part_text
from gateway.protocol.context_item import ContextItem
from gateway.protocol.items import ComputerCallOutput, McpApprovalResponse, Message, ProgramOutput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gateway.models.format import RenderOptions
    from gateway.protocol.context_item import Columns, Kind, Label
    from gateway.protocol.items import Reasoning


INSTRUCTING_ROLES = frozenset({"system", "developer"})
_STALE_KINDS: Final = frozenset({"reasoning", "web_search_call", "code_interpreter_call"})
"""Parts of a chain of thought; of hosted tools, those that the model calls while it thinks."""
_IN_ANY_CONTEXT: Final = _STALE_KINDS | {
    *("message", "mcp_call", "mcp_list_tools", "additional_tools")
}
"""Kinds that need no other items and hide none."""


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """Item to be rendered, with its index in the context (`PREAMBLE`: it is in none) and, for an
    output, the name of the called function as the model knows it.

    The answer to an MCP approval request has the tool's name, too, and so has the result of an
    approved call.
    """

    source: int
    item: ContextItem
    function: str | None = None


def leading_instructions(items: Iterable[ContextItem | Label]) -> int:
    count = 0
    for item in items:
        if item.role not in INSTRUCTING_ROLES:
            break
        count += 1
    return count


def since_compaction(items: Iterable[PlacedItem]) -> list[PlacedItem]:
    """Return the items without those that the last compaction replaces.

    Before it only messages of users and operators are left. Those without an answer come behind the
    summary, so that a question follows what it takes to answer it:

        u1, answer, call, output, answer, u2, COMPACTION, more  →  u1, COMPACTION, u2, more

    A context in which nothing is left out was shortened by the client and keeps its order.
    """
    shown = list(items)
    compacted = (i for i in reversed(range(len(shown))) if shown[i].item.kind == "compaction")
    last = next(compacted, None)
    if last is None:
        return shown
    before = shown[:last]
    done = (i + 1 for i in reversed(range(last)) if not before[i].item.outlives_compaction)
    answered = next(done, last)
    kept = [placed for placed in before[:answered] if placed.item.outlives_compaction]
    return [*kept, shown[last], *before[answered:], *shown[last + 1 :]]


def without_stale_reasoning(items: Iterable[PlacedItem]) -> list[PlacedItem]:
    """Return the items without reasoning, searches and hosted code before the last answer.

    gpt-oss was trained to see its chain of thought again only until it has answered. Only an answer
    (an assistant message of the final channel) counts, not a user message: in

        u1, R_old, answer, u2, R_new, call, output

    R_old goes and R_new stays; in `u1, R, call, output, u2` R stays. openai-harmony's own filter
    looks at how the conversation ends and would keep R_old.
    """
    kept = list(items)
    answers = (index for index in reversed(range(len(kept))) if is_answer(kept[index].item))
    last_answer = next(answers, -1)
    return [p for i, p in enumerate(kept) if i > last_answer or p.item.kind not in _STALE_KINDS]


def repeated_ids(history: Columns, *, is_answered: bool) -> array[int] | None:
    """Return the ids of a history without leading instructions and stale reasoning.

    None if calls have to be ordered, or a compaction applied. `is_answered`: an answer follows.
    """
    names, labels = history.names, history.labels
    if any(label.kind not in _IN_ANY_CONTEXT for label in labels.values()):
        return None
    leading = leading_instructions(labels[name] for name in names)
    stale: list[int] = []
    if any(label.kind in _STALE_KINDS for label in labels.values()):
        answer = len(names) - 1
        while answer >= 0 and not (is_answered or is_answer(labels[names[answer]])):
            answer -= 1
        stale = [at for at in range(answer + 1) if labels[names[at]].kind in _STALE_KINDS]
    if not (leading or stale):
        return history.ids
    starts = history.starts()
    ids, start = array("I"), starts[leading]
    for left_out in stale:
        ids += history.ids[start : starts[left_out]]
        start = starts[left_out + 1]
    ids += history.ids[start:]
    return ids


_APPROVAL_KINDS: Final = frozenset({"mcp_approval_request", "mcp_approval_response"})
_NO_ANSWER: Final = ContextItem(
    "mcp_approval_response",
    "",
    b"{}",
    parsed=McpApprovalResponse(approval_request_id="unanswered", approve=False),
)


def with_approvals(items: Iterable[PlacedItem], approved: str | None) -> list[PlacedItem]:
    """Return the items with MCP approval requests as calls, each before its result.

    A call that was made comes with the result; that of the request `approved` is made now, at the
    end, and its result will follow the prompt. Any other is answered at once:

        request, more                                →  request, NO ANSWER, more
        request, more, response                      →  request, response, more
        request, response, more (now)                →  more, request
        request, response, more, call, answer        →  more, request, call, answer
    """
    ordered = list(items)
    if not any(one.item.kind in _APPROVAL_KINDS or _is_approved(one.item) for one in ordered):
        return ordered
    approvals = _Approvals(ordered, approved)
    shown = [one for placed in ordered for one in approvals.in_place_of(placed)]
    return shown + approvals.pending


def _is_approved(item: ContextItem) -> bool:
    return item.kind == "mcp_call" and item.call_id is not None


class _Approvals:
    def __init__(self, items: Iterable[PlacedItem], approved: str | None) -> None:
        self.pending: list[PlacedItem] = []
        """Requests whose call is made now."""
        self._approved = approved
        self._requests: dict[str | None, PlacedItem] = {}
        self._answers: dict[str | None, PlacedItem] = {}
        self._made: set[str | None] = set()
        self._replaced: set[str | None] = set()
        for placed in items:
            item = placed.item
            if item.kind == "mcp_approval_request" and item.name is not None:
                self._requests[item.item_id] = placed
            elif item.kind == "mcp_approval_response":
                self._answers.setdefault(item.call_id, placed)
            elif item.kind == "mcp_call":
                self._made.add(item.call_id)

    def in_place_of(self, placed: PlacedItem) -> list[PlacedItem]:
        item = placed.item
        if self._requests.get(item.item_id) is placed:
            return self._request(placed)
        if item.kind == "mcp_approval_response":
            is_implied = item.call_id in self._requests or item.approves
            return [] if is_implied else [placed]
        if _is_approved(item):
            if item.call_id not in self._requests.keys() - self._replaced:
                # Its ids may be those of its result alone.
                return [PlacedItem(placed.source, replace(item, ids=None))]
            self._replaced.add(item.call_id)
            request = self._requests[item.call_id]
            return [request, PlacedItem(placed.source, item, request.item.name)]
        return [placed]

    def _request(self, request: PlacedItem) -> list[PlacedItem]:
        request_id = request.item.item_id
        if request_id in self._made:
            return []
        if request_id == self._approved:
            self.pending.append(request)
            return []
        answer = self._answers.get(request_id)
        source, item = (answer.source, answer.item) if answer else (PREAMBLE, _NO_ANSWER)
        return [request, PlacedItem(source, item, request.item.name)]


_HOSTED_RESULTS: Final[Mapping[Kind, ContextItem]] = {
    "program": ContextItem("program_output", "", b"{}", parsed=ProgramOutput(result=NO_RESULT)),
    "computer_call": ContextItem("computer_call_output", "", b"{}", parsed=ComputerCallOutput()),
    # The call of a request that was approved elsewhere is an item of its own.
    "mcp_approval_request": ContextItem(
        "mcp_approval_response",
        "",
        b"{}",
        parsed=McpApprovalResponse(approval_request_id="unanswered", approve=True),
    ),
}
"""Calls of tools that ran elsewhere → the result shown where theirs is missing."""
_RESULT_KINDS: Final = frozenset(result.kind for result in _HOSTED_RESULTS.values())


def with_hosted_results(items: Iterable[PlacedItem]) -> list[PlacedItem]:
    """Return the items, each call of a tool that ran elsewhere directly before its result.

    A result without a call stays where it is.
    """
    groups: list[list[PlacedItem]] = []
    waiting: defaultdict[tuple[str, str | None], deque[int]] = defaultdict(deque)
    for at, placed in enumerate(items):
        item, group = placed.item, [placed]
        if item.kind in _HOSTED_RESULTS and item.name is None:
            unknown = _HOSTED_RESULTS[item.kind]
            is_question = item.kind == "mcp_approval_request"
            waiting[unknown.kind, item.item_id if is_question else item.call_id].append(at)
            group.append(PlacedItem(PREAMBLE, unknown, hosted_author(item.kind)))
        elif item.kind in _RESULT_KINDS and waiting[item.kind, item.call_id]:
            call = waiting[item.kind, item.call_id].popleft()
            groups[call][1:] = [PlacedItem(placed.source, item, hosted_author(item.kind))]
            group = []
        groups.append(group)
    return [placed for group in groups for placed in group]


def is_answer(item: ContextItem | Label | Message) -> bool:
    return item.role == "assistant" and item.phase != "commentary"


def in_call_order(items: Iterable[PlacedItem]) -> list[PlacedItem]:
    """Return the items with each output directly behind its call, in the order of the calls.

    Harmony has no call ids: two calls at once are shown as call, output, call, output. A call that
    was cut off has no output, even where a later call has its id. A call whose output came behind a
    user's message is shown there, so that the model goes on from the output. Raises
    `InvalidRequest` for an output without a call.
    """
    groups: list[list[PlacedItem]] = []
    waiting: defaultdict[str | None, deque[int]] = defaultdict(deque)
    last_message = -1
    for at, placed in enumerate(with_hosted_results(items)):
        item, group = placed.item, [placed]
        if item.stands_alone:
            group = [PlacedItem(placed.source, item, item.name)]
        elif item.is_call and not item.complete:
            group = []
        elif item.is_call:
            waiting[item.call_id].append(at)
        elif item.is_output:
            if not waiting[item.call_id]:
                output = f"{item.kind.replace('_', ' ')} with call_id {item.call_id}"
                raise InvalidRequest(f"No tool call found for {output}.", param="input")
            call = waiting[item.call_id].popleft()
            pair = [*groups[call], PlacedItem(placed.source, item, groups[call][0].item.name)]
            groups[call], group = ([], pair) if call < last_message else (pair, [])
        elif item.kind == "message" and item.role != "assistant":
            last_message = at
        groups.append(group)
    return [placed for group in groups for placed in group]


def message_text(message: Message) -> str:
    separator = "" if message.role == "assistant" else "\n"
    return separator.join(map(part_text, message.content))


def reasoning_text(item: Reasoning) -> str:
    return "".join(part.text for part in item.content or ()) or "\n".join(
        part.text for part in item.summary
    )


def shown_items(
    items: Sequence[ContextItem], leading: int, approved: str | None = None
) -> Iterable[PlacedItem]:
    behind = items[leading:]
    if len(behind) == 1 and behind[0].kind == "message":
        return [PlacedItem(leading, behind[0])]
    placed = (PlacedItem(index, item) for index, item in enumerate(behind, leading))
    if all(item.kind == "message" for item in behind):
        return placed  # only reasoning and calls, and what is behind a summary, are ever left out
    ordered = with_approvals(placed, approved)
    return in_call_order(without_stale_reasoning(since_compaction(ordered)))


def instructions_of(items: Sequence[ContextItem]) -> list[str]:
    typed = (item.item() for item in items)
    return [message_text(item) for item in typed if isinstance(item, Message)]


_LOCATION: Final = "Where the user is, roughly, in case a web search depends on it: "


def instructions_before(options: RenderOptions, leading: Sequence[str]) -> str:
    """Return the request's instructions, its context's leading ones, then the user's location.

    The location comes from the request, so it must not rank as a fact of the system.
    """
    location = " ".join((options.builtins.location or "").split())
    where = f"{_LOCATION}{location}." if location else ""
    return "\n\n".join(text for text in (options.instructions, *leading, where) if text)
