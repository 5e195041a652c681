"""The schema. Migrations, verification, sealing, export, removal and retention derive from it."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Table

from gateway.store.tables import ledger, responses, tenants, tools

_AREAS: Final = (tenants, responses, tools, ledger)
TABLES: Final = {
    str(one.name): one for area in _AREAS for one in vars(area).values() if isinstance(one, Table)
}
