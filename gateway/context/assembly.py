"""Assembly of a context: history, then the request's own items, every tool call with its output.

A call that was cut off is stored, but shown to nobody until an output answers it. Items of a
conversation can be deleted by hand: what is left of a pair in the history is left out of the
prompt, or the conversation would be refused for ever.

New items may be copies of items in the context (`ContextIndex`). Clients drop ids, and give one id
to several items, so only ids that this gateway made count, else those of calls. A copy may lack
members, and have empty ones; the rest must be equal as far as a model is shown it.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway import ids
from gateway.context.shortening import compaction_item, summary_message
from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.json_output import lasting_json
from gateway.protocol.call_items import approval_tool, author_of, call_of, hosted_call_id
from gateway.protocol.context_item import CALL_KINDS, OUTPUT_KINDS, ContextItem
from gateway.protocol.items import (
    ApplyPatchCallOutput,
    CodeInterpreterCall,
    Compaction,
    CustomToolCallOutput,
    FunctionCallOutput,
    HostedItem,
    InputFile,
    InputImage,
    InputText,
    ItemReference,
    McpApprovalResponse,
    McpListTools,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    implied_members,
)
from gateway.protocol.request_errors import unknown_approval
from gateway.sealing import SealBroken, Unsealed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from typing_extensions import TypeIs

    from gateway.protocol.items import (
        AnyHostedItem,
        CallItem,
        ContentPart,
        InputItem,
        Item,
        OutputItem,
        PlainItem,
    )
    from gateway.sealing import Sealer


_NO_COPIES: Final = frozenset({"item_reference", "compaction", "compaction_trigger"})
_UNSHOWN: Final = {"id", "status", "environment", "encrypted_content"}
_MEDIA: Final = {"image_url", "file_id", "file_url", "file_data", "filename"}


class UnreadOriginal(InvalidRequest):
    """An item may be a copy of one that was read without its JSON."""


def may_repeat(new: Iterable[InputItem]) -> frozenset[str]:
    """Return the ids of history items that the `new` items may be copies of: JSON is compared.

    Calls and outputs may be copies by their `call_id`, too, which is rare (`UnreadOriginal`).
    """
    return frozenset(
        item.id
        for item in new
        if item.id is not None and item.type not in _NO_COPIES and ids.is_item_id(item.id)
    )


class ContextIndex:
    def __init__(self, before: Mapping[str, ContextItem | None]) -> None:
        # Items `before` the new ones, by id; None for one of which only the id is known.
        self._by_id = dict(before)
        self._before = before
        self._by_call: dict[tuple[str, str], ContextItem] | None = None
        self._originals: dict[str, tuple[str, dict[str, Any]]] = {}
        """By id, the type and the members of items that were compared."""
        self._awaited: set[str | None] = set()
        """The `call_id` of new calls without output."""

    def __contains__(self, item_id: str | None) -> bool:
        return item_id in self._by_id

    def add(self, item: ContextItem) -> None:
        self._by_id[item.item_id] = item
        if item.is_call:
            self._awaited.add(item.call_id)
        elif item.is_output:
            self._awaited.discard(item.call_id)

    def find(self, item: InputItem) -> ContextItem | None:
        """Return the item that `item` is a copy of."""
        if item.type in _NO_COPIES:
            return None
        is_output = item.type in OUTPUT_KINDS
        if item.id is not None and ids.is_item_id(item.id):
            original = self._by_id.get(item.id)
            # If a deleted call is sent again, its output is new, too.
            if original is not None and not (is_output and original.call_id in self._awaited):
                return original
        if is_output or item.type in CALL_KINDS:
            call_id = getattr(item, "call_id", None)
            if call_id is None or not ids.is_call_id(call_id):
                return None
            return self._of_call(call_id, is_output=is_output)
        if isinstance(item, McpApprovalResponse):
            return self._calls().get(("answer", item.approval_request_id))
        return None

    def _of_call(self, call_id: str, *, is_output: bool) -> ContextItem | None:
        # A call that was cut off may be sent anew.
        call = self._calls().get(("call", call_id))
        if not is_output:
            return call if call is not None and call.complete else None
        return None if call is None else self._calls().get(("output", call_id))

    def _calls(self) -> Mapping[tuple[str, str], ContextItem]:
        if self._by_call is None:
            self._by_call = {
                (role, item.call_id): item
                for item in self._before.values()
                if item is not None
                and item.call_id is not None
                and (role := _role_in_call(item)) is not None
            }
        return self._by_call

    def check_copy(self, param: str, original: ContextItem, copy: InputItem) -> None:
        """Raise `InvalidRequest` for a copy that differs."""
        if not original.json and original.parsed is None:
            raise UnreadOriginal("The context has it already: leave it out.", param=param)
        changed = self._changed_member(original, copy)
        if changed is None:
            return
        member = "approval_request_id" if original.kind == "mcp_approval_response" else "call_id"
        is_named = copy.id == original.item_id
        which = f"id '{original.item_id}'" if is_named else f"{member} '{original.call_id}'"
        anew = f"its own '{member}' and no 'id'" if original.call_id else "no 'id'"
        raise InvalidRequest(
            f"Duplicate item found with {which}: the context has it already, and its '{changed}' "
            f"is another there. Leave it out of your input. Sent as a new item it needs {anew}.",
            code="invalid_value",
            param=param,
        )

    def _changed_member(self, original: ContextItem, copy: InputItem) -> str | None:
        # The members of a long original are read once, however many copies there are.
        if original.item_id not in self._originals:
            item = original.item()
            self._originals[original.item_id] = item.type, _shown(item)
        kind, members = self._originals[original.item_id]
        if kind != copy.type:
            return "type"
        copied = _shown(copy)
        return next(
            (name for name, value in members.items() if not _agrees(value, copied.get(name))), None
        )


def _role_in_call(item: ContextItem) -> str | None:
    if item.is_call:
        return "call"
    if item.is_output:
        return "output"
    return "answer" if item.kind == "mcp_approval_response" else None


def _shown(item: InputItem) -> dict[str, Any]:
    match item:
        case Message():
            return {"role": item.role, "phase": item.phase, "content": _in_runs(item.content)}
        case Reasoning():
            content = "".join(part.text for part in item.content or ())
            summary = "\n".join(part.text for part in item.summary)
            return {"content": content or None, "summary": summary or None}
        case FunctionCallOutput() | CustomToolCallOutput():
            output = item.output
            parts = (InputText(text=output),) if isinstance(output, str) else output
            return {"call_id": item.call_id, "output": _in_runs(parts)}
        case ApplyPatchCallOutput():
            return item.model_dump(include={"call_id", "status", "output"})
        case McpListTools():
            return {}
        case _:
            shown = item.model_dump(exclude=_UNSHOWN)
            if isinstance(arguments := shown.get("arguments"), str):
                shown["arguments"] = _respelled(arguments)
            return shown


def _respelled(arguments: str) -> str | bytes:
    try:
        return orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return arguments


def _in_runs(parts: Sequence[ContentPart]) -> list[object]:
    runs: list[Any] = []
    for part in parts:
        if isinstance(part, InputImage | InputFile):
            runs.append(part.model_dump(include=_MEDIA))
            continue
        text = part.text if isinstance(part, InputText | OutputText) else part.refusal
        if not text:
            continue
        if runs and isinstance(runs[-1], list):
            runs[-1] += ("\n", text) if isinstance(part, InputText) else (text,)
        else:
            runs.append([text])
    return ["".join(run) if isinstance(run, list) else run for run in runs]


def _agrees(original: object, copy: object) -> bool:
    pairs = [(original, copy)]
    while pairs:
        one, other = pairs.pop()
        if one is None or other is None:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            pairs += [(value, other.get(key)) for key, value in one.items()]
        elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
            if len(one) != len(other):
                return False
            pairs += zip(one, other, strict=True)
        elif one != other:
            return False
    return True


_ID_PREFIXES: Final = {
    "message": ids.MESSAGE_PREFIX,
    "reasoning": ids.REASONING_PREFIX,
    "function_call": ids.FUNCTION_CALL_PREFIX,
    "function_call_output": ids.FUNCTION_CALL_OUTPUT_PREFIX,
    "custom_tool_call": ids.CUSTOM_CALL_PREFIX,
    "custom_tool_call_output": ids.CUSTOM_CALL_OUTPUT_PREFIX,
    "local_shell_call": ids.LOCAL_SHELL_CALL_PREFIX,
    "local_shell_call_output": ids.LOCAL_SHELL_CALL_OUTPUT_PREFIX,
    "shell_call": ids.SHELL_CALL_PREFIX,
    "shell_call_output": ids.SHELL_CALL_OUTPUT_PREFIX,
    "apply_patch_call": ids.APPLY_PATCH_CALL_PREFIX,
    "apply_patch_call_output": ids.APPLY_PATCH_CALL_OUTPUT_PREFIX,
    "tool_search_call": ids.TOOL_SEARCH_CALL_PREFIX,
    "tool_search_output": ids.TOOL_SEARCH_OUTPUT_PREFIX,
    "compaction": ids.COMPACTION_PREFIX,
    **ids.HOSTED_PREFIXES,
}
_WITHOUT_RESULTS: Final = frozenset({"web_search_call", "code_interpreter_call"})
"""Hosted calls whose items lack the result that the model read."""


@dataclass(frozen=True, slots=True)
class Context:
    """Items in prompt order: the first `inherited` from the previous response, then the request's
    own, which are stored and listed as its input.
    """

    items: tuple[ContextItem, ...]
    inherited: int


def referenced_ids(items: Iterable[InputItem]) -> list[str]:
    """Return the ids of items that only the store can fill: references, reasoning without content,
    and hosted calls after the last answer whose results are in no item.
    """
    wanted: list[str] = []
    without_results: list[str] = []
    for item in items:
        if isinstance(item, ItemReference) or _is_hollow(item):
            wanted += [item.id] if item.id else []
        elif item.id and _leaves_result_out(item.type, item.id):
            without_results.append(item.id)
        elif isinstance(item, Message) and item.role == "assistant" and item.phase != "commentary":
            without_results.clear()  # the model is not shown them again
    return wanted + without_results


def assemble(
    history: Sequence[ContextItem],
    new: Sequence[InputItem],
    *,
    stored: Mapping[str, ContextItem],
    unsealed: Mapping[int, Unsealed],
    response: UUID,
    before: Mapping[str, ContextItem | None] | None = None,
) -> Context:
    """Return the context of one response.

    `before` maps ids to the items that new ones may be copies of (None: the history's), `stored`
    answers `referenced_ids(new)`, `unsealed` is of `unseal`. Raises `ResourceNotFound` for an id
    that `stored` lacks and `InvalidRequest` for unpaired calls and outputs, an answer to a missing
    approval request and a changed copy, `UnreadOriginal` for one that cannot be compared.
    """
    preceding = {item.item_id: item for item in history} if before is None else before
    added = take_in(new, stored=stored, unsealed=unsealed, source=response, before=preceding)
    _check_answers(history, added)
    history = without_abandoned(history)
    earlier, now = with_call_ids(without_cut_calls(history, added), added)
    kept = without_orphans(earlier, now)
    _check_pairs([*kept, *now])
    return Context((*kept, *now), inherited=len(kept))


def opening(messages: Iterable[Message], response: UUID) -> Context:
    """Return the context of messages without ids and history, at less cost."""
    items = []
    for ordinal, message in enumerate(messages):
        item_id = ids.input_item_id(ids.MESSAGE_PREFIX, response, ordinal)
        items.append(_message_item(message, item_id))
    return Context(tuple(items), inherited=0)


def take_in(
    new: Sequence[InputItem],
    *,
    stored: Mapping[str, ContextItem],
    unsealed: Mapping[int, Unsealed],
    source: UUID,
    before: Mapping[str, ContextItem | None],
    param: str = "input",
) -> list[ContextItem]:
    """Return new items as they are stored and listed; arguments are as in `assemble`.

    `source` makes the ids of items without one.
    """
    answered = _answered_new_calls(new, stored)
    intake = _Intake(stored, unsealed, source, ContextIndex(before), answered, param)
    taken_in = (intake.take(*each) for each in enumerate(new))
    return [item for item in taken_in if item is not None]


def _leaves_result_out(kind: str, item_id: str) -> bool:
    # Only of a call that this gateway made: ids that clients make are those of other items, too.
    return kind in _WITHOUT_RESULTS and ids.is_item_id(item_id)


def _is_hollow(item: InputItem) -> bool:
    return isinstance(item, Reasoning) and not (
        item.content or item.summary or item.encrypted_content
    )


@dataclass(frozen=True, slots=True)
class _Intake:
    """A request's own items as items of its context.

    Ids are unique within a context, because lists of it are paged by id: an item whose id is taken
    gets another. Items that are in the context already add nothing.
    """

    stored: Mapping[str, ContextItem]
    unsealed: Mapping[int, Unsealed]
    response: UUID
    index: ContextIndex
    answered: Collection[int]
    param: str

    def take(self, ordinal: int, item: InputItem) -> ContextItem | None:
        original = self.index.find(item)
        if original is not None:
            self.index.check_copy(f"{self.param}[{ordinal}]", original, item)
            return None
        match item.type:
            case "message":
                taken: ContextItem | None = _message_item(item, self._item_id(ordinal, item))
            case "item_reference":
                taken = self._look_up(ordinal, item)
            case "compaction":
                taken = self._take_compaction(ordinal, item)
            case "reasoning":
                taken = self._take_reasoning(ordinal, item)
            case "compaction_trigger":
                return None
            case _:
                taken = self._tool_item(ordinal, item)
        if taken is not None:
            self.index.add(taken)
        return taken

    def _look_up(self, ordinal: int, item: ItemReference | Reasoning) -> ContextItem | None:
        if item.id is None or item.id in self.index:
            return None
        referenced = self.stored.get(item.id)
        if referenced is not None and _is_cut_call(referenced):
            return replace(referenced, complete=True) if ordinal in self.answered else None
        if referenced is not None:
            return referenced
        raise ResourceNotFound(
            f"Item with id '{item.id}' not found. Items are not persisted when `store` is set to "
            "false. Try again with `store` set to true, or remove this item from your input.",
            param=self.param,
        )

    def _take_reasoning(self, ordinal: int, item: Reasoning) -> ContextItem | None:
        if _is_hollow(item):
            return self._look_up(ordinal, item)
        sealed = self.unsealed.get(ordinal)
        if sealed is None:
            return self._context_item(ordinal, item)
        if item.id in self.index:
            return None
        context = self._context_item(ordinal, item)
        if sealed.ids is not None:
            return context.with_ids(array("I", sealed.ids))
        content = (ReasoningText(text=sealed.text),)
        return replace(context, parsed=item.model_copy(update={"content": content}))

    def _take_compaction(self, ordinal: int, item: Compaction) -> ContextItem | None:
        if item.id in self.index:
            return None
        item_id = self._item_id(ordinal, item)
        return compaction_item(item_id, item.encrypted_content, self.unsealed[ordinal].text)

    def _item_id(self, ordinal: int, item: Item) -> str:
        if item.id is not None and item.id not in self.index:
            return item.id
        return ids.input_item_id(_ID_PREFIXES[item.type], self.response, ordinal)

    def _tool_item(self, ordinal: int, item: CallItem | OutputItem | AnyHostedItem) -> ContextItem:
        if _is_call(item):
            # A call that its provider marked as incomplete stays so unless it is answered. A search
            # by a server has no `call_id`, and the client owes it no output either.
            is_owed = item.status != "incomplete" and item.call_id is not None
            complete = is_owed or ordinal in self.answered
            name = call_of(item).name
            call_id = item.call_id or self._item_id(ordinal, item)
            return self._context_item(ordinal, item, call_id, name, complete=complete)
        if _is_output(item):
            return self._context_item(ordinal, item, item.call_id, author_of(item))
        context = self._context_item(ordinal, item, hosted_call_id(item), approval_tool(item))
        leaves_out = _leaves_result_out(item.type, context.item_id)
        stored = self.stored.get(context.item_id) if leaves_out else None
        is_same = stored is not None and _says_the_same(stored, item)
        return context.with_ids(stored.ids) if stored and stored.ids and is_same else context

    def _context_item(
        self,
        ordinal: int,
        item: PlainItem,
        call_id: str | None = None,
        name: str | None = None,
        *,
        complete: bool = True,
    ) -> ContextItem:
        item_id = self._item_id(ordinal, item)
        status = "completed" if complete else "incomplete"
        if item.type == "apply_patch_call_output":
            status = item.status
        return ContextItem(
            kind=item.type,
            item_id=item_id,
            json=_body(item, item_id, status),
            role=item.role if item.type == "additional_tools" else None,
            call_id=call_id,
            name=name,
            complete=complete,
            parsed=item,
        )


def _says_the_same(stored: ContextItem, item: AnyHostedItem) -> bool:
    if stored.kind != item.type or not isinstance(item, CodeInterpreterCall):
        return stored.kind == item.type
    index = stored.item()
    return isinstance(index, CodeInterpreterCall) and index.code == item.code


def _is_call(item: InputItem) -> TypeIs[CallItem]:
    return item.type in CALL_KINDS


def _is_output(item: InputItem) -> TypeIs[OutputItem]:
    return item.type in OUTPUT_KINDS


def _message_item(message: Message, item_id: str) -> ContextItem:
    match message:
        case Message(status=None, phase=None, content=(InputText(text=text),)):
            # The result of `_body` for a single text, the most frequent form, at less cost.
            content = [{"type": "input_text", "text": text}]
            named = {} if message.id is None else {"id": item_id}
            body = {"type": "message", **named, "role": message.role, "content": content}
            json = lasting_json(body | {"id": item_id, "status": "completed"})
        case _:
            json = _body(message, item_id, "completed")
    return ContextItem(
        kind="message",
        item_id=item_id,
        json=json,
        role=message.role,
        phase=message.phase,
        parsed=message,
    )


def _body(item: PlainItem, item_id: str, status: str | None) -> bytes:
    if isinstance(item, HostedItem):
        body = item.model_dump(exclude_unset=True) | {"id": item_id, **implied_members(item)}
    else:
        body = item.model_dump(exclude_none=True) | {"id": item_id, "status": status}
    return lasting_json(body)


def _answered_new_calls(items: Iterable[InputItem], stored: Mapping[str, ContextItem]) -> set[int]:
    waiting: dict[str | None, int] = {}
    answered: set[int] = set()
    for index, item in enumerate(items):
        if _is_call(item):
            waiting[item.call_id] = index
        elif item.type == "item_reference":
            referenced = stored.get(item.id)
            if referenced is not None and referenced.is_call and referenced.call_id:
                waiting[referenced.call_id] = index
        elif _is_output(item) and item.call_id in waiting:
            answered.add(waiting.pop(item.call_id))
    return answered


def _check_pairs(items: Sequence[ContextItem]) -> None:
    # A `call_id` may be reused once its call is answered: some providers number calls anew in every
    # turn.
    waiting: dict[str | None, str] = {}
    answered: set[str | None] = set()
    for item in items:
        call_id = item.call_id
        if item.kind == "message" or _is_cut_call(item):
            continue
        if item.kind == "compaction":
            # An output behind a compaction could not be shown with its call in front of it.
            _check_answered(waiting)
        if item.is_call:
            if call_id in waiting:
                raise InvalidRequest(
                    f"The call_id {call_id} is used twice: a {_words(item.kind)} has it while the "
                    f"{_words(waiting[call_id])} before it still has no output. Give every call a "
                    "call_id of its own, or send the output of the first before the second.",
                    param="input",
                )
            waiting[call_id] = item.kind
        elif item.is_output and not item.stands_alone:
            if not _fits(item.kind, waiting.pop(call_id, None)):
                raise _missing_call(item.kind, call_id, is_answered=call_id in answered)
            answered.add(call_id)
    _check_answered(waiting)


def _check_answers(history: Sequence[ContextItem], added: Sequence[ContextItem]) -> None:
    # An answer whose request is missing is refused: the user's decision must not be lost.
    answers = [item for item in added if item.kind == "mcp_approval_response"]
    if not answers:
        return
    requests: set[str | None] = set()
    for item in chain(history, added):
        if item.kind == "mcp_approval_request":
            requests.add(item.item_id)
        elif item.kind == "mcp_call":
            requests.add(item.call_id)
    for answer in answers:
        if answer.call_id not in requests:
            raise unknown_approval(answer.call_id)


def _missing_call(kind: str, call_id: str | None, *, is_answered: bool) -> InvalidRequest:
    if call_id is None:
        message = (
            f"No tool call found for {_words(kind)} without call_id. Send the 'call_id' of the "
            "call, or the 'name' of the function."
        )
    else:
        message = f"No tool call found for {_words(kind)} with call_id {call_id}."
        if is_answered:
            message += " The call of that id has an output already. Send one output for each call."
    return InvalidRequest(message, param="input")


def _check_answered(waiting: Mapping[str | None, str]) -> None:
    for call_id, kind in waiting.items():
        raise InvalidRequest(f"No tool output found for {_words(kind)} {call_id}.", param="input")


def _words(kind: str) -> str:
    return kind.replace("_", " ")


_SUFFIXES: Final = re.compile(r"(_call)?(_output)?\Z")
_ANY_OUTPUT: Final = "function_call_output"
"""Answers every kind of call: Open Responses has function calls only, and Codex answers its local
shell with it (`LocalShellCall` in its source)."""


def _fits(output: str, call: str | None) -> bool:
    if call is None:
        return False
    return output == _ANY_OUTPUT or _SUFFIXES.sub("", output) == _SUFFIXES.sub("", call)


def with_call_ids(
    history: Sequence[ContextItem], added: Sequence[ContextItem]
) -> tuple[Sequence[ContextItem], Sequence[ContextItem]]:
    """Return the items, outputs without a `call_id` assigned to the last call that they may answer.

    Without such a call the model sees the output as a message of the tool that it names.
    """
    if not any(map(_names_no_call, chain(history, added))):
        return history, added
    items = [*history, *added]
    unanswered = _OpenCalls(_find_answered(items))
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
    """Indexes of calls that no output names by `call_id`."""

    def __init__(self, answered: Collection[int]) -> None:
        self._answered = set(answered)
        self.forget()

    def forget(self) -> None:
        # From here on none of the calls so far can be answered.
        self._all: list[int] = []
        self._by_name: defaultdict[str | None, list[int]] = defaultdict(list)

    def add(self, call: int, name: str | None) -> None:
        self._all.append(call)
        self._by_name[name].append(call)

    def take(self, name: str | None) -> int | None:
        calls = self._all if name is None else self._by_name[name]
        while calls:
            call = calls.pop()
            if call not in self._answered:
                self._answered.add(call)
                return call
        return None


def _answering(output: ContextItem, call_id: str | None) -> ContextItem:
    # Outputs of a server's searches are not listed, so they need no `call_id` in their JSON.
    is_listed = output.json and output.kind != "tool_search_output"
    body = {**orjson.loads(output.json), "call_id": call_id} if is_listed else None
    return replace(
        output,
        json=lasting_json(body) if body else output.json,
        call_id=call_id,
        parsed=output.parsed and output.parsed.model_copy(update={"call_id": call_id}),
    )


def without_abandoned(history: Sequence[ContextItem]) -> Sequence[ContextItem]:
    """Return the history without items that broke off and were generated again.

    That happens within one response, when a server is lost in a text turn (`FinishReason.LOST`).
    """
    if all(item.complete for item in history):
        return history
    pairs = zip(history, [*history[1:], None], strict=True)
    return [item for item, after in pairs if not _is_generated_again(item, after)]


def _is_generated_again(item: ContextItem, after: ContextItem | None) -> bool:
    if item.complete or item.is_call or after is None:
        return False
    source = ids.source_of_output(item.item_id)
    return bool(source) and source == ids.source_of_output(after.item_id)


def without_cut_calls(
    history: Sequence[ContextItem], added: Sequence[ContextItem]
) -> list[ContextItem]:
    """Return the history without calls that were cut off and have no output here or in `added`."""
    if not any(_is_cut_call(item) for item in history):
        return list(history)
    answered = _find_answered((*history, *added))
    return [
        replace(item, complete=True) if index in answered else item
        for index, item in enumerate(history)
        if index in answered or not _is_cut_call(item)
    ]


def _is_cut_call(item: ContextItem) -> bool:
    return item.is_call and not item.complete


def _find_answered(items: Iterable[ContextItem]) -> set[int]:
    # Among open calls with the same `call_id`, a complete one takes the output, else the last.
    waiting: dict[str | None, tuple[int, ContextItem]] = {}
    answered: set[int] = set()
    for index, item in enumerate(items):
        before = waiting.get(item.call_id)
        if item.is_call and not (_is_cut_call(item) and before and before[1].complete):
            waiting[item.call_id] = index, item
        elif item.is_output and before and _fits(item.kind, before[1].kind):
            answered.add(before[0])
            del waiting[item.call_id]
    return answered


def without_orphans(
    history: Sequence[ContextItem], added: Sequence[ContextItem]
) -> list[ContextItem]:
    """Return the history without outputs that lack a call and calls that stay unanswered.

    A call stays unanswered if `added` does not answer it although the history goes on, with a
    message that is not the assistant's or another call of the same `call_id`, or hides it by a
    compaction.
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
            if call is None or not _fits(item.kind, history[call].kind):
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


# Opening of sealed content that clients send back.

COMPACTION: Final = "compaction"
"""Summaries are sealed for this name in place of a model's: any model may continue."""


def unseal(
    items: Iterable[InputItem],
    sealer: Sealer,
    *,
    tenant: UUID,
    models: Sequence[str],
    param: str = "input",
) -> dict[int, Unsealed]:
    """Return the content of `encrypted_content` of reasoning and compaction items, by index.

    Raises `InvalidRequest` for content sealed elsewhere or for another tenant, and for reasoning
    sealed for none of the `models` (at least one).
    """
    contents = {}
    for index, item in enumerate(items):
        try:
            if isinstance(item, Reasoning) and item.encrypted_content:
                contents[index] = _open_seal(item.encrypted_content, sealer, tenant, models)
            elif isinstance(item, Compaction):
                contents[index] = _summary(item, sealer, tenant)
        except SealBroken as broken:
            raise _unverified_content(f"{param}[{index}]", item.id, broken) from broken
    return contents


def _open_seal(seal: str, sealer: Sealer, tenant: UUID, models: Sequence[str]) -> Unsealed:
    *others, last = models
    for model in others:
        with suppress(SealBroken):
            return Unsealed.of(sealer.open(seal, tenant, model))
    return Unsealed.of(sealer.open(seal, tenant, last))


def with_last_opened(
    history: Sequence[ContextItem], sealer: Sealer, *, tenant: UUID
) -> Sequence[ContextItem]:
    for index in reversed(range(len(history))):
        if history[index].kind == "compaction":
            shown = opened(history[index], sealer, tenant=tenant)
            return [*history[:index], shown, *history[index + 1 :]]
    return history


def opened(item: ContextItem, sealer: Sealer, *, tenant: UUID) -> ContextItem:
    """Return a stored item; a sealed compaction becomes the message that it stands for.

    Raises `InvalidRequest` for one that cannot be opened: without it the earlier context is lost.
    """
    if item.kind != "compaction" or item.ids is not None or item.parsed is not None:
        return item
    sealed = item.item()
    assert isinstance(sealed, Compaction), "it is one by its kind"
    try:
        summary = _summary(sealed, sealer, tenant)
    except SealBroken as broken:
        raise _unverified_content("input", item.item_id, broken) from broken
    return replace(item, parsed=summary_message(summary.text))


def _summary(item: Compaction, sealer: Sealer, tenant: UUID) -> Unsealed:
    summary = Unsealed.of(sealer.open(item.encrypted_content, tenant, COMPACTION))
    if summary.ids is not None:
        raise SealBroken("it is no summary")
    return summary


def _unverified_content(param: str, item_id: str | None, broken: SealBroken) -> InvalidRequest:
    # OpenAI's code and wording: clients drop the item when they see it.
    which = f"for item {item_id}" if item_id else f"of {param}"
    return InvalidRequest(
        f"The encrypted content {which} could not be verified. Reason: {broken}. Send it unchanged "
        "with a key of the same tenant and to the same model, or leave the item out.",
        code="invalid_encrypted_content",
        param=param if param == "input" else f"{param}.encrypted_content",
    )
