"""`POST /v1/responses`: how a request is read.

One mistake is reported at a time, in the order measured on OpenAI's validator: a missing model,
another missing parameter, unknown names, then types, bounds and values field by field, and last
what this release refuses (`protocol.support`). Parameters of another API are told at once: whoever
sends `messages` misses no `input`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from gateway.protocol.bounds import check_bounds, check_counts
from gateway.protocol.create import PARAMETERS, CreateResponse
from gateway.protocol.documented import CREATE_PARAMETERS
from gateway.protocol.elsewhere import IN_RESPONSES, check_own
from gateway.protocol.json_body import parse_object
from gateway.protocol.nulls import without_nulls
from gateway.protocol.refusals import missing, unknown
from gateway.protocol.support import check_support
from gateway.protocol.validation import refusal_of

if TYPE_CHECKING:
    from gateway.protocol.limits import InputLimits

__all__ = ["CreateResponse", "create_of", "parse_create"]

IGNORED_NAMES_MAX: Final = 32

_CONTEXTS: Final = frozenset({"input", "previous_response_id", "conversation", "prompt"})
"""A request has at least one of them."""
_HEADER_SAFE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def parse_create(body: bytes, *, limits: InputLimits, strict: bool = False) -> CreateResponse:
    """The request that `body` spells.

    Unknown top-level keys are listed in `ignored`, tools that are not served in `dropped_tools`;
    with `strict` they are refused, and so are images and files. Raises `InvalidRequest` with
    OpenAI's message, code and param, and nothing else for any bytes.
    """
    return create_of(parse_object(body, limits), limits=limits, strict=strict)


def create_of(
    fields: dict[str, Any], *, limits: InputLimits, strict: bool = False
) -> CreateResponse:
    """The same for a body that is read already (`json_body.parse_object`)."""
    document = without_nulls(fields)
    if "model" not in document:
        raise missing("model")
    check_own(document, IN_RESPONSES)
    if _CONTEXTS.isdisjoint(document):
        raise missing("input")
    if document.keys() <= PARAMETERS:
        return checked(document, limits=limits, strict=strict)
    ignored = tuple(name for name in document if name not in PARAMETERS)
    if strict:
        _check_known(ignored)
    known = {name: value for name, value in document.items() if name in PARAMETERS}
    request = checked(known, limits=limits, strict=strict)
    return request.model_copy(update={"ignored": presentable(ignored)})


def checked(document: dict[str, Any], *, limits: InputLimits, strict: bool) -> CreateResponse:
    """The request of a document that has known names only. Raises `InvalidRequest`."""
    check_counts(document, limits)
    try:
        request = CreateResponse.model_validate(document)
    except ValidationError as error:
        raise refusal_of(error) from None
    check_bounds(request, limits)
    check_support(request, strict=strict, reject_media=limits.rejects_media)
    return request


def presentable(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names that may stand in a response header; others are not from any client's author."""
    return tuple(name for name in names if _HEADER_SAFE.fullmatch(name))[:IGNORED_NAMES_MAX]


def _check_known(ignored: tuple[str, ...]) -> None:
    """`image` and `access_programs` are documented, so they are no mistake; they have no effect."""
    for name in ignored:
        if name not in CREATE_PARAMETERS:
            raise unknown(name)
