"""Requests that differ in their text alone: what is common to them is validated once.

Most of what validating a short request costs is to look at parameters that the same client sends
again and again, or that nobody sends.
"""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, get_args

import orjson
from pydantic import ValidationError

from gateway.errors import InvalidRequest
from gateway.protocol.base import changed
from gateway.protocol.create import CreateResponse
from gateway.protocol.items import Message, Role
from gateway.protocol.support import check_support

if TYPE_CHECKING:
    from gateway.protocol.limits import InputLimits

KINDS_MAX: Final = 256
"""So many combinations of parameters are kept."""
KIND_BYTES_MAX: Final = 512
"""Longer ones are not."""

MESSAGES_MAX: Final = 64
"""So many are looked at here; more are left to who gives way between them."""

_PARAMETERS: Final = frozenset({
    "background",
    "frequency_penalty",
    "include",
    "max_output_tokens",
    "model",
    "parallel_tool_calls",
    "presence_penalty",
    "reasoning",
    "service_tier",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "top_logprobs",
    "top_p",
    "truncation",
})  # fmt: skip
"""They hold nothing that a user wrote: how long a request takes must not tell what another said."""
_TEXTS: Final = frozenset({"input", "instructions"})
_COMMON: Final = _PARAMETERS | _TEXTS
_PLAIN_KEYS: Final = {"role", "content"}
_ANY_TEXT: Final = "-"


def alike(document: dict[str, Any], limits: InputLimits) -> CreateResponse | None:
    """The valid request of a document without nulls; None for one that is to be read by itself.

    That is one with other parameters, with other input than messages of text, or with a mistake.
    """
    if not _COMMON.issuperset(document):
        return None
    texts = _texts(document, limits)
    if texts is None:
        return None
    kind = {name: value for name, value in document.items() if name not in _TEXTS}
    try:
        common = common_of(orjson.dumps(kind))
    except (InvalidRequest, ValidationError, TypeError):
        return None
    return None if common is None else changed(common, **texts)


def is_like(request: CreateResponse, other: CreateResponse) -> bool:
    """The two differ in their texts alone, and in what of them has no meaning."""
    return bool(_common_fields(request.__dict__) == _common_fields(other.__dict__))


def _texts(document: dict[str, Any], limits: InputLimits) -> dict[str, Any] | None:
    """The fields that hold them; None where there are others than `_messages` knows."""
    messages = _messages(document.get("input"), limits)
    if messages is None:
        return None
    instructions = document.get("instructions")
    if instructions is None:
        return {"input": messages}
    if not _is_text(instructions, limits):
        return None
    return {"input": messages, "instructions": instructions}


def _is_text(value: object, limits: InputLimits) -> bool:
    return isinstance(value, str) and len(value) <= limits.text_chars_max


def _messages(said: object, limits: InputLimits) -> tuple[Message, ...] | None:
    """Input that is one text, or a few messages of one text each; None for any other."""
    if isinstance(said, str):
        return (_message("user", said),) if said and _is_text(said, limits) else None
    if not (isinstance(said, list) and 0 < len(said) <= min(limits.items_max, MESSAGES_MAX)):
        return None
    messages = []
    for item in said:
        if not (isinstance(item, dict) and item.keys() == _PLAIN_KEYS):
            return None
        role, text = item["role"], item["content"]
        if not (isinstance(role, str) and role in _EXAMPLES and _is_text(text, limits)):
            return None
        messages.append(_message(role, text))
    return tuple(messages)


def _message(role: str, text: str) -> Message:
    example = _EXAMPLES[role]
    return changed(example, content=(changed(example.content[0], text=text),))


@lru_cache(KINDS_MAX)
def common_of(kind: bytes) -> CreateResponse | None:
    """The request with these parameters (`CreateResponse.kind`); None for too many.

    Raises `ValidationError` and `InvalidRequest`, and what is wrong is not kept.
    """
    if len(kind) > KIND_BYTES_MAX:
        return None
    request = CreateResponse.model_validate(orjson.loads(kind) | {"input": _ANY_TEXT})
    check_support(request)
    request.__dict__["kind"] = kind  # as `cached_property` does it: no field of the request
    return request


def _example(role: str) -> Message:
    said: Any = [{"role": role, "content": _ANY_TEXT}]
    (message,) = CreateResponse(model=_ANY_TEXT, input=said).input
    assert isinstance(message, Message)
    return message


_EXAMPLES: Final = {role: _example(role) for role in get_args(Role)}
_common_fields: Final = itemgetter(
    *(name for name in CreateResponse.model_fields if name not in {*_TEXTS, "ignored"})
)
