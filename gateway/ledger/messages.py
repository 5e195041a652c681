"""What sinks are sent of lines: CloudEvents, and meter events of Stripe. No I/O.

The same lines always make the same messages with the same ids, so that a receiver who is sent a
batch again sees that it has it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from gateway.ledger.records import record_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gateway.store.postgres.database import Row

CLOUDEVENTS_TYPE: Final = "application/cloudevents-batch+json"
COMPLETED: Final = "harmony.response.completed"
ADJUSTED: Final = "harmony.response.adjusted"
IDENTIFIER_CHARS_MAX: Final = 100
"""Of a meter event of Stripe."""
COMPONENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "requests": (),
    "input_tokens": ("input_tokens",),
    "uncached_input_tokens": ("input_tokens", "-cached_tokens"),
    "cached_input_tokens": ("cached_tokens",),
    "output_tokens": ("output_tokens",),
    "reasoning_tokens": ("reasoning_tokens",),
    "web_searches": ("web_searches",),
    "tool_calls": ("tool_calls",),
}
"""What a meter may count, by the columns that it adds up; requests are counted."""


def subject_of(row: Row, customers: Mapping[str, str]) -> str | None:
    """Who a line is of, as the receiver calls them; None: it knows no such customer. `customers`
    are by the name of the tenant or by its id.
    """
    return customers.get(row.tenant_name or "") or customers.get(ids.tenant_id(row.tenant_id))


def cloud_events(
    rows: Iterable[Row], *, source: str, customers: Mapping[str, str]
) -> list[dict[str, Any]]:
    """An event for each line, as CloudEvents 1.0 have it; all values of its data are strings."""
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
        "subject": subject_of(row, customers) or told["tenant_id"],
        "time": told["at"],
        "datacontenttype": "application/json",
        "data": {name: value for name, value in data.items() if value is not None},
    }


def _word(value: Any) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class MeterEvent:
    """One of Stripe's meter events: what one customer used of one component in one hour, as far as
    one batch tells. `timestamp` is the beginning of the hour, in Unix seconds.
    """

    event_name: str
    customer: str
    value: int
    identifier: str
    timestamp: int

    def form(self) -> dict[str, str]:
        """The fields that it is posted with."""
        return {
            "event_name": self.event_name,
            "payload[stripe_customer_id]": self.customer,
            "payload[value]": str(self.value),
            "identifier": self.identifier,
            "timestamp": str(self.timestamp),
        }


def meter_events(
    rows: Sequence[Row], *, batch: int, meters: Mapping[str, str], customers: Mapping[str, str]
) -> list[MeterEvent]:
    """The events of a batch, none of which is 0. `meters` are event names by component.

    Lines of tenants that are no customers are left out.
    """
    sums: Counter[tuple[str, str, str, int]] = Counter()
    for row in rows:
        customer = subject_of(row, customers)
        if customer is None:
            continue
        hour = int(row.at.astimezone(UTC).replace(minute=0, second=0, microsecond=0).timestamp())
        for component in meters:
            sums[row.tenant_id.hex, customer, component, hour] += _counted(row, component)
    return [
        MeterEvent(
            event_name=meters[component],
            customer=customer,
            value=value,
            identifier=f"{tenant}-{component}-{_hour(hour)}-{batch}"[:IDENTIFIER_CHARS_MAX],
            timestamp=hour,
        )
        for (tenant, customer, component, hour), value in sums.items()
        if value
    ]


def _counted(row: Row, component: str) -> int:
    columns = COMPONENTS[component]
    if not columns:
        return int(row.seq == 0)
    return sum(-row[name[1:]] if name.startswith("-") else row[name] for name in columns)


def _hour(at: int) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y%m%dT%H}"
