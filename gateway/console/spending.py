"""Limits and budgets as pages show them, and the forms that set them."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

from gateway.admin.limits import RateLimitUpdate
from gateway.errors import InvalidRequest
from gateway.limits.money import NANO, dollars
from gateway.limits.rules import ALL_MODELS, DAY_S
from gateway.protocol.request_errors import validated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.admin.limits import BudgetState, LimitOwner
    from gateway.console.page import Call
    from gateway.limits.rules import Limit

LIMIT_FIELDS: Final = {
    "max_requests_per_1_minute": "Requests a minute",
    "max_tokens_per_1_minute": "Tokens a minute",
    "max_requests_per_1_day": "Requests a day",
    "max_concurrent_responses": "Responses at once",
}
"""Limits that a form sets: the names that the admin API has for them, and their labels."""
_EXTRAS: Final = frozenset({"max_concurrent_responses"})
_MONTH: Final = "month"
DOLLARS_MAX: Final = 10**8


@dataclass(frozen=True, slots=True)
class ShownLimit:
    """A limit in words."""

    what: str
    model: str
    value: int
    is_observed: bool


@dataclass(frozen=True, slots=True)
class ShownBudget:
    """A budget, and what is spent of it, in dollars or tokens; `percent` is at most 100."""

    interval: str
    cap: str
    spent: str
    percent: int
    is_observed: bool


def limits_of(owner: LimitOwner, limits: Iterable[Limit]) -> list[ShownLimit]:
    return [
        ShownLimit(
            f"{one.what.replace('_', ' ')} {_window(one)}",
            "all models" if one.model == ALL_MODELS else one.model,
            one.value,
            one.mode == "observe",
        )
        for one in limits
        if owner.has(one)
    ]


def _window(limit: Limit) -> str:
    if not limit.window_s:
        return "at once"
    return "a day" if limit.window_s == DAY_S else "a minute"


def budgets_of(owner: LimitOwner, budgets: Iterable[BudgetState]) -> list[ShownBudget]:
    shown = []
    for state in budgets:
        budget = state.budget
        if owner.has(budget):
            form = (lambda nano: f"${dollars(nano)}") if budget.unit == "usd" else _tokens
            percent = 100 if not budget.cap else min(100, state.spent * 100 // budget.cap)
            interval = "for ever" if budget.interval == "none" else f"a {budget.interval}"
            shown.append(
                ShownBudget(
                    interval,
                    form(budget.cap),
                    form(state.spent),
                    percent,
                    budget.mode == "observe",
                )
            )
    return shown


def _tokens(amount: int) -> str:
    return f"{amount:,} tokens"


async def set_limits(call: Call, owner: LimitOwner) -> None:
    """Set the limits of a form; an empty field takes a limit away. Raises `InvalidRequest`."""
    main: dict[str, Any] = {}
    extras: dict[str, Any] = {}
    for name in LIMIT_FIELDS:
        text = call.form.get(name, "").replace(",", "")
        if text and not (text.isascii() and text.isdecimal()):
            raise InvalidRequest(f"'{LIMIT_FIELDS[name]}' is a number, or empty.", param=name)
        (extras if name in _EXTRAS else main)[name] = int(text[:20]) if text else None
    body = validated(RateLimitUpdate, {**main, "harmony": extras})
    await call.services.tenant.limits.set_limits(owner, body.values)


async def set_budget(call: Call, owner: LimitOwner) -> None:
    """Set the budget a month of a form, in dollars; an empty field takes it away.

    Raises `InvalidRequest`.
    """
    limits, text = call.services.tenant.limits, call.form.get("dollars", "").lstrip("$")
    if not text:
        await limits.remove_budget(owner, "usd", _MONTH)
        return
    try:
        amount = Decimal(text.replace(",", ""))
    except InvalidOperation:
        amount = Decimal(-1)
    if not 0 <= amount <= DOLLARS_MAX:
        raise InvalidRequest(
            f"A budget is from 0 to {DOLLARS_MAX:,} dollars, or empty.", param="dollars"
        )
    await limits.set_budget(owner, int(amount * NANO))
