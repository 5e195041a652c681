"""Turns of text, calls and their results, as packed lines of JSON: a message of the prompt each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.models.chat.callee import offered_name
from gateway.models.chat.messages import call_id_of, object_of
from gateway.models.chat.passthrough.parsing import NO_ARGUMENTS
from gateway.text_ids import ANSWER, ARGUMENTS, CALL, END, TEXT_IDS, packed_lines, text_of

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator, Sequence


_BEHIND_NAME: Final = "\0"
"""Between the name of a call and its arguments."""


def turn_line(ids: Sequence[int]) -> array[int]:
    """Return the line with the assistant's message of a finished turn; empty without content.

    Thoughts are left out, and so is a call that was cut off.
    """
    said, calls = "", list[dict[str, Any]]()
    for mark, text, is_closed in _parts(ids):
        if mark == CALL and is_closed:
            name, _, arguments = text.partition(_BEHIND_NAME)
            calls.append(_call(f"call {len(calls)}", name.strip(), arguments))
        elif mark == ANSWER:
            said = f"{said}\n\n{text}" if said else text
    if not (said or calls):
        return packed_lines(())
    return assistant_line(said, calls)


def assistant_line(said: str, calls: Sequence[dict[str, Any]]) -> array[int]:
    """Return the line with a message of the assistant."""
    message: dict[str, Any] = {"role": "assistant", "content": said}
    if calls:
        message["tool_calls"] = calls
    return packed_lines((orjson.dumps(message),))


def call_line(name: str, arguments: str) -> array[int]:
    return assistant_line("", [_call("call", name, arguments)])


def result_line(name: str, text: str) -> array[int]:
    """Return the line with the result of the call before it.

    The id of the call is filled in when the line is sent.
    """
    message = {"role": "tool", "name": offered_name(name), "content": text}
    return packed_lines((orjson.dumps(message),))


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    function = {
        "name": offered_name(name),
        "arguments": object_of(name, arguments or NO_ARGUMENTS),
    }
    return {"id": call_id_of(call_id), "type": "function", "function": function}


def _parts(ids: Sequence[int]) -> Iterator[tuple[int, str, bool]]:
    mark, text, begun = ANSWER, "", 0
    for at, one in enumerate([*ids, END]):
        if one in TEXT_IDS:
            continue
        text += text_of(ids[begun:at])
        begun = at + 1
        if one == ARGUMENTS:
            text += _BEHIND_NAME
            continue
        if text:
            yield mark, text, at < len(ids)
        mark, text = one, ""
