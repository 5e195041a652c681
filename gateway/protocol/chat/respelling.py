"""From a request of another API to a checked one of the Responses API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import InvalidRequest
from gateway.protocol.responses.create import OUTPUT_TOKENS_MIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.protocol.chat.answers import Answers
    from gateway.protocol.chat.places import Places
    from gateway.protocol.responses.create import CreateResponse

    Json = dict[str, Any]

SHARED: Final = frozenset(
    {
        "frequency_penalty",
        "metadata",
        "min_p",
        "model",
        "moderation",
        "parallel_tool_calls",
        "presence_penalty",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "store",
        "stream",
        "temperature",
        "top_k",
        "top_p",
        "user",
    }
)
"""Parameters that are the same in all these APIs, but for the default of `store`."""


@dataclass(frozen=True, slots=True)
class Respelled:
    """A request as the Responses API has it, and how its client is told of what comes of it.

    `places` knows what the client calls the request's parts, `answers` what it is shown.
    """

    request: CreateResponse
    places: Places
    answers: Answers


def shared(document: Json) -> Json:
    """What is passed on as it came. These APIs keep nothing unless they are asked to."""
    return {"store": False} | {name: document[name] for name in SHARED & document.keys()}


def respelled(
    document: Json,
    places: Places,
    answers: Answers,
    *,
    check: Callable[[Json], CreateResponse],
    ignored: tuple[str, ...],
) -> Respelled:
    """The request of a document in the words of the Responses API, as `check` (see
    `requests.checked`) reads it.

    These APIs know no least number of output tokens, so theirs is checked as if it were enough.
    Raises `InvalidRequest` in the words of the client.
    """
    bound = document.get("max_output_tokens")
    if bound is not None:
        document = {**document, "max_output_tokens": max(bound, OUTPUT_TOKENS_MIN)}
    try:
        request = check(document)
    except InvalidRequest as error:
        raise places.restated(error) from None
    request = request.model_copy(update={"ignored": ignored, "max_output_tokens": bound})
    return Respelled(request, places, answers)
