"""Parameters of a request's generation: its tier, its sampling, and its reasoning budget."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from gateway.generation import Sampling

if TYPE_CHECKING:
    from gateway.protocol.responses.create_request import CreateResponse
    from gateway.protocol.responses.response_object import ServiceTier
    from gateway.tenancy import TenantPolicy

PRIORITIES: Final[dict[ServiceTier, int]] = {"flex": -1, "default": 0, "priority": 1}
"""The `TokenRequest.priority` of each tier."""

_FASTER: Final = frozenset({"priority", "scale", "fast", "ultrafast"})
"""Names of what is better than the default; here it is all one tier."""


def service_tier(request: CreateResponse, policy: TenantPolicy) -> ServiceTier:
    """Return the tier of the request, no better than its tenant and project may have."""
    asked: str | None = request.service_tier
    if asked is None or asked == "auto":
        asked = policy.tier_default
    if asked == "flex" and policy.may_wait:
        return "flex"
    is_faster = asked in _FASTER and policy.service_tier_max == "priority"
    return "priority" if is_faster else "default"


def reasoning_budget(
    request: CreateResponse,
    policy: TenantPolicy,
    *,
    max_tokens: int,
    answer_share: float,
    framing_tokens: int,
) -> int | None:
    """Return how many tokens the model may think; None: no limit.

    Of `max_tokens`, the whole output, the share `answer_share` is reserved for the answer, and
    `framing_tokens` for the transition from reasoning to answer.
    """
    budget = request.reasoning.max_tokens or policy.reasoning_budget_tokens
    if not budget:
        return None
    left = max_tokens - framing_tokens
    return max(1, min(budget, left - math.ceil(answer_share * left)))


def sampling_of(request: CreateResponse, *, room: int) -> Sampling:
    """Return the explicit parameters; at most `room` tokens fit behind the prompt."""
    return Sampling(
        max_tokens=min(request.max_output_tokens or room, room),
        temperature=request.temperature,
        top_p=request.top_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        seed=request.seed,
        top_k=request.top_k,
        min_p=request.min_p,
        logprobs=request.top_logprobs if request.wants_logprobs else None,
    )
