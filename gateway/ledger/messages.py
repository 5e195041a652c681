"""Usage lines as CloudEvents. No I/O.

The same lines always make the same messages with the same ids, so that a receiver who is sent a
batch again sees that it has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.ledger.records import record_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gateway.store.postgres.database import Row

CLOUDEVENTS_TYPE: Final = "application/cloudevents-batch+json"
COMPLETED: Final = "harmony.response.completed"
ADJUSTED: Final = "harmony.response.adjusted"


def cloud_events(
    rows: Iterable[Row], *, source: str, customers: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return a CloudEvents 1.0 event for each line; all values of its data are strings.

    `customers` maps a tenant's name or id to the receiver's name for it.
    """
    return [_cloud_event(row, source, customers) for row in rows]


def _cloud_event(row: Row, source: str, customers: Mapping[str, str]) -> dict[str, Any]:
    told = record_of(row)
    data = {
        **{name: _word(value) for name, value in told.items() if not isinstance(value, dict)},
        **{f"tool_{name}": str(value) for name, value in told["tools"].items()},
        **{f"tag_{name}": value for name, value in told["tags"].items()},
    }
    return {
        "specversion": "1.0",
        "id": told["id"],
        "source": source,
        "type": ADJUSTED if row.seq else COMPLETED,
        "subject": customers.get(row.tenant_name or "")
        or customers.get(told["tenant_id"])
        or told["tenant_id"],
        "time": told["at"],
        "datacontenttype": "application/json",
        "data": {name: value for name, value in data.items() if value is not None},
    }


def _word(value: Any) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
