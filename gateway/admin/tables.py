"""The schema's tables, for statements in SQLAlchemy Core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.store.migration.tables import metadata

if TYPE_CHECKING:
    from sqlalchemy import Table

PROJECTS: Final[Table] = metadata.tables["projects"]
SERVICE_ACCOUNTS: Final[Table] = metadata.tables["service_accounts"]
API_KEYS: Final[Table] = metadata.tables["api_keys"]
OPERATOR_KEYS: Final[Table] = metadata.tables["operator_keys"]
TENANTS: Final[Table] = metadata.tables["tenants"]
