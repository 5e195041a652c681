"""The body of a request to a server's chat endpoint, from a prompt that is a conversation. No I/O.

Hosted APIs refuse what they do not know, so nothing is sent that was not asked for, or that differs
from nothing in OpenAI's API.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.errors import ContextOverflow, InvalidRequest
from gateway.text_ids import unpacked_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gateway.errors import UpstreamRejected
    from gateway.generation import TokenRequest
    from gateway.upstreams.backend import ServedModel
    from gateway.upstreams.engines.engine import InferenceEngine

_MESSAGE: Final = b'{"role":'
_ASSISTANT: Final = b'{"role":"assistant"'
_RESULT: Final = b'{"role":"tool"'
FORMAT: Final = "response_format"
_OF_A_FORMAT: Final = re.compile(
    r"response_?format|json_?schema|json_?object|grammar|guided|structured", re.IGNORECASE
)
"""In words of a refusal: it is the format of the answer that a server does not take."""
_OF_LOGPROBS: Final = re.compile("log_?prob", re.IGNORECASE)


def chat_body(request: TokenRequest, served: ServedModel, engine: InferenceEngine) -> list[bytes]:
    """Return the JSON of the request, in pieces."""
    lines = unpacked_lines(request.prompt_ids)
    options: dict[str, Any] = {}
    for line in lines:
        if not line.startswith(_MESSAGE):
            options |= orjson.loads(line)
    bound = dict(request.constraint.chat or {}) if request.constraint is not None else {}
    allowed = bound.pop("allowed", None)
    if allowed is not None:
        options["tools"] = _select_tools(options.get("tools", ()), allowed)
    body = {
        "model": served.name,
        "stream": True,
        "stream_options": {"include_usage": True},
        **_sampling(request),
        **_logprobs(request.sampling.logprobs),
        **options,
        **bound,
        **engine.chat_fields(request),
    }
    messages = b",".join(_answering(line for line in lines if line.startswith(_MESSAGE)))
    return [b'{"messages":[', messages, b"],", orjson.dumps(body)[1:]]


def _logprobs(alternatives: int | None) -> dict[str, Any]:
    if alternatives is None:
        return {}
    return {"logprobs": True, **({"top_logprobs": alternatives} if alternatives else {})}


def binds_answer(request: TokenRequest) -> bool:
    # True if the server must hold the model to a format; all servers that take formats support
    # this.
    return request.constraint is not None and FORMAT in (request.constraint.chat or ())


def refused_parameter(request: TokenRequest, error: UpstreamRejected) -> InvalidRequest | None:
    """Return the error for the caller if a server refused a parameter that it lacks, else None."""
    if isinstance(error, ContextOverflow):
        return None
    if request.sampling.logprobs is not None and _OF_LOGPROBS.search(error.reason):
        return InvalidRequest(
            "The server of this model tells no log probabilities, or not so many. Leave "
            "'message.output_text.logprobs' out of include, and top_logprobs out of the request.",
            code="unsupported_parameter",
            param="include",
        )
    if binds_answer(request) and _OF_A_FORMAT.search(error.reason):
        return InvalidRequest(
            "The server of this model does not take this format of an answer. Leave 'text.format' "
            "out, or use another schema, or another model.",
            code="unsupported_parameter",
            param="text.format",
        )
    return None


def _select_tools(tools: Iterable[dict[str, Any]], names: Iterable[str]) -> list[dict[str, Any]]:
    wanted = set(names)
    return [tool for tool in tools if tool["function"]["name"] in wanted]


def _sampling(request: TokenRequest) -> dict[str, Any]:
    sampling = request.sampling
    fields: dict[str, Any] = {"temperature": sampling.temperature}
    if request.chat is not None and request.chat.limits_output:
        fields["max_tokens"] = sampling.max_tokens
    if sampling.top_p != 1.0:  # which TGI refuses
        fields["top_p"] = sampling.top_p
    if sampling.presence_penalty:
        fields["presence_penalty"] = sampling.presence_penalty
    if sampling.frequency_penalty:
        fields["frequency_penalty"] = sampling.frequency_penalty
    rare = {"seed": sampling.seed, "top_k": sampling.top_k, "min_p": sampling.min_p}
    return fields | {name: value for name, value in rare.items() if value is not None}


def _answering(lines: Iterable[bytes]) -> Iterator[bytes]:
    # A tool result that names no call answers the last assistant message before it.
    assistant = b""
    for line in lines:
        if line.startswith(_ASSISTANT):
            assistant = line
        elif line.startswith(_RESULT) and assistant:
            message = orjson.loads(line)
            if "tool_call_id" not in message:
                calls = orjson.loads(assistant).get("tool_calls") or [{"id": ""}]
                yield orjson.dumps({"role": "tool", "tool_call_id": calls[-1]["id"], **message})
                continue
        yield line.rstrip()
