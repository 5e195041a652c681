"""One use case: a tenant asks what it used, and what that cost."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from gateway.errors import InvalidRequest
from gateway.store.ledger import reading
from gateway.store.ledger.reading import LineSpan, Question
from gateway.store.schema import COST_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from uuid import UUID

    from gateway.ledger.usage_query import UsageQuery
    from gateway.settings.sections import Ledger
    from gateway.store.ledger.reading import Dimension, Unit
    from gateway.store.postgres.database import Database, Row
    from gateway.tenancy import TenantId

RESULTS_MAX: Final = 20_000
"""That one page of a report may have."""
_UNITS: Final[dict[str, Unit]] = {"1m": "minute", "1h": "hour", "1d": "day"}
_COLUMNS: Final[dict[str, Dimension]] = {
    "project_id": "project_id",
    "api_key_id": "key_id",
    "user_id": "key_id",
    "model": "model",
    "service_tier": "service_tier",
    "line_item": "model",
}
"""What is read to group by; all others are the same for all lines."""
_GENERATED: Final = ("response", "compact", "count", "adjustment")
_KINDS: Final[dict[str, tuple[str, ...]]] = {
    "completions": _GENERATED,
    "embeddings": ("embeddings",),
    "web_search_calls": _GENERATED,
    "code_interpreter_sessions": _GENERATED,
}
"""Which lines a report is of; costs are of all, and the reports that are not here of none."""
LINE_ITEMS: Final = {
    "input_tokens": ("input_cost_nano", "tokens"),
    "cached_input_tokens": ("cached_cost_nano", "tokens"),
    "output_tokens": ("output_cost_nano", "tokens"),
    "tools": ("tools_cost_nano", None),
}
"""The parts of a model's costs: the column of each, and the unit of its quantity."""
_NANO: Final = Decimal(10**9)
_DAY_S: Final = 86_400
_TOKENS: Final = ("input_tokens", "cached_tokens", "output_tokens")
_NEEDED: Final = {
    "completions": (
        *("requests", *_TOKENS, "reasoning_tokens", "recomputed_tokens", "voided_tokens"),
    ),
    "embeddings": ("requests", "input_tokens"),
    "web_search_calls": ("requests", "web_searches"),
    "code_interpreter_sessions": ("code_sessions",),
    "costs": (*_TOKENS, *COST_COLUMNS),
}
"""The sums that each report shows."""


class UsageReports:
    """Reports of usage and costs from one database of tenants."""

    def __init__(
        self,
        database: Database,
        *,
        ledger: Ledger,
        rows_max: int = RESULTS_MAX,
        clock: Callable[[], float],
    ) -> None:
        """Read sums by minute and hour as long as `ledger` keeps them.

        A page has at most `rows_max` results. `clock` returns unix seconds.
        """
        self._database = database
        self._ledger = ledger
        self._rows_max = rows_max
        self._clock = clock

    async def page(self, tenant_id: TenantId, query: UsageQuery) -> dict[str, Any]:
        """Return one page of buckets, in OpenAI's form.

        Raises `InvalidRequest` if it would have too many results, and `StoreUnavailable`.
        """
        found: dict[int, list[dict[str, Any]]] = defaultdict(list)
        owners = await self._owners(tenant_id, query)
        rows = await self._rows(tenant_id, query, owners)
        merged = _merge(rows, query, owners)
        for start, result in _results(query, merged):
            found[start].append(result)
        return {
            "object": "page",
            "data": [
                {"object": "bucket", "start_time": start, "end_time": end, "results": found[start]}
                for start, end in query.buckets()
            ],
            "has_more": query.next_page is not None,
            "next_page": query.next_page,
        }

    async def _owners(self, tenant_id: TenantId, query: UsageQuery) -> Mapping[UUID, UUID]:
        # Needed only for reports by user.
        if query.user_ids is None and "user_id" not in query.group_by:
            return {}
        return await reading.owners_of_keys(self._database, tenant_id)

    async def _rows(
        self, tenant_id: TenantId, query: UsageQuery, owners: Mapping[UUID, UUID]
    ) -> Sequence[Row]:
        filters = _filters(query, owners)
        if any(values is not None and not values for values in filters.values()):
            return []
        dimensions = dict.fromkeys(_COLUMNS[name] for name in query.group_by if name in _COLUMNS)
        if query.line_items is not None:
            dimensions["model"] = None
        question = Question(
            span=self._span(query),
            unit=_UNITS[query.width],
            dimensions=tuple(dimensions),
            filters={name: list(values) for name, values in filters.items() if values is not None},
            tags=query.tags,
            by_end_user=query.by_end_user,
            sums=_NEEDED.get(query.report, ("requests",)),
        )
        rows = await reading.read(self._database, tenant_id, question, rows_max=self._rows_max + 1)
        if len(rows) > self._rows_max:
            raise InvalidRequest(
                f"The answer would have more than {self._rows_max} results. Ask for fewer buckets "
                "with 'limit', or group by less.",
                code="invalid_value",
                param="limit",
            )
        return rows

    def _span(self, query: UsageQuery) -> LineSpan:
        start, end = query.page_start, query.page_end
        by_minute = query.width == "1m"
        unit_s = 60 if by_minute else 3600
        # Those of the oldest minute may be incomplete: it was cut off as they were added up.
        kept_s = self._ledger.minutes_s if by_minute else self._ledger.hours_s
        kept_from = self._clock() - kept_s + 3600
        inner_start, inner_end = -(-start // unit_s) * unit_s, end // unit_s * unit_s
        if query.width == "1d":
            # Of a day that has been summed up no part can be told.
            if start // _DAY_S * _DAY_S < kept_from:
                inner_start = -(-start // _DAY_S) * _DAY_S
            if end // _DAY_S * _DAY_S < kept_from:
                inner_end = end // _DAY_S * _DAY_S
        has_sums = inner_start < inner_end and (query.width == "1d" or inner_start >= kept_from)
        return LineSpan(
            start=_moment(start),
            end=_moment(end),
            inner_start=_moment(inner_start if has_sums else end),
            inner_end=_moment(inner_end if has_sums else end),
            sums=("minute" if by_minute else "hour") if has_sums else None,
        )


def _filters(query: UsageQuery, owners: Mapping[UUID, UUID]) -> dict[str, Sequence[Any] | None]:
    keys: Sequence[UUID] | None = query.api_key_ids
    if query.user_ids is not None:
        of_people = {key for key, owner in owners.items() if owner in query.user_ids}
        keys = tuple(of_people if keys is None else of_people.intersection(keys))
    kinds = None if query.report == "costs" else _KINDS.get(query.report, ())
    if query.batch or query.by_context_level:
        kinds = ()  # nothing here is a batch, or of a known level
    return {"project_id": query.project_ids, "key_id": keys, "model": query.models, "kind": kinds}


Group = tuple[int, tuple[Any, ...]]
"""The beginning of a bucket, and what is summed up by: OpenAI's names in order, then ours."""


def _merge(
    rows: Sequence[Row], query: UsageQuery, owners: Mapping[UUID, UUID]
) -> dict[Group, dict[str, int]]:
    # Rows may be finer than the groups of the query.
    merged: dict[Group, dict[str, int]] = {}
    for row in rows:
        start = query.bucket_of(int(row["bucket"].timestamp()))
        group = (start, tuple(_group(row, query, owners)))
        sums = merged.setdefault(group, defaultdict(int))
        for name, value in row.items():
            if type(value) is int:
                sums[name] += value
    return merged


def _group(row: Row, query: UsageQuery, owners: Mapping[UUID, UUID]) -> Iterator[Any]:
    for name in query.group_by:
        told = _TOLD.get(name)
        yield None if told is None else told(row, owners)
    if _needs_model(query):
        yield row["model"]
    if query.by_end_user:
        yield None if row["end_user"] is None else row["end_user"].hex()
    for number in range(len(query.tags)):
        yield row[f"tag_{number}"]


def _needs_model(query: UsageQuery) -> bool:
    # A query may filter by line items without grouping by them.
    return query.line_items is not None and "line_item" not in query.group_by


def _user(row: Row, owners: Mapping[UUID, UUID]) -> str | None:
    owner = owners.get(row["key_id"])
    return None if owner is None else ids.user_id(owner)


_TOLD: Final[dict[str, Callable[[Row, Mapping[UUID, UUID]], Any]]] = {
    "project_id": lambda row, _: ids.project_id(row["project_id"]),
    "api_key_id": lambda row, _: ids.api_key_id(row["key_id"]),
    "user_id": _user,
    "model": lambda row, _: row["model"],
    "line_item": lambda row, _: row["model"],
    "service_tier": lambda row, _: row["service_tier"],
    "batch": lambda _, __: False,
    "api_source": lambda _, __: "unlabeled",
}
"""What a row says of each group; of one that is not here nothing."""


def _results(
    query: UsageQuery, merged: Mapping[Group, Mapping[str, int]]
) -> Iterator[tuple[int, dict[str, Any]]]:
    if query.report == "costs":
        yield from _costs(query, merged)
        return
    make = _MAKERS.get(query.report, _completions)
    for (start, values), sums in merged.items():
        result = make(sums)
        if result is None:
            continue
        named = dict(zip(query.group_by, values, strict=False))
        result |= {name: named.get(name) for name in _SHOWN[query.report]}
        own = values[len(query.group_by) :]
        if query.by_end_user:
            result["harmony"]["end_user"], own = own[0], own[1:]
        if query.tags:
            result["harmony"]["tags"] = dict(zip(query.tags, own, strict=True))
        yield start, result


def _completions(sums: Mapping[str, int]) -> dict[str, Any]:
    uncached = sums["input_tokens"] - sums["cached_tokens"]
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": sums["input_tokens"],
        "output_tokens": sums["output_tokens"],
        "num_model_requests": sums["requests"],
        "input_cached_tokens": sums["cached_tokens"],
        "input_uncached_tokens": uncached,
        "input_text_tokens": uncached,
        "output_text_tokens": sums["output_tokens"],
        "input_cached_text_tokens": sums["cached_tokens"],
        "input_audio_tokens": 0,
        "output_audio_tokens": 0,
        "harmony": {
            "reasoning_tokens": sums["reasoning_tokens"],
            "recomputed_tokens": sums["recomputed_tokens"],
            "voided_tokens": sums["voided_tokens"],
            "background_requests": sums["background_requests"],
        },
    }


def _embeddings(sums: Mapping[str, int]) -> dict[str, Any]:
    return {
        "object": "organization.usage.embeddings.result",
        "input_tokens": sums["input_tokens"],
        "num_model_requests": sums["requests"],
        "harmony": {},
    }


def _web_searches(sums: Mapping[str, int]) -> dict[str, Any] | None:
    if not sums["web_searches"]:
        return None
    return {
        "object": "organization.usage.web_searches.result",
        "num_requests": sums["web_searches"],
        "num_model_requests": sums["requests"],
    }


def _code_sessions(sums: Mapping[str, int]) -> dict[str, Any] | None:
    if not sums["code_sessions"]:
        return None
    return {
        "object": "organization.usage.code_interpreter_sessions.result",
        "num_sessions": sums["code_sessions"],
    }


_KEYED: Final = ("project_id", "user_id", "api_key_id", "model")
_OF_COSTS: Final = ("project_id", "user_id", "api_key_id", "api_source")
_MAKERS: Final[dict[str, Callable[[Mapping[str, int]], dict[str, Any] | None]]] = {
    "completions": _completions,
    "embeddings": _embeddings,
    "web_search_calls": _web_searches,
    "code_interpreter_sessions": _code_sessions,
}
_SHOWN: Final = {
    "completions": (*_KEYED, "batch", "service_tier", "api_source"),
    "embeddings": _KEYED,
    "web_search_calls": (*_KEYED, "context_level", "api_source"),
    "code_interpreter_sessions": ("project_id",),
}


def _costs(
    query: UsageQuery, merged: Mapping[Group, Mapping[str, int]]
) -> Iterator[tuple[int, dict[str, Any]]]:
    has_items = "line_item" in query.group_by
    totals: dict[tuple[int, tuple[Any, ...]], tuple[int, int, str | None]] = {}
    for (start, values), sums in merged.items():
        named = dict(zip(query.group_by, values, strict=False))
        model = values[-1] if _needs_model(query) else named.get("line_item")
        for item, nano, quantity, unit in _parts(model, sums):
            if query.line_items is None or item in query.line_items:
                group = named | ({"line_item": item} if has_items else {})
                key = (start, tuple(group.items()))
                known = totals.get(key, (0, 0, unit))
                totals[key] = (known[0] + nano, known[1] + quantity, unit)
    for (start, items), (nano, quantity, unit) in totals.items():
        shown = dict(items)
        yield (
            start,
            {
                "object": "organization.costs.result",
                "amount": {"value": float(Decimal(nano) / _NANO), "currency": "usd"},
                "line_item": shown.get("line_item"),
                "quantity": quantity if has_items and unit else None,
                "quantity_unit": unit if has_items else None,
                **{name: shown.get(name) for name in _OF_COSTS},
            },
        )


def _parts(
    model: str | None, sums: Mapping[str, int]
) -> Iterator[tuple[str | None, int, int, str | None]]:
    # Yields line item, cost in billionths of a dollar, quantity and unit. Without a model: one
    # total.
    if model is None:
        yield None, sums["cost_nano"], 0, None
        return
    quantities = {
        "input_tokens": sums["input_tokens"] - sums["cached_tokens"],
        "cached_input_tokens": sums["cached_tokens"],
        "output_tokens": sums["output_tokens"],
    }
    told = 0
    for part, (column, unit) in LINE_ITEMS.items():
        told += sums[column]
        if sums[column] or quantities.get(part):
            yield f"{model}, {part}", sums[column], quantities.get(part, 0), unit
    if rest := sums["cost_nano"] - told:
        yield f"{model}, adjustments", rest, 0, None


def _moment(at: int) -> datetime:
    return datetime.fromtimestamp(min(at, _LAST), UTC)


_LAST: Final = 253_402_300_799
