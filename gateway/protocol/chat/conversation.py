"""Messages of a chat → items of a context.

| message | items |
|---|---|
| developer, system, user | a message |
| assistant | reasoning that it is given back, a message, its calls |
| tool | the output of the call that it names |
| function (deprecated) | the output of the last `function_call` of that name |

What an assistant says beside calls is a preamble (phase `commentary`): as an answer it would end
the chain of thought that led to the calls. An assistant's message that says nothing adds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.errors import InvalidRequest
from gateway.protocol.chat.parts import respelled_parts
from gateway.protocol.refusals import missing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.protocol.chat.messages import ChatCall, ChatMessage
    from gateway.protocol.chat.places import Places

    Json = dict[str, Any]


def items_of(messages: Sequence[ChatMessage], places: Places) -> list[Json]:
    """The items that these messages mean; `places` learns where each came from.

    Raises `InvalidRequest` for a message without its content, a part that its role has not, a call
    without its output and an output without its call.
    """
    chat = _Chat(places)
    for index, message in enumerate(messages):
        chat.take(message, f"messages[{index}]")
    chat.check_answered()
    return chat.items


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A call without an output so far. `name` is for calls that have no id of their own."""

    path: str
    kind: str
    name: str | None = None


class _Chat:
    """The messages so far, as items."""

    def __init__(self, places: Places) -> None:
        self.items: list[Json] = []
        self._places = places
        self._waiting: dict[str, _Waiting] = {}

    def take(self, message: ChatMessage, path: str) -> None:
        """Append what the next message means."""
        match message.role:
            case "assistant":
                self._hear(message, path)
            case "tool":
                self._take_output(message, path)
            case "function":
                self._take_return(message, path)
            case _:
                _check_content(message, path)
                self._add(self._message(message, path), path)

    def check_answered(self) -> None:
        """Every call must have its output."""
        for call_id, waiting in self._waiting.items():
            raise _unanswered(call_id, waiting)

    def _hear(self, message: ChatMessage, path: str) -> None:
        if message.thought is not None:
            name, text = message.thought
            self._add(_reasoning(text), path, {".content[0].text": f".{name}"})
        spoken = self._message(message, path)
        if message.refusal is not None:
            at = f"{self._next}.content[{len(spoken['content'])}]"
            self._places.add(f"{at}.refusal", f"{path}.refusal")
            spoken["content"].append({"type": "refusal", "refusal": message.refusal})
        if any(part.get("text") or part.get("refusal") for part in spoken["content"]):
            if message.tool_calls or message.function_call:
                spoken["phase"] = "commentary"
            self._add(spoken, path)
        for index, call in enumerate(message.tool_calls):
            self._call(call, f"{path}.tool_calls[{index}]")
        if message.function_call is not None:
            self._call_by_name(message, path)

    def _call(self, call: ChatCall, path: str) -> None:
        self._wait(call.id, _Waiting(path, call.type))
        if call.type == "function":
            if call.function is None:
                raise missing(f"{path}.function")
            item = {"type": "function_call", **call.function.model_dump()}
        else:
            if call.custom is None:
                raise missing(f"{path}.custom")
            item = {"type": "custom_tool_call", **call.custom.model_dump()}
        names = {f".{name}": f".{call.type}.{name}" for name in ("name", "arguments", "input")}
        self._add({**item, "call_id": call.id}, path, {**names, ".call_id": ".id"})

    def _call_by_name(self, message: ChatMessage, path: str) -> None:
        assert message.function_call is not None
        call_id = f"function_call_{len(self.items)}"
        self._wait(call_id, _Waiting(path, "function", message.function_call.name))
        call = {"type": "function_call", "call_id": call_id, **message.function_call.model_dump()}
        self._add(call, f"{path}.function_call")

    def _wait(self, call_id: str, waiting: _Waiting) -> None:
        if call_id in self._waiting:
            raise _unanswered(call_id, self._waiting[call_id])
        self._waiting[call_id] = waiting

    def _take_output(self, message: ChatMessage, path: str) -> None:
        if message.tool_call_id is None:
            raise missing(f"{path}.tool_call_id")
        answered = self._waiting.pop(message.tool_call_id, None)
        if answered is None:
            raise InvalidRequest(
                "Invalid parameter: messages with role 'tool' must be a response to a preceding "
                f"message with 'tool_calls'. No call has the id '{message.tool_call_id}'.",
                param=f"{path}.role",
            )
        self._output(message, path, message.tool_call_id, answered.kind)

    def _take_return(self, message: ChatMessage, path: str) -> None:
        if message.name is None:
            raise missing(f"{path}.name")
        calls = [key for key, call in self._waiting.items() if call.name == message.name]
        if not calls:
            raise InvalidRequest(
                "Invalid parameter: messages with role 'function' must be a response to a "
                f"preceding message with a 'function_call' of '{message.name}'.",
                param=f"{path}.role",
            )
        del self._waiting[calls[-1]]
        self._output(message, path, calls[-1], "function")

    def _output(self, message: ChatMessage, path: str, call_id: str, kind: str) -> None:
        _check_content(message, path)
        item_type = "custom_tool_call_output" if kind == "custom" else "function_call_output"
        output: str | list[Json] | None = message.text
        if output is None:
            output = respelled_parts(message, path, self._places, f"{self._next}.output")
        item = {"type": item_type, "call_id": call_id, "output": output}
        self._add(item, path, {".output": ".content", ".call_id": ".tool_call_id"})

    def _message(self, message: ChatMessage, path: str) -> Json:
        content = respelled_parts(message, path, self._places, f"{self._next}.content")
        return {"type": "message", "role": message.role, "content": content}

    @property
    def _next(self) -> str:
        """The path of the item that is added next."""
        return f"input[{len(self.items)}]"

    def _add(self, item: Json, path: str, below: dict[str, str] | None = None) -> None:
        self._places.add(self._next, path)
        for name, original in (below or {}).items():
            self._places.add(f"{self._next}{name}", f"{path}{original}")
        self.items.append(item)


def _reasoning(text: str) -> Json:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "summary": [], "content": content}


def _check_content(message: ChatMessage, path: str) -> None:
    if message.text is None and message.content is None:
        raise missing(f"{path}.content")


def _unanswered(call_id: str, waiting: _Waiting) -> InvalidRequest:
    if waiting.name is not None:
        return InvalidRequest(
            "An assistant message with 'function_call' must be followed by a message with role "
            f"'function' and the name '{waiting.name}'.",
            param=f"{waiting.path}.function_call",
        )
    return InvalidRequest(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to "
        "each 'tool_call_id'. The following tool_call_ids did not have response messages: "
        f"{call_id}",
        param=waiting.path,
    )
