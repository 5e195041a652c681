"""Requests with some parameters of `POST /v1/responses`, by the same rules: count, compact."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gateway.protocol.create import PARAMETERS, CreateResponse
from gateway.protocol.documented import COMPACT_PARAMETERS, COUNT_PARAMETERS
from gateway.protocol.elsewhere import IN_RESPONSES, check_own
from gateway.protocol.json_body import parse_object
from gateway.protocol.nulls import without_nulls
from gateway.protocol.refusals import missing, unknown
from gateway.protocol.requests import checked, presentable

if TYPE_CHECKING:
    from gateway.protocol.limits import InputLimits


@dataclass(frozen=True, slots=True)
class Subset:
    """Names of parameters: `served` have the effect that they have on a response, `documented` are
    no mistake.
    """

    served: frozenset[str]
    documented: frozenset[str]


def _subset_of(documented: frozenset[str]) -> Subset:
    """Only `image` and `personality` are no parameters of a response."""
    return Subset(documented & PARAMETERS, documented)


_COUNTED = _subset_of(COUNT_PARAMETERS)
# With `truncation: auto` the prompt depends on how much room the answer wants.
COUNTING: Final = replace(_COUNTED, served=_COUNTED.served | {"max_output_tokens"})
"""`POST /v1/responses/input_tokens`"""
COMPACTION: Final = _subset_of(COMPACT_PARAMETERS)
"""`POST /v1/responses/compact`"""


def parse_subset(
    body: bytes, subset: Subset, *, limits: InputLimits, strict: bool = False
) -> CreateResponse:
    """The request that `body` spells, as one for a response.

    Names that are not served are listed in `ignored`; with `strict` those that are not documented
    are refused. Raises `InvalidRequest`, and nothing else for any bytes, in the order of
    `parse_create`.
    """
    document = without_nulls(parse_object(body, limits))
    if "model" not in document:
        raise missing("model")
    check_own(document, IN_RESPONSES)
    if not subset.served & {"input", "previous_response_id", "conversation"} & document.keys():
        raise missing("input")
    ignored = tuple(name for name in document if name not in subset.served)
    for name in ignored:
        if strict and name not in subset.documented:
            raise unknown(name)
    known = {name: value for name, value in document.items() if name in subset.served}
    request = checked(known, limits=limits, strict=strict)
    # Nothing of it is stored, so it is not refused while a conversation has a writer.
    return request.model_copy(update={"ignored": presentable(ignored), "store": False})
