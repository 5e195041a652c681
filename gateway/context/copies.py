"""Items that a client sends although the context has them: what it was given, sent back.

An item is known by its id, if this gateway made that: clients give any ids to their own items, one
id to several of them, too. Clients drop ids as well. A call is known by its `call_id`, then, its
output by that of the call, and an answer to an MCP approval request by the id of the request.

A copy has not all members of its item: clients drop some, and add empty ones. What it has must be
the same, as far as a model is shown it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from gateway import ids
from gateway.errors import InvalidRequest
from gateway.protocol.context_item import CALL_KINDS, OUTPUT_KINDS, ContextItem
from gateway.protocol.items import (
    ApplyPatchCallOutput,
    CustomToolCallOutput,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    McpApprovalResponse,
    McpListTools,
    Message,
    OutputText,
    Reasoning,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gateway.protocol.items import ContentPart, InputItem, Item

_NO_COPIES: Final = frozenset({"item_reference", "compaction", "compaction_trigger"})
_UNSHOWN: Final = {"id", "status", "environment", "encrypted_content"}
"""Members of which the model is shown nothing."""
_MEDIA: Final = {"image_url", "file_id", "file_url", "file_data", "filename"}


class Repeated(NamedTuple):
    """Items that new ones may be copies of: those with these `ids`, and with `calls` any calls and
    outputs.
    """

    ids: frozenset[str]
    calls: bool


def may_repeat(new: Iterable[InputItem]) -> Repeated:
    """Return which history items the `new` items may be copies of: their JSON is compared.

    An output without calls beside it answers a call that waits for it; beside calls it may be a
    copy, too.
    """
    own: set[str] = set()
    calls = False
    for item in new:
        calls = calls or item.type in CALL_KINDS or item.type == "item_reference"
        if item.id is not None and item.type not in _NO_COPIES and ids.is_item_id(item.id):
            own.add(item.id)
    return Repeated(frozenset(own), calls)


class KnownItems:
    """The items of a context, by what tells that another one is a copy of them."""

    def __init__(self, before: Mapping[str, ContextItem | None]) -> None:
        # Items `before` the new ones, by id; None for one of which only the id is known.
        self._by_id = dict(before)
        self._before = before
        self._by_call: dict[tuple[str, str], ContextItem] | None = None
        self._awaited: set[str | None] = set()
        """The `call_id` of new calls whose outputs have not come."""

    def __contains__(self, item_id: str | None) -> bool:
        return item_id in self._by_id

    def add(self, item: ContextItem) -> None:
        """Note an item, copies of which may follow with its id."""
        self._by_id[item.item_id] = item
        if item.is_call:
            self._awaited.add(item.call_id)
        elif item.is_output:
            self._awaited.discard(item.call_id)

    def find(self, item: InputItem) -> ContextItem | None:
        """Return the item that `item` is a copy of; None for a new one."""
        if item.type in _NO_COPIES:
            return None
        is_output = item.type in OUTPUT_KINDS
        if item.id is not None and ids.is_item_id(item.id):
            found = self._by_id.get(item.id)
            # Of a call that was deleted, and is sent again, the output comes again, too.
            if found is not None and not (is_output and found.call_id in self._awaited):
                return found
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


def _role_in_call(item: ContextItem) -> str | None:
    if item.is_call:
        return "call"
    if item.is_output:
        return "output"
    return "answer" if item.kind == "mcp_approval_response" else None


def check_copy(place: str, known: ContextItem, copy: InputItem) -> None:
    """Refuse a copy that differs from its original. Raises `InvalidRequest`.

    `place` is the copy's parameter path.
    """
    if known.json or known.parsed is not None:
        changed = _changed_member(known.item(), copy)
        if changed is None:
            return
        why = f"the context has it already, and its '{changed}' is another there"
    else:
        why = "the context has it already"
    member = "approval_request_id" if known.kind == "mcp_approval_response" else "call_id"
    is_named = copy.id == known.item_id
    which = f"id '{known.item_id}'" if is_named else f"{member} '{known.call_id}'"
    anew = f"its own '{member}' and no 'id'" if known.call_id else "no 'id'"
    raise InvalidRequest(
        f"Duplicate item found with {which}: {why}. Leave it out of your input. Sent as a new item "
        f"it needs {anew}.",
        code="invalid_value",
        param=place,
    )


def _changed_member(known: Item, copy: InputItem) -> str | None:
    if known.type != copy.type:
        return "type"
    said, again = _shown(known), _shown(copy)
    return next((name for name, value in said.items() if not _agrees(value, again.get(name))), None)


def _shown(item: InputItem) -> dict[str, Any]:
    match item:
        case Message():
            return {"role": item.role, "phase": item.phase, "content": _in_runs(item.content)}
        case Reasoning():
            said = "".join(part.text for part in item.content or ())
            summary = "\n".join(part.text for part in item.summary)
            return {"content": said or None, "summary": summary or None}
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
        if runs and isinstance(runs[-1], str):
            separator = "\n" if isinstance(part, InputText) else ""
            runs[-1] += separator + text
        else:
            runs.append(text)
    return runs


def _agrees(known: object, copy: object) -> bool:
    pairs = [(known, copy)]
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
