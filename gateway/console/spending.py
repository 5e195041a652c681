from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

from gateway.admin.limits import RateLimitUpdate
from gateway.errors import InvalidRequest
from gateway.limits.money import NANO, dollars
from gateway.limits.rules import ALL_MODELS, DAY_S
from gateway.protocol.request_errors import validated

if TYPE_CHECKING:
    from gateway.admin.limits import LimitOwner
    from gateway.console.page import Call
    from gateway.limits.accounting import Figures
    from gateway.limits.rules import Limit

LIMIT_FIELDS: Final = {
    "max_requests_per_1_minute": "Requests a minute",
    "max_tokens_per_1_minute": "Tokens a minute",
    "max_requests_per_1_day": "Requests a day",
    "max_concurrent_responses": "Responses at once",
}
"""Names in the admin API, and labels."""
_EXTRAS: Final = frozenset({"max_concurrent_responses"})
_MONTH: Final = "month"
DOLLARS_MAX: Final = 10**8


@dataclass(frozen=True, slots=True)
class ShownLimit:
    """Limit in words; `used` is in use or reserved."""

    what: str
    model: str
    value: int
    used: int
    percent: int
    is_observed: bool


@dataclass(frozen=True, slots=True)
class ShownBudget:
    """Budget in dollars or tokens; `reserved` is for requests under way.

    At `runs_out_at` (a Unix time) nothing is left if spending goes on like this.
    """

    interval: str
    cap: str
    spent: str
    reserved: str
    percent: int
    is_observed: bool
    runs_out_at: float | None


def limits_of(figures: Figures) -> list[ShownLimit]:
    return [
        ShownLimit(
            what=f"{one.limit.what.replace('_', ' ')} {_window(one.limit)}",
            model="all models" if one.limit.model == ALL_MODELS else one.limit.model,
            value=one.limit.value,
            used=one.limit.value - one.remaining,
            percent=_percent(one.limit.value - one.remaining, one.limit.value),
            is_observed=one.limit.mode == "observe",
        )
        for one in figures.limits
    ]


def _percent(used: int, cap: int) -> int:
    return 100 if not cap else min(100, used * 100 // cap)


def _window(limit: Limit) -> str:
    if not limit.window_s:
        return "at once"
    return "a day" if limit.window_s == DAY_S else "a minute"


def budgets_of(figures: Figures) -> list[ShownBudget]:
    shown, now = [], datetime.now(UTC)
    for one in figures.budgets:
        budget, runs_out_at = one.budget, one.runs_out_at(now)
        form = (lambda nano: f"${dollars(nano)}") if budget.unit == "usd" else _tokens
        shown.append(
            ShownBudget(
                interval="for ever" if budget.interval == "none" else f"a {budget.interval}",
                cap=form(budget.cap),
                spent=form(one.spent),
                reserved=form(one.reserved) if one.reserved else "",
                percent=_percent(one.spent, budget.cap),
                is_observed=budget.mode == "observe",
                runs_out_at=None if runs_out_at is None else runs_out_at.timestamp(),
            )
        )
    return shown


def _tokens(amount: int) -> str:
    return f"{amount:,} tokens"


def _digits(text: str) -> str:
    # Without the commas of thousands: another comma may be meant as a decimal point.
    return re.sub(r",(?=\d{3}(,|\.|$))", "", text, flags=re.ASCII)


async def set_limits(call: Call, owner: LimitOwner) -> None:
    """Set the limits of a form; an empty field takes one away."""
    main: dict[str, Any] = {}
    extras: dict[str, Any] = {}
    for name in LIMIT_FIELDS:
        text = _digits(call.form.get(name, ""))
        if text and not (text.isascii() and text.isdecimal()):
            raise InvalidRequest(f"'{LIMIT_FIELDS[name]}' is a number, or empty.", param=name)
        (extras if name in _EXTRAS else main)[name] = int(text[:20]) if text else None
    body = validated(RateLimitUpdate, {**main, "harmony": extras})
    await call.services.tenant.limits.set_limits(owner, body.values)


async def set_budget(call: Call, owner: LimitOwner) -> None:
    """Set the monthly budget of a form; an empty field takes it away."""
    budgets, text = call.services.tenant.spend_limits, call.form.get("dollars", "").lstrip("$")
    if not text:
        await budgets.remove_budget(owner, "usd", _MONTH)
        return
    try:
        amount = Decimal(_digits(text))
        is_amount = 0 <= amount <= DOLLARS_MAX
    except InvalidOperation:  # also of comparing what is not a number (NaN)
        amount, is_amount = Decimal(), False
    if not is_amount:
        raise InvalidRequest(
            f"A budget is from 0 to {DOLLARS_MAX:,} dollars, or empty.", param="dollars"
        )
    await budgets.set_budget(owner, int(amount * NANO))
