"""`GET /v1/key`: what the key of the request is and may do, in OpenRouter's shape.

What is spent and what is left belongs to whoever counts it: null means that nobody does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response

from gateway import ids

if TYPE_CHECKING:
    from starlette.requests import Request

    from gateway.tenancy import Principal


async def own_key(request: Request) -> Response:
    """The key that asks, without its secret."""
    principal: Principal = request.scope["principal"]
    return Response(orjson.dumps(key_body(principal)), media_type="application/json")


def key_body(principal: Principal) -> dict[str, Any]:
    """`{"data": …}`; what OpenRouter does not have stands under `harmony`."""
    key = principal.key
    expires_at = None if key.expires_at is None else key.expires_at.isoformat()
    return {
        "data": {
            "label": ids.api_key_id(principal.key_id),
            "limit": None,
            "limit_remaining": None,
            "limit_reset": None,
            "usage": None,
            "usage_daily": None,
            "usage_weekly": None,
            "usage_monthly": None,
            "expires_at": expires_at,
            "is_management_key": key.kind == "admin",
            "rate_limit": None,
            "harmony": {
                "organization_id": ids.tenant_id(principal.tenant_id),
                "organization_name": principal.tenant_name,
                "project_id": ids.project_id(principal.project),
                "project_name": principal.project_terms.name,
                "credential": principal.credential,
                "scopes": sorted(key.scopes),
                "allowed_cidrs": [str(network) for network in key.networks],
                "allowed_models": list(key.models),
                "limits": [],
            },
        }
    }
