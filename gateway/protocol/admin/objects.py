"""Objects of the admin API, field by field as openai-python 3.54 reads them; times in seconds.

What is ours stands under `harmony`: the SDK keeps fields that it does not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway import ids
from gateway.tenancy.permissions import role_of
from gateway.tenancy.secrets import redacted

if TYPE_CHECKING:
    from datetime import datetime

    from gateway.tenancy import (
        ApiKey,
        ServiceAccount,
    )

Json = dict[str, Any]


def seconds_of(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())


def account_key_body(key: ApiKey, secret: str) -> Json:
    # The only response that contains the key's value.
    return {
        "id": ids.api_key_id(key.id),
        "object": "organization.project.service_account.api_key",
        "name": key.name,
        "value": secret,
        "created_at": seconds_of(key.created_at),
        "expires_at": seconds_of(key.terms.expires_at),
        "harmony": _extras(key),
    }


def project_key_body(key: ApiKey, account: ServiceAccount | None) -> Json:
    # A key of no service account is shown as the operator's.
    return {
        "id": ids.api_key_id(key.id),
        "object": "organization.project.api_key",
        "name": key.name,
        "redacted_value": redacted("project", key.hint),
        "created_at": seconds_of(key.created_at),
        "last_used_at": seconds_of(key.last_used_at),
        "expires_at": seconds_of(key.terms.expires_at),
        "owner_project_access": "active",
        "owner": _key_owner(key, account),
        "harmony": _extras(key),
    }


def admin_key_body(key: ApiKey) -> Json:
    role = role_of(key.terms.scopes)
    return {
        "id": ids.api_key_id(key.id),
        "object": "organization.admin_api_key",
        "name": key.name,
        "redacted_value": redacted("admin", key.hint),
        "created_at": seconds_of(key.created_at),
        "last_used_at": seconds_of(key.last_used_at),
        "expires_at": seconds_of(key.terms.expires_at),
        "owner": {
            "type": "user",
            "object": "organization.user",
            "id": ids.user_id(key.created_by or key.tenant_id),
            "name": key.name,
            "created_at": seconds_of(key.created_at),
            "role": "owner",
        },
        "harmony": {"role": role, **_extras(key)},
    }


def deleted_body(kind: str, id_: str | None = None) -> Json:
    """Return the answer to a deletion; `kind` is the type of the deleted object."""
    told: Json = {"object": f"{kind}.deleted", "deleted": True}
    return told if id_ is None else {"id": id_, **told}


def _key_owner(key: ApiKey, account: ServiceAccount | None) -> Json:
    if account is None:
        user = {
            "id": ids.user_id(key.tenant_id),
            "name": "Operator",
            "email": "",
            "role": "owner",
            "created_at": seconds_of(key.created_at),
        }
        return {"type": "user", "user": user, "service_account": None}
    shown = {
        "id": ids.service_account_id(account.id),
        "name": account.name,
        "role": account.role,
        "created_at": seconds_of(account.created_at),
    }
    return {"type": "service_account", "service_account": shown, "user": None}


def _extras(key: ApiKey) -> Json:
    return {
        "scopes": sorted(key.terms.scopes),
        "allowed_cidrs": [str(network) for network in key.terms.networks],
        "allowed_models": list(key.terms.models),
        "replaced_by": None if key.replaced_by is None else ids.api_key_id(key.replaced_by),
    }
