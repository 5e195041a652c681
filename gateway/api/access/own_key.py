"""`GET /v1/key`, in OpenRouter's shape: `limit` is the tightest money budget that binds the key, of
whatever scope, in dollars.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from gateway.api.query import json_response
from gateway.limits.money import NANO
from gateway.limits.rules import MINUTE_S

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from gateway.limits.accounting import BudgetFigure, Figures, LimitFigure
    from gateway.services.access import KeyState, OwnKey
    from gateway.tenancy import Principal

_RESETS: Final = {"day": "daily", "month": "monthly", "none": None}


class KeyEndpoint:
    def __init__(self, keys: OwnKey) -> None:
        self._keys = keys

    async def own(self, request: Request) -> Response:
        principal: Principal = request.scope["principal"]
        response = json_response(key_body(principal, await self._keys.state(principal)))
        response.headers["cache-control"] = "no-store"
        return response


def key_body(principal: Principal, state: KeyState) -> dict[str, Any]:
    """Return `{"data": …}`; what OpenRouter does not have is under `harmony`."""
    key, usage = principal.key, state.usage
    expires_at = None if key.expires_at is None else key.expires_at.isoformat()
    return {
        "data": {
            "label": ids.api_key_id(principal.key_id),
            **_limit(state.figures.tightest),
            "usage": usage["total"].cost_nano / NANO,
            "usage_daily": usage["day"].cost_nano / NANO,
            "usage_weekly": usage["week"].cost_nano / NANO,
            "usage_monthly": usage["month"].cost_nano / NANO,
            "expires_at": expires_at,
            "is_management_key": key.kind == "admin",
            "rate_limit": _rate_limit(state.figures),
            "harmony": {
                "organization_id": ids.tenant_id(principal.tenant_id),
                "organization_name": principal.tenant_name,
                "project_id": ids.project_id(principal.project),
                "project_name": principal.project_terms.name,
                "credential": principal.credential,
                "scopes": sorted(key.scopes),
                "allowed_cidrs": [str(network) for network in key.networks],
                "allowed_models": list(key.models),
                "limits": list(map(limit_body, state.figures.limits)),
                "budgets": list(map(budget_body, state.figures.budgets)),
                "usage": {
                    period: {
                        "requests": used.requests,
                        "input_tokens": used.input_tokens,
                        "output_tokens": used.output_tokens,
                    }
                    for period, used in usage.items()
                },
            },
        }
    }


def _limit(tightest: BudgetFigure | None) -> dict[str, Any]:
    if tightest is None:
        return {"limit": None, "limit_remaining": None, "limit_reset": None}
    return {
        "limit": tightest.budget.cap / NANO,
        "limit_remaining": tightest.remaining / NANO,
        "limit_reset": _RESETS[tightest.budget.interval],
    }


def _rate_limit(figures: Figures) -> dict[str, Any] | None:
    # Only limits that are enforced count.
    values = [
        one.limit.value
        for one in figures.limits
        if (one.limit.what, one.limit.window_s, one.limit.mode) == ("requests", MINUTE_S, "enforce")
    ]
    return {"requests": min(values), "interval": f"{MINUTE_S}s"} if values else None


def limit_body(figure: LimitFigure) -> dict[str, Any]:
    limit = figure.limit
    return {
        "scope": limit.scope,
        "model": limit.model,
        "what": limit.what,
        "window_seconds": limit.window_s or None,
        "mode": limit.mode,
        "limit": limit.value,
        "remaining": figure.remaining,
        "reset_seconds": None if figure.reset_s is None else round(figure.reset_s, 3),
    }


def budget_body(figure: BudgetFigure) -> dict[str, Any]:
    budget = figure.budget
    unit = NANO if budget.unit == "usd" else 1
    amounts = {
        "limit": budget.cap,
        "spent": figure.spent,
        "reserved": figure.reserved,
        "remaining": figure.remaining,
    }
    return {
        "scope": budget.scope,
        "unit": budget.unit,
        "interval": budget.interval,
        "mode": budget.mode,
        **{name: amount / unit if unit > 1 else amount for name, amount in amounts.items()},
        "resets_at": None if figure.resets_at is None else int(figure.resets_at.timestamp()),
    }
