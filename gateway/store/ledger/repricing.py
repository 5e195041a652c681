"""Adjustment lines for what recorded usage cost too little, or too much."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from gateway.limits.repricing import REASON, Costs, PricedLine, difference
from gateway.store.governance import audit_log
from gateway.store.ledger.sums import LINE_KEY
from gateway.store.postgres.statements import Statement
from gateway.store.schema import COUNTS, EVERYONE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from gateway.governance.audit import AuditEvent
    from gateway.limits.money import Prices
    from gateway.store.postgres.database import Database, Row
    from gateway.tenancy import TenantId

_PARTS: Final = ("input_cost_nano", "cached_cost_nano", "output_cost_nano", "tools_cost_nano")
# Of two that reprice the same tenant, one waits, and finds what the other has booked.
_TAKE_TURNS: Final = Statement("""
SELECT pg_advisory_xact_lock(CAST(:lock AS integer), hashtext(CAST(:tenant AS text)))
""")
_LOCK: Final = 0x52657072  # "Repr"
_PAGE: Final = Statement("""
SELECT at, response_id FROM usage
WHERE tenant_id = :tenant AND seq = 0 AND at >= :from_at AND at < :until_at
  AND (at, response_id) > (:after_at, :after_id)
ORDER BY at, response_id
LIMIT :rows_max
""")
_LINES: Final = Statement(f"""
SELECT line.response_id, line.seq, line.key_id, line.project_id, line.model, line.at, line.status,
       {LINE_KEY["service_tier"]} AS tier, line.service_tier, line.background, line.input_tokens,
       line.cached_tokens, line.output_tokens, line.tool_calls, line.web_searches, line.price_id,
       line.cost_nano, line.reason,
       {", ".join(f"coalesce(line.{name}, 0) AS {name}" for name in _PARTS)}
FROM usage AS line
WHERE line.tenant_id = :tenant AND line.response_id = ANY(CAST(:ids AS uuid[]))
ORDER BY line.response_id, line.seq
""")  # noqa: S608 - constants only
_ZEROES: Final = ", ".join(COUNTS)
_BOOK: Final = Statement(f"""
INSERT INTO usage (tenant_id, response_id, seq, kind, key_id, project_id, model, at, status,
    service_tier, background, {_ZEROES}, reason, author, price_id, cost_nano, {", ".join(_PARTS)})
SELECT tenant_id, response_id, :seq, 'adjustment', key_id, project_id, model, at, status,
    service_tier, background, {", ".join("0" for _ in COUNTS)}, '{REASON}', :author, :price_id,
    :cost_nano, {", ".join(f":{name}" for name in _PARTS)}
FROM usage WHERE tenant_id = :tenant AND response_id = :response AND seq = 0
""")  # noqa: S608 - constants only
FIRST: Final = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Repricing:
    """Of which responses: `from_at` <= ended < `until_at`, of one tenant; `prices` are all that
    there are, `author` is who does it. With `is_dry` nothing is written.
    """

    tenant_id: TenantId
    from_at: datetime
    until_at: datetime
    prices: Prices
    author: str
    is_dry: bool = False


@dataclass(frozen=True, slots=True)
class RepricedPage:
    """Of some responses: how many were looked at, and by model how many cost otherwise and by how
    many nano-dollars. `after` is where the next ones are; None: there are none.
    """

    seen: int
    lines: Mapping[str, int]
    nano: Mapping[str, int]
    after: tuple[datetime, UUID] | None


async def reprice(
    database: Database,
    asked: Repricing,
    told: Callable[[int, int], AuditEvent],
    *,
    after: tuple[datetime, UUID] | None,
    rows_max: int,
) -> RepricedPage:
    """The next responses behind `after`, in one transaction with the entry of the audit log, which
    `told` makes of the number of lines and their nano-dollars. Raises `StoreUnavailable`.
    """
    tenant_id = asked.tenant_id
    after_at, after_id = after or (asked.from_at, FIRST)
    page = {
        "tenant": tenant_id,
        "from_at": asked.from_at,
        "until_at": asked.until_at,
        "after_at": after_at,
        "after_id": after_id,
        "rows_max": rows_max,
    }
    async with database.transaction(tenant_id) as connection:
        await connection.execute(_TAKE_TURNS, {"lock": _LOCK, "tenant": str(tenant_id)})
        found = await connection.execute(_PAGE, page)
        named = {"tenant": tenant_id, "ids": [row.response_id for row in found]}
        rows = await connection.execute(_LINES, named)
        booked = _adjustments(asked, rows)
        if booked and not asked.is_dry:
            for _, values in booked:
                await connection.execute(_BOOK, values)
            nano = sum(values["cost_nano"] for _, values in booked)
            await audit_log.record(connection, tenant_id, told(len(booked), nano))
    lines: dict[str, int] = {}
    costs: dict[str, int] = {}
    for model, values in booked:
        lines[model] = lines.get(model, 0) + 1
        costs[model] = costs.get(model, 0) + values["cost_nano"]
    last = found[-1] if len(found) == rows_max else None
    place = None if last is None else (last.at, last.response_id)
    return RepricedPage(len(found), lines, costs, place)


def _adjustments(asked: Repricing, rows: Any) -> list[tuple[str, dict[str, Any]]]:
    """Models, and the values of `_BOOK`, of those that differ."""
    found = []
    for response, group in groupby(rows, key=lambda row: row.response_id):
        lines = list(group)
        change = difference(list(map(_line, lines)), asked.prices, asked.tenant_id, EVERYONE)
        if change is None:
            continue
        values = {
            "tenant": asked.tenant_id,
            "response": response,
            "seq": lines[-1].seq + 1,
            "author": asked.author,
            "price_id": change.price_id,
            "cost_nano": change.costs.total,
            **dict(zip(_PARTS, change.costs, strict=True)),
        }
        found.append((str(lines[0].model), values))
    return found


def _line(row: Row) -> PricedLine:
    return PricedLine(
        model=row.model,
        tier=row.tier,
        at=row.at,
        input_tokens=row.input_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        tool_calls=row.tool_calls,
        web_searches=row.web_searches,
        price_id=row.price_id,
        costs=None if row.cost_nano is None else Costs(*(row[name] for name in _PARTS)),
        reason=row.reason,
    )
