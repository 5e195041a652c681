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

from gateway.protocol.alike import alike
from gateway.protocol.base import changed
from gateway.protocol.bounds import check_bounds, check_counts
from gateway.protocol.create import PARAMETERS, CreateResponse
from gateway.protocol.documented import CREATE_PARAMETERS
from gateway.protocol.elsewhere import IN_RESPONSES, check_own
from gateway.protocol.json_body import check_shape, load_object
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


def parse_create(
    body: bytes, *, limits: InputLimits, strict: bool = False, scope: bytes = b""
) -> CreateResponse:
    """The request that `body` spells.

    Unknown top-level keys are listed in `ignored`, tools that are not served in `dropped_tools`;
    with `strict` they are refused, and so are images and files. Raises `InvalidRequest` with
    OpenAI's message, code and param, and nothing else for any bytes. What is kept of requests that
    are alike is kept for one `scope` (`protocol.alike`).
    """
    fields = load_object(body, limits)
    request = _like_others(fields, limits, strict=strict, scope=scope)
    if request is not None:
        return request
    check_shape(fields, limits)
    return _alone(fields, limits=limits, strict=strict)


def create_of(
    fields: dict[str, Any], *, limits: InputLimits, strict: bool = False, scope: bytes = b""
) -> CreateResponse:
    """The same for a body that is read already (`json_body.parse_object`)."""
    request = _like_others(fields, limits, strict=strict, scope=scope)
    return _alone(fields, limits=limits, strict=strict) if request is None else request


def checked(
    document: dict[str, Any], *, limits: InputLimits, strict: bool, scope: bytes = b""
) -> CreateResponse:
    """The request of a document that has known names only. Raises `InvalidRequest`."""
    request = alike(document, limits, strict=strict, scope=scope)
    return _validated(document, limits, strict=strict) if request is None else request


def _like_others(
    fields: dict[str, Any], limits: InputLimits, *, strict: bool, scope: bytes
) -> CreateResponse | None:
    """The request, if there is nothing wrong with it, and it is like others.

    Raises `InvalidRequest` where what is ignored is nested too deeply.
    """
    document = without_nulls(fields)
    if document.keys() <= PARAMETERS:
        return alike(document, limits, strict=strict, scope=scope)
    known, ignored = _divided(document)
    if not IN_RESPONSES.keys().isdisjoint(ignored):
        return None
    # What `alike` is not shown: how deep it is, is all that could be wrong with it.
    check_shape({name: document[name] for name in ignored}, limits)
    request = None if strict else alike(known, limits, scope=scope)
    return None if request is None else changed(request, ignored=presentable(ignored))


def _alone(fields: dict[str, Any], *, limits: InputLimits, strict: bool) -> CreateResponse:
    document = without_nulls(fields)
    if "model" not in document:
        raise missing("model")
    check_own(document, IN_RESPONSES)
    if _CONTEXTS.isdisjoint(document):
        raise missing("input")
    known, ignored = _divided(document)
    if strict:
        _check_known(ignored)
    request = _validated(known, limits, strict=strict)
    return changed(request, ignored=presentable(ignored)) if ignored else request


def _divided(document: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What has names that a body may use, and the names of what has others."""
    known = {name: value for name, value in document.items() if name in PARAMETERS}
    return known, tuple(name for name in document if name not in PARAMETERS)


def _validated(document: dict[str, Any], limits: InputLimits, *, strict: bool) -> CreateResponse:
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
