"""Requests to the chat endpoints, and what their answers share with the Response object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.fakes.chat_streams import as_assembled, assembled_chat, chunks_of
from tests.vllm.asking import DEFAULTS

if TYPE_CHECKING:
    import httpx2

Json = dict[str, Any]

KEPT_AS = "x-gateway-response-id"
USAGE: Json = {"stream": True, "stream_options": {"include_usage": True}}
_SPELLED = {"function": "arguments", "custom": "input"}
_DETAILS = (("prompt", "input", "cached_tokens"), ("completion", "output", "reasoning_tokens"))


@dataclass(frozen=True)
class Chat:
    """`shown` is a chat completion as `as_assembled` has it; or `error` says why there is none."""

    shown: Json | None
    error: Json | None
    response_id: str

    @property
    def message(self) -> Json:
        """What the model said; fails where it failed."""
        assert self.shown is not None, self.error
        message: Json = self.shown["message"]
        return message


def as_chat(fields: Json) -> Json:
    """The same request, as chats spell it; of tools only functions and custom ones."""
    spelled: Json = {}
    for name, value in fields.items():
        match name:
            case "input":
                items = [{"role": "user", "content": value}] if isinstance(value, str) else value
                spelled["messages"] = items
            case "max_output_tokens":
                spelled["max_completion_tokens"] = value
            case "tools":
                spelled["tools"] = [_tool(tool) for tool in value]
            case "tool_choice":
                spelled["tool_choice"] = _choice(value)
            case "text":
                spelled["response_format"] = _format(value["format"])
            case _:
                spelled[name] = value
    return spelled


def is_chat(fields: Json) -> bool:
    """Chats know all tools of this request."""
    return all(tool["type"] in _SPELLED for tool in fields.get("tools", ()))


async def chat(client: httpx2.AsyncClient, *, stream: bool = False, **fields: Any) -> Chat:
    """The answer to a request that is spelled as one of the Responses API."""
    body = {**as_chat({**DEFAULTS, **fields}), **(USAGE if stream else {})}
    answer = await client.post("/v1/chat/completions", json=body)
    response_id = answer.headers.get(KEPT_AS, "")
    if not stream:
        if answer.status_code != 200:
            return Chat(None, answer.json()["error"], response_id)
        ChatCompletion.model_validate(answer.json(), strict=True)
        return Chat(as_assembled(answer.json()), None, response_id)
    assert answer.status_code == 200, answer.text
    *chunks, last = chunks_of(answer.text)
    if "error" in last:
        return Chat(None, last["error"], response_id)
    for chunk in (*chunks, last):
        if not _has_custom_call(chunk):
            ChatCompletionChunk.model_validate(chunk, strict=True)
    return Chat(assembled_chat([*chunks, last]), None, response_id)


def check_same(shown: Json, response: Json) -> None:
    """Fails unless a chat completion says what the Response object says."""
    output, message = response["output"], shown["message"]
    formatted = response["text"]["format"]["type"] != "text"
    said: dict[str, list[str]] = {"content": [], "refusal": [], "reasoning_content": []}
    for item in output:
        for part in item.get("content", ()):
            aside = formatted and item.get("phase") == "commentary"
            kind = "content" if item["type"] == "message" and not aside else "reasoning_content"
            kind = "refusal" if part["type"] == "refusal" else kind
            said[kind].append(part.get("text", part.get("refusal")))
    for kind, texts in said.items():
        assert (message.get(kind) or "") == "\n\n".join(texts), kind
    calls = [item for item in output if item["type"].endswith("_call")]
    assert message.get("tool_calls", []) == [_call(item) for item in calls]
    cut = response["status"] == "incomplete"
    assert shown["finish_reason"] == ("length" if cut else "tool_calls" if calls else "stop")
    check_usage(shown["usage"], response["usage"])


def check_usage(shown: Json, usage: Json) -> None:
    """Fails unless the counts are the same, of the details those that `usage` has."""
    assert shown["prompt_tokens"] == usage["input_tokens"]
    assert shown["completion_tokens"] == usage["output_tokens"]
    assert shown["total_tokens"] == usage["total_tokens"]
    for ours, theirs, name in _DETAILS:
        count = shown[f"{ours}_tokens_details"][name]
        assert usage[f"{theirs}_tokens_details"].get(name, count) == count


def _has_custom_call(chunk: Json) -> bool:
    """openai's model of a chunk knows calls of functions alone, its model of a body all."""
    calls = [call for one in chunk["choices"] for call in one["delta"].get("tool_calls") or ()]
    return any(call.get("type") == "custom" for call in calls)


def _call(item: Json) -> Json:
    kind = "function" if item["type"] == "function_call" else "custom"
    text = _SPELLED[kind]
    return {"id": item["call_id"], "type": kind, kind: {"name": item["name"], text: item[text]}}


def _tool(tool: Json) -> Json:
    spec = {name: value for name, value in tool.items() if name != "type"}
    asked = spec.get("format", {})
    if asked.get("type") == "grammar":
        grammar = {name: value for name, value in asked.items() if name != "type"}
        spec["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": tool["type"], tool["type"]: spec}


def _choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    kind = choice["type"]
    rest = {name: value for name, value in choice.items() if name != "type"}
    if kind == "allowed_tools":
        rest["tools"] = [_choice(tool) for tool in rest["tools"]]
    return {"type": kind, kind: rest}


def _format(asked: Json) -> Json:
    if asked["type"] != "json_schema":
        return asked
    rest = {name: value for name, value in asked.items() if name != "type"}
    return {"type": "json_schema", "json_schema": rest}
