from __future__ import annotations

import csv
import io
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

import orjson

from gateway.admin.projects import project_body
from gateway.admin.usage import COSTS, usage_query
from gateway.api.query import choice
from gateway.console.page import Download, Page
from gateway.console.rendering import iso
from gateway.protocol.pages import PageParams
from gateway.tenancy.policy import DAY_S, HOUR_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.console.page import Call
    from gateway.protocol.admin_bodies import Json
    from gateway.tenancy import TenantId

PATH: Final = "/usage"
NAMES_MAX: Final = 100


class Span(NamedTuple):
    """Time in buckets."""

    label: str
    length_s: int
    width: str
    width_s: int


SPANS: Final = {
    "day": Span("24 hours", DAY_S, "1h", HOUR_S),
    "week": Span("7 days", 7 * DAY_S, "1d", DAY_S),
    "month": Span("30 days", 30 * DAY_S, "1d", DAY_S),
}
GROUPS: Final = {"model": "Model", "project_id": "Project", "api_key_id": "Key"}
_COLUMNS: Final = {
    "num_model_requests": "Requests",
    "input_tokens": "Input tokens",
    "input_cached_tokens": "Cached",
    "output_tokens": "Output tokens",
}
"""By their names in the admin API."""


@dataclass(frozen=True, slots=True)
class _Query:
    tenant: str
    tenant_id: TenantId
    span: str
    group: str

    @property
    def start(self) -> int:
        span = SPANS[self.span]
        now = int(time.time())
        return now - now % span.width_s - span.length_s + span.width_s


async def _query(call: Call, tenants: Sequence[str]) -> _Query | None:
    # None: there is no tenant.
    span = choice(call.query, "span", tuple(SPANS)) or "week"
    group = choice(call.query, "group", tuple(GROUPS)) or "model"
    name = call.query.get("tenant") or (tenants[0] if tenants else "")
    if not name:
        return None
    tenant = (await call.services.operator.tenants.get(name)).tenant
    return _Query(name, tenant.id, span, group)


async def view(call: Call) -> Json:
    tenants = [one.name for one in await call.services.operator.tenants.list()]
    query = await _query(call, tenants)
    if query is None:
        return {"tenant": "", "query": ""}
    buckets = await _buckets(call, query)
    sums: dict[str, dict[str, int]] = {}
    for bucket in buckets:
        for result in bucket["results"]:
            _add(sums.setdefault(str(result[query.group]), dict.fromkeys(_COLUMNS, 0)), result)
    names = await _names(call, query)
    ordered = sorted(sums.items(), key=lambda one: -one[1]["output_tokens"])
    total = dict.fromkeys(_COLUMNS, 0)
    for _, values in ordered:
        _add(total, values)
    return {
        "tenants": tenants,
        "tenant": query.tenant,
        "span": query.span,
        "group": query.group,
        "columns": _COLUMNS,
        "rows": [(names.get(name, name), values) for name, values in ordered],
        "total": total,
        "cost": await _cost(call, query),
        "plot": _plot(buckets),
        "query": urlencode({"tenant": query.tenant, "span": query.span, "group": query.group}),
    }


async def download(call: Call) -> Download | str:
    query = await _query(call, ())
    if query is None:
        return PATH
    written = io.StringIO()
    rows = csv.writer(written)
    rows.writerow(["start", query.group, *_COLUMNS])
    for bucket in await _buckets(call, query):
        for result in bucket["results"]:
            values = [result[name] for name in _COLUMNS]
            rows.writerow([iso(bucket["start_time"]), _plain(str(result[query.group])), *values])
    return Download(f"usage-{query.tenant}.csv", "text/csv", written.getvalue())


def _plain(text: str) -> str:
    # Spreadsheets take a text with such a beginning for a formula.
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _add(sums: dict[str, int], values: Mapping[str, Any]) -> None:
    for name in _COLUMNS:
        sums[name] += values[name]


async def _buckets(call: Call, query: _Query) -> list[Json]:
    span = SPANS[query.span]
    params = [
        ("start_time", str(query.start)),
        ("bucket_width", span.width),
        ("limit", str(span.length_s // span.width_s + 1)),
        ("group_by", query.group),
    ]
    parsed = usage_query("completions", params, now=int(time.time()))
    page = await call.services.tenant.usage.page(query.tenant_id, parsed)
    buckets: list[Json] = page["data"]
    return buckets


async def _cost(call: Call, query: _Query) -> str:
    params = [("start_time", str(query.start)), ("limit", "32")]
    parsed = usage_query(COSTS, params, now=int(time.time()))
    page = await call.services.tenant.usage.page(query.tenant_id, parsed)
    total = sum(
        float(result["amount"]["value"]) for bucket in page["data"] for result in bucket["results"]
    )
    return f"${total:,.2f}" if total else ""


async def _names(call: Call, query: _Query) -> dict[str, str]:
    if query.group != "project_id":
        return {}
    projects = await call.services.tenant.projects.list(
        query.tenant_id, PageParams(NAMES_MAX), include_archived=True
    )
    return {body["id"]: body["name"] for body in map(project_body, projects.rows)}


def _plot(buckets: Sequence[Json]) -> str:
    plotted = {"Input tokens": "input_tokens", "Output tokens": "output_tokens"}
    series = [
        {
            "label": label,
            "values": [sum(one[name] for one in bucket["results"]) for bucket in buckets],
        }
        for label, name in plotted.items()
    ]
    return orjson.dumps({"x": [one["start_time"] for one in buckets], "series": series}).decode()


PAGE: Final = Page(
    path=PATH,
    title="Usage",
    template="usage.html",
    permission="ledger.read",
    view=view,
    icon="usage",
    shortcut="u",
)
CSV: Final = Page(path=f"{PATH}.csv", permission="ledger.read", view=download)
