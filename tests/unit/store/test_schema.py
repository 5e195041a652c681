"""Statements write all columns of a row."""

from __future__ import annotations

from gateway.store import responses, usage_lines
from gateway.store.schema import COST_COLUMNS
from gateway.store.tables import TABLES
from gateway.store.tables.columns import types


def test_all_of_a_response_is_written_when_it_is_accepted_or_when_it_ends() -> None:
    later = {"tenant_id", "completed_at", "body", "recoveries", "lease_until", "tool_state"}
    later |= {"placement", "timeline"}
    accepted = set(responses._NEW.columns) - {"lease", "entries"}
    assert accepted == set(types(TABLES["responses"])) - later
    assert set(usage_lines._LINES.columns) == set(types(TABLES["usage"])) - {
        *("tenant_id", "seq", "reason", "author", "tx", "price_id", *COST_COLUMNS)
    }
