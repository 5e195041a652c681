"""`POST /v1/responses`, and requests with some of its parameters: how they are read.

One mistake is reported at a time, in the order measured on OpenAI's validator: a missing model,
another missing parameter, unknown names, then types, bounds and values field by field, and last
what this release refuses (`protocol.responses.support`). Parameters of another API are told at
once: whoever sends `messages` misses no `input`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from gateway.protocol.base import without_nulls
from gateway.protocol.bounds import (
    check_counts,
    check_format,
    check_items,
    check_media,
    check_text,
    check_tools,
)
from gateway.protocol.documented import (
    COMPACT_PARAMETERS,
    COUNT_PARAMETERS,
    CREATE_PARAMETERS,
    IN_RESPONSES,
    check_own,
)
from gateway.protocol.json_body import parse_object
from gateway.protocol.refusals import missing, unknown
from gateway.protocol.responses.create import PARAMETERS, CreateResponse
from gateway.protocol.responses.support import check_support
from gateway.protocol.validation import refusal_of

if TYPE_CHECKING:
    from gateway.protocol.limits import InputLimits

__all__ = ["CreateResponse", "create_of", "parse_create"]

IGNORED_NAMES_MAX: Final = 32

_CONTEXTS: Final = frozenset({"input", "previous_response_id", "conversation", "prompt"})
"""A request has at least one of them."""
_HEADER_SAFE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Parameters:
    """Names of parameters: `served` have the effect that they have on a response, `documented` are
    no mistake.
    """

    served: frozenset[str]
    documented: frozenset[str]

    @classmethod
    def of(cls, documented: frozenset[str]) -> Parameters:
        """Those of an API that has some of the parameters of a response."""
        return cls(documented & PARAMETERS, documented)


CREATION: Final = Parameters(PARAMETERS, CREATE_PARAMETERS)
"""`POST /v1/responses`; `image` and `access_programs` are documented, and have no effect."""
_COUNTED: Final = Parameters.of(COUNT_PARAMETERS)
# With `truncation: auto` the prompt depends on how much room the answer wants.
COUNTING: Final = replace(_COUNTED, served=_COUNTED.served | {"max_output_tokens"})
"""`POST /v1/responses/input_tokens`"""
COMPACTION: Final = Parameters.of(COMPACT_PARAMETERS)
"""`POST /v1/responses/compact`"""


def parse_create(body: bytes, *, limits: InputLimits, strict: bool = False) -> CreateResponse:
    """The request that `body` spells.

    Unknown top-level keys are listed in `ignored`, tools that are not served in `dropped_tools`;
    with `strict` they are refused, and so are images and files. Raises `InvalidRequest` with
    OpenAI's message, code and param, and nothing else for any bytes.
    """
    return create_of(parse_object(body, limits), limits=limits, strict=strict)


def parse_subset(
    body: bytes, parameters: Parameters, *, limits: InputLimits, strict: bool = False
) -> CreateResponse:
    """The same for an API that has only these `parameters`. Nothing of it is stored."""
    fields = parse_object(body, limits)
    request = create_of(fields, parameters, limits=limits, strict=strict)
    # So it is not refused while a conversation has a writer.
    return request.model_copy(update={"store": False})


def create_of(
    fields: dict[str, Any],
    parameters: Parameters = CREATION,
    *,
    limits: InputLimits,
    strict: bool = False,
) -> CreateResponse:
    """The same for a body that is read already (`json_body.parse_object`)."""
    document = without_nulls(fields)
    if "model" not in document:
        raise missing("model")
    if not document.keys().isdisjoint(IN_RESPONSES):
        check_own(document, IN_RESPONSES)
    served = parameters.served
    if not _CONTEXTS & served & document.keys():
        raise missing("input")
    if document.keys() <= served:
        return checked(document, limits=limits, strict=strict)
    ignored = tuple(name for name in document if name not in served)
    for name in ignored:
        if strict and name not in parameters.documented:
            raise unknown(name)
    known = {name: value for name, value in document.items() if name in served}
    request = checked(known, limits=limits, strict=strict)
    return request.model_copy(update={"ignored": presentable(ignored)})


def checked(document: dict[str, Any], *, limits: InputLimits, strict: bool) -> CreateResponse:
    """The request of a document that has known names only. Raises `InvalidRequest`."""
    check_counts(document, limits)
    try:
        request = CreateResponse.model_validate(document)
    except ValidationError as error:
        raise refusal_of(error) from None
    check_items(request.input, limits)
    if request.tools:
        check_tools(request.tools, limits)
    if request.text.format:
        check_format(request.text.format, limits)
    check_text("instructions", request.instructions, limits)
    check_support(request, strict=strict)
    check_media(request.input, strict=strict or limits.rejects_media)
    return request


def presentable(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names that may stand in a response header; others are not from any client's author."""
    return tuple(name for name in names if _HEADER_SAFE.fullmatch(name))[:IGNORED_NAMES_MAX]
