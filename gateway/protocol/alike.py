"""Requests that differ in their text alone: what is common to them is validated once.

Most of what validating a short request costs is to look at parameters that the same client sends
again and again, or that nobody sends.
"""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import orjson
from pydantic import ValidationError

from gateway.errors import InvalidRequest
from gateway.protocol.base import changed
from gateway.protocol.create import CreateResponse
from gateway.protocol.items import InputText, Message
from gateway.protocol.support import check_support

if TYPE_CHECKING:
    from gateway.protocol.limits import InputLimits

KINDS_MAX: Final = 256
"""So many combinations of parameters are kept."""
KIND_BYTES_MAX: Final = 512
"""Longer ones are not."""

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
_ANY_TEXT: Final = "-"


def alike(document: dict[str, Any], limits: InputLimits) -> CreateResponse | None:
    """The valid request of a document without nulls; None for one that is to be read by itself.

    That is one with other parameters, with items for input, or with a mistake.
    """
    text, instructions = document.get("input"), document.get("instructions", "")
    if not (isinstance(text, str) and text and isinstance(instructions, str)):
        return None
    if max(len(text), len(instructions)) > limits.text_chars_max:
        return None
    kind = {name: value for name, value in document.items() if name not in _TEXTS}
    if not _PARAMETERS.issuperset(kind):
        return None
    try:
        common = common_of(orjson.dumps(kind))
    except (InvalidRequest, ValidationError, TypeError):
        return None
    if common is None:
        return None
    fields = {"instructions": instructions} if "instructions" in document else {}
    message = changed(_MESSAGE, content=(changed(_PART, text=text),))
    return changed(common, input=(message,), **fields)


def is_like(request: CreateResponse, other: CreateResponse) -> bool:
    """The two differ in their texts alone, and in what of them has no meaning."""
    return bool(_common_fields(request.__dict__) == _common_fields(other.__dict__))


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


def _message_of(text: str) -> Message:
    (message,) = CreateResponse(model=_ANY_TEXT, input=text).input  # type: ignore[arg-type]
    assert isinstance(message, Message)
    return message


def _part_of(message: Message) -> InputText:
    (part,) = message.content
    assert isinstance(part, InputText)
    return part


_MESSAGE: Final = _message_of(_ANY_TEXT)
_PART: Final = _part_of(_MESSAGE)
_common_fields: Final = itemgetter(
    *(name for name in CreateResponse.model_fields if name not in {*_TEXTS, "ignored"})
)
