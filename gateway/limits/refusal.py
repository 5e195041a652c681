"""Errors for refused requests, in OpenAI's words.

Agents read the delay out of the message ("Please try again in 6.3s"), so the words stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from gateway.errors import RateLimited
from gateway.limits.headers import duration
from gateway.limits.rules import DAY_S, MINUTE_S

if TYPE_CHECKING:
    from datetime import datetime

    from gateway.limits.headers import Headers
    from gateway.limits.rules import Budget, Limit, Terms, What

RETRY_AFTER_MAX_S: Final = 60.0
"""openai-python does not retry at all after a `Retry-After` of more than two minutes."""
QUOTA: Final = "insufficient_quota"

_NAMES: Final[dict[What, tuple[str, str]]] = {
    "requests": ("requests", "R"),
    "tokens": ("tokens", "T"),
    "input_tokens": ("input tokens", "IT"),
    "output_tokens": ("output tokens", "OT"),
}
_AT_ONCE: Final[dict[What, str]] = {
    "responses": "concurrent responses",
    "websockets": "WebSocket connections",
    "background_queued": "background responses that wait",
}
_MORE: Final = "Ask the administrator of your organization for a higher limit."
_WINDOWS: Final = {MINUTE_S: ("min", "PM"), DAY_S: ("day", "PD")}


class ReachedLimit(NamedTuple):
    limit: Limit
    terms: Terms
    model: str


def rate_limited(
    where: ReachedLimit, *, used: int, cost: int, wait_s: float, headers: Headers
) -> RateLimited:
    name, abbreviation = _limit_name(where.limit)
    return RateLimited(
        f"Rate limit reached{_subject(where)} {_place(where)} on {name} ({abbreviation}): Limit "
        f"{where.limit.value}, Used {used}, Requested {cost}. Please try again in "
        f"{duration(wait_s)}.",
        code="rate_limit_exceeded",
        kind=_kind(where.limit),
        retry_after_s=min(wait_s, RETRY_AFTER_MAX_S),
        headers=headers,
    )


def too_large(where: ReachedLimit, *, cost: int, headers: Headers) -> RateLimited:
    name, abbreviation = _limit_name(where.limit)
    kind = _kind(where.limit)
    mend = {"requests": _MORE, "tokens": "Lower 'max_output_tokens' or the input."}[kind]
    return RateLimited(
        f"Request too large{_subject(where)} {_place(where)} on {name} ({abbreviation}): Limit "
        f"{where.limit.value}, Requested {cost}. {mend}",
        code="rate_limit_exceeded",
        kind=kind,
        is_final=True,
        headers=headers,
    )


def too_many(where: ReachedLimit, *, used: int, wait_s: float) -> RateLimited:
    """Return the error for a full concurrency limit. A limit of 0 admits nothing, ever."""
    limit = where.limit
    mend = f"Please try again in {duration(wait_s)}." if limit.value else _MORE
    return RateLimited(
        f"Rate limit reached{_subject(where)} {_place(where)} on {_AT_ONCE[limit.what]}: Limit "
        f"{limit.value}, Used {used}, Requested 1. {mend}",
        code="rate_limit_exceeded",
        retry_after_s=wait_s,
        is_final=not limit.value,
    )


def over_budget(
    budget: Budget, terms: Terms, *, is_spent: bool, resets_at: datetime | None
) -> RateLimited:
    owner = _owner(budget.scope, budget.scope_id, terms)
    unit = "spend limit" if budget.unit == "usd" else "token budget"
    period = {"day": "daily ", "month": "monthly ", "none": ""}[budget.interval]
    ends = (
        "It does not reset by itself."
        if resets_at is None
        else f"It resets at {resets_at:%Y-%m-%dT%H:%M:%SZ}."
    )
    state = (
        "is used up."
        if is_spent
        else "would be exceeded by this request. Lower 'max_output_tokens' or the input."
    )
    return RateLimited(
        "You exceeded your current quota, please check your plan and billing details: the "
        f"{period}{unit} {owner} {state} {ends}",
        code=QUOTA,
        kind=QUOTA,
        is_final=True,
    )


def out_of_storage(where: ReachedLimit, *, used: int, requested: int) -> RateLimited:
    limit = where.limit
    owner = _owner(limit.scope, limit.scope_id, where.terms)
    return RateLimited(
        "You exceeded your current quota, please check your plan and billing details: the stored "
        f"bytes {owner} are used up: Limit {limit.value}, Used {used}, Requested {requested}. "
        "Delete stored responses, conversations or files, or send the request with 'store': false. "
        "What was deleted makes room at the next measurement.",
        code=QUOTA,
        kind=QUOTA,
        is_final=True,
    )


def _subject(where: ReachedLimit) -> str:
    return f" for {where.model}" if where.model else ""


def _place(where: ReachedLimit) -> str:
    return _owner(where.limit.scope, where.limit.scope_id, where.terms).replace("of ", "in ", 1)


def _kind(limit: Limit) -> Literal["requests", "tokens"]:
    return "requests" if limit.what == "requests" else "tokens"


def _owner(scope: str, scope_id: object, terms: Terms) -> str:
    if scope == "project":
        return f"of project {terms.project or scope_id}"
    if scope in {"tenant", "organization"}:
        return f"of organization {terms.organization or scope_id}"
    return "of this API key"


def _limit_name(limit: Limit) -> tuple[str, str]:
    name, letter = _NAMES[limit.what]
    window, per = _WINDOWS[limit.window_s]
    return f"{name} per {window}", letter + per
