"""`POST /v1/chat/completions`: how a request is read.

`CHAT_PARAMETERS` are all that has an effect. Hints that can have none here (`prediction`, `audio`
without its modality) and `web_search_options` are accepted, and named in the answer's headers; so
is everything that OpenAI does not know.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from gateway.errors import InvalidRequest
from gateway.protocol import documented
from gateway.protocol.base import without_nulls
from gateway.protocol.bounds import check_counts
from gateway.protocol.chat.answers import ChatAnswers
from gateway.protocol.chat.bodies import ChatForm
from gateway.protocol.chat.controls import (
    check_served,
    format_of,
    reasoning_of,
    tool_choice_of,
    tools_of,
)
from gateway.protocol.chat.conversation import items_of
from gateway.protocol.chat.parameters import ChatRequest
from gateway.protocol.chat.places import Places
from gateway.protocol.chat.respelling import SHARED, Respelled, respelled, shared
from gateway.protocol.documented import IN_CHATS, check_own
from gateway.protocol.json_body import parse_object
from gateway.protocol.refusals import missing, unknown, unsupported
from gateway.protocol.responses.create import LOGPROBS
from gateway.protocol.responses.requests import checked, presentable
from gateway.protocol.validation import refusal_of

if TYPE_CHECKING:
    from gateway.protocol.limits import InputLimits

    Json = dict[str, Any]

CHAT_PARAMETERS: Final = frozenset(ChatRequest.model_fields) | SHARED


def parse_chat(body: bytes, *, limits: InputLimits, strict: bool = False) -> Respelled:
    """The request that `body` spells, as one of the Responses API.

    Raises `InvalidRequest` with OpenAI's message, code and param, and nothing else for any bytes.
    """
    document = without_nulls(parse_object(body, limits))
    if "model" not in document:
        raise missing("model")
    check_own(document, IN_CHATS)
    if "messages" not in document:
        raise missing("messages")
    ignored = tuple(name for name in document if name not in CHAT_PARAMETERS)
    if strict:
        _check_known(ignored)
    places = Places({"input": "messages", "text.verbosity": "verbosity"})
    try:
        check_counts({"input": document["messages"]}, limits)
    except InvalidRequest as error:
        raise places.restated(error) from None
    try:
        request = ChatRequest.model_validate(document)
    except ValidationError as error:
        raise refusal_of(error) from None
    check_served(request)
    asked = {**shared(document), **_respelled_members(request, places)}
    answers = ChatAnswers(
        ChatForm(logprobs=request.logprobs, is_deprecated=bool(request.functions)),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
    )
    names = ("messages.name",) if request.has_names else ()
    return respelled(
        asked,
        places,
        answers,
        check=partial(checked, limits=limits, strict=strict),
        ignored=presentable((*ignored, *names)),
    )


def _respelled_members(request: ChatRequest, places: Places) -> Json:
    """What the Responses API has under other names, or in another shape."""
    options = request.stream_options
    text = {"format": format_of(request.response_format, places), "verbosity": request.verbosity}
    members: Json = {
        "input": items_of(request.messages, places),
        "tools": tools_of(request, places),
        "tool_choice": tool_choice_of(request, places),
        "text": without_nulls(text),
        "reasoning": reasoning_of(request, places),
        "max_output_tokens": _output_tokens(request, places),
        "include": [LOGPROBS] if request.logprobs else None,
        "top_logprobs": request.top_logprobs,
        "parallel_tool_calls": False if request.functions else None,
        "stream_options": options and {"include_obfuscation": options.include_obfuscation},
    }
    return without_nulls(members)


def _output_tokens(request: ChatRequest, places: Places) -> int | None:
    name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    places.add("max_output_tokens", name)
    return request.max_completion_tokens or request.max_tokens


def _check_known(ignored: tuple[str, ...]) -> None:
    """Hosted search is a tool that is not served; other hints that OpenAI knows are no mistake."""
    for name in ignored:
        if name not in documented.CHAT_PARAMETERS:
            raise unknown(name)
        if name == "web_search_options":
            raise unsupported(name, "Leave it out, or offer a tool that your client executes.")
