"""Requests that differ in little but their texts: what is common to them is validated once.

Most of what validating a request costs is to look at parameters that the same client sends again
and again, above all its tools, or that nobody sends.
"""

from __future__ import annotations

import re
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import orjson
from pydantic import BeforeValidator, TypeAdapter, ValidationError

from gateway.errors import InvalidRequest
from gateway.keeping import Kept
from gateway.protocol.base import changed
from gateway.protocol.bounds import check_bounds, check_counts, check_items
from gateway.protocol.callables import named
from gateway.protocol.create import (
    PARAMETERS,
    PROMPT_CACHE_KEY_CHARS_MAX,
    RESPONSE_ID_CHARS_MAX,
    SAFETY_IDENTIFIER_CHARS_MAX,
    CreateResponse,
    Kind,
    input_items,
)
from gateway.protocol.fields import ITEM_ID_CHARS_MAX, VeryMany
from gateway.protocol.items import AnyInputItem, InputItem, Message, Role
from gateway.protocol.json_body import check_shape
from gateway.protocol.parameters import (
    METADATA_KEY_CHARS_MAX,
    METADATA_PAIRS_MAX,
    METADATA_VALUE_CHARS_MAX,
)
from gateway.protocol.support import check_input, check_support

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.protocol.limits import InputLimits

KINDS_BYTES_MAX: Final = 2 << 20
"""All kinds that are kept, each with its weight: what is made of them, here and for their frames
(`services.frames`), takes up to ten times as much memory."""
KIND_BYTES_MIN: Final = 8 << 10
"""What a kind weighs beside its JSON: that much, and for each tool and each container in it."""
TOOL_BYTES: Final = 400
CONTAINER_BYTES: Final = 30
KIND_BYTES_MAX: Final = 256 << 10
"""A kind whose JSON is longer is read by itself: it would drive out too many others."""
COMMON_BYTES_MAX: Final = 512
"""A kind without anything that a user wrote is kept for everybody, unless it is longer."""

MESSAGES_MAX: Final = 64
"""So many are looked at here; more are left to who gives way between them."""
MESSAGES_DEPTH: Final = 5
"""How deep a document is with messages of parts: of these it is known, and not looked at."""

_COMMON: Final = frozenset({
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
_NAMES: Final[Mapping[str, int | None]] = {
    "previous_response_id": RESPONSE_ID_CHARS_MAX,
    "prompt_cache_key": PROMPT_CACHE_KEY_CHARS_MAX,
    "safety_identifier": SAFETY_IDENTIFIER_CHARS_MAX,
    "user": None,
}
"""Texts that are another for each request, or each session, and how long they may be."""
OWN: Final = ("instructions", "metadata", *_NAMES)
"""What a request may have beside its input and its kind. Everything else is part of its kind."""
_OWN: Final = frozenset(OWN)
_NO_PART: Final = frozenset({"context_management", "conversation", "moderation", "prompt", "seed"})
"""What is no part of any kind: a request with one of them is read by itself."""
_KNOWN: Final = PARAMETERS - _NO_PART
_OPEN: Final = _OWN | {"input"}
_INPUT: Final[TypeAdapter[tuple[InputItem, ...]]] = TypeAdapter(
    Annotated[VeryMany[AnyInputItem], BeforeValidator(input_items)]
)
_MESSAGE_KEYS: Final = frozenset({"type", "id", "role", "content"})
_PART_KEYS: Final = {"type", "text"}
_ITEM_ID: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{ITEM_ID_CHARS_MAX}}}")
_ANY_TEXT: Final = "-"


def alike(
    document: dict[str, Any], limits: InputLimits, *, strict: bool = False, scope: bytes = b""
) -> CreateResponse | None:
    """The valid request of a document without nulls; None for one that is to be read by itself.

    That is one with a mistake, or with parameters that no kind has. What a user wrote is kept for
    the requests of the same `scope`, and not at all without one.
    """
    if not _KNOWN.issuperset(document) or limits.json_depth_max < MESSAGES_DEPTH:
        return None
    try:
        kind = _kind_of(document, limits, strict=strict, scope=scope)
        own = None if kind is None else _own(document, limits)
        if kind is None or own is None:
            return None
        if "input" in own:
            return _of_kind(kind, own)
        own["input"] = _items(document, limits)
        request = _of_kind(kind, own)
        check_input(request, strict=strict, reject_media=limits.rejects_media)
    except (InvalidRequest, ValidationError, TypeError):
        return None
    return request


def is_like(request: CreateResponse, other: CreateResponse) -> bool:
    """The two are of one kind, and nothing but what a kind leaves open was changed in them."""
    return bool(_common_fields(request.__dict__) == _common_fields(other.__dict__))


def _kind_of(
    document: dict[str, Any], limits: InputLimits, *, strict: bool, scope: bytes
) -> Kind | None:
    """None for what is not kept. Raises what `_new_kind` does, and `TypeError`."""
    parameters = {name: value for name, value in document.items() if name not in _OPEN}
    spelled = orjson.dumps(parameters)
    if _COMMON.issuperset(parameters) and len(spelled) <= COMMON_BYTES_MAX:
        scope = b""
    elif not scope or len(spelled) > KIND_BYTES_MAX:
        return None
    key = scope, spelled, strict
    kind = _kinds.get(key)
    # All requests of a process are read within the same limits, which often are one object.
    if kind is None or (kind.limits is not limits and kind.limits != limits):
        kind = _new_kind(spelled, limits, strict=strict)
        _kinds.put(key, kind, size=kind.weight_bytes)
    return kind


def _new_kind(spelled: bytes, limits: InputLimits, *, strict: bool) -> Kind:
    """Raises `ValidationError` and `InvalidRequest`, and what is wrong is not kept."""
    document = orjson.loads(spelled)
    check_shape(document, limits)
    check_counts(document, limits)
    common = CreateResponse.model_validate(document | {"input": _ANY_TEXT})
    check_bounds(common, limits)
    check_support(common, strict=strict, reject_media=limits.rejects_media)
    return Kind(common, limits, len(spelled), _weight_bytes(common, spelled))


def _of_kind(kind: Kind, own: dict[str, Any]) -> CreateResponse:
    """The request that knows its kind: the kind's own does not, or only a collection of garbage
    would find the two once they are not kept any more.
    """
    request = changed(kind.common, **own)
    request.__dict__["kind"] = kind  # as `cached_property` does it: no field of the request
    return request


def _weight_bytes(common: CreateResponse, spelled: bytes) -> int:
    tools = len(common.dropped_tools) + sum(1 for _ in named(common.tools))
    containers = spelled.count(b"{") + spelled.count(b"[")
    return len(spelled) + KIND_BYTES_MIN + TOOL_BYTES * tools + CONTAINER_BYTES * containers


def _own(document: dict[str, Any], limits: InputLimits) -> dict[str, Any] | None:
    """The fields that no kind has, without the input if it is more than messages of text; None
    where there is a mistake in them, or no input.
    """
    own: dict[str, Any] = {}
    messages = _messages(document.get("input"), limits)
    if messages is not None:
        own["input"] = messages
    elif "input" not in document:
        return None
    for name in _OWN.intersection(document):
        value = own[name] = document[name]
        if not (_is_metadata(value) if name == "metadata" else _is_name(name, value, limits)):
            return None
    return own


def _is_name(name: str, value: object, limits: InputLimits) -> bool:
    chars_max = _NAMES.get(name, limits.text_chars_max)
    return isinstance(value, str) and (chars_max is None or len(value) <= chars_max)


def _is_metadata(value: object) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= METADATA_PAIRS_MAX
        and all(len(key) <= METADATA_KEY_CHARS_MAX for key in value)
        and all(
            isinstance(text, str) and len(text) <= METADATA_VALUE_CHARS_MAX
            for text in value.values()
        )
    )


def _is_text(value: object, limits: InputLimits) -> bool:
    return isinstance(value, str) and len(value) <= limits.text_chars_max


def _items(document: dict[str, Any], limits: InputLimits) -> tuple[InputItem, ...]:
    """Input of any kind. Raises `ValidationError`, `InvalidRequest`."""
    only_input = {"input": document["input"]}
    check_shape(only_input, limits)
    check_counts(only_input, limits)
    items = _INPUT.validate_python(document["input"])
    check_items(items, limits)
    return items


def _messages(said: object, limits: InputLimits) -> tuple[Message, ...] | None:
    """Input that is one text, or a few messages of texts; None for any other."""
    if isinstance(said, str):
        return (_message("user", said),) if said and _is_text(said, limits) else None
    if not (isinstance(said, list) and 0 < len(said) <= min(limits.items_max, MESSAGES_MAX)):
        return None
    messages = []
    for item in said:
        message = _plain_message(item, limits)
        if message is None:
            return None
        messages.append(message)
    return tuple(messages)


def _plain_message(item: object, limits: InputLimits) -> Message | None:
    """A message that is texts, and says no more of itself than its role and its id."""
    if not (isinstance(item, dict) and _MESSAGE_KEYS.issuperset(item)):
        return None
    role, content = item.get("role"), item.get("content")
    example = _EXAMPLES.get((role, "type" in item)) if isinstance(role, str) else None
    if example is None or item.get("type", "message") != "message":
        return None
    (part,) = example.content
    texts = [content] if isinstance(content, str) else _texts(content, part.type)
    if texts is None or not all(_is_text(text, limits) for text in texts):
        return None
    said = tuple(changed(part, text=text) for text in texts)
    if "id" not in item:
        return changed(example, content=said)
    item_id = item["id"]
    if not (isinstance(item_id, str) and _ITEM_ID.fullmatch(item_id)):
        return None
    return changed(example, content=said, id=item_id)


def _texts(content: object, kind: str) -> list[object] | None:
    """Those of parts that are texts of this kind, and nothing else; None for others."""
    if not isinstance(content, list):
        return None
    is_plain = all(
        isinstance(part, dict) and part.keys() == _PART_KEYS and part["type"] == kind
        for part in content
    )
    return [part["text"] for part in content] if is_plain else None


def _message(role: str, text: str) -> Message:
    example = _EXAMPLES[role, False]
    return changed(example, content=(changed(example.content[0], text=text),))


def _example(role: str, *, is_typed: bool) -> Message:
    said: dict[str, Any] = {"role": role, "content": _ANY_TEXT}
    if is_typed:
        said["type"] = "message"
    return Message.model_validate(said)


_EXAMPLES: Final = {
    (role, is_typed): _example(role, is_typed=is_typed)
    for role in get_args(Role)
    for is_typed in (False, True)
}
_common_fields: Final = itemgetter(
    *(name for name in CreateResponse.model_fields if name not in {*_OPEN, "ignored"})
)
_kinds: Final[Kept[tuple[bytes, bytes, bool], Kind]] = Kept(size_max=KINDS_BYTES_MAX)
