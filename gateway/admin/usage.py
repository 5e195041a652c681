"""`/organization/usage/*` and `/organization/costs`: what a tenant used and owes.

The parameters and their bounds are OpenAI's. Times are Unix seconds. Buckets begin at full minutes,
hours or days of UTC, but the first one begins and the last one ends with the query.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import orjson
from starlette.datastructures import QueryParams

from gateway import ids
from gateway.admin.routes import AdminRoute
from gateway.api.query import choice, integer, several, values_of
from gateway.errors import InvalidRequest
from gateway.protocol.admin_bodies import SECOND_MAX, moment_of
from gateway.protocol.request_errors import wrong_value
from gateway.store.ledger import rollup
from gateway.store.ledger.rollup import LineSpan, Question
from gateway.store.schema import COST_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from gateway.admin.routes import AdminCall, Endpoint
    from gateway.protocol.admin_bodies import Json
    from gateway.settings.sections import Ledger
    from gateway.store.ledger.rollup import Dimension, Unit
    from gateway.store.postgres.database import Database, Row
    from gateway.tenancy import TenantId

Width = Literal["1m", "1h", "1d"]
WIDTHS_S: Final[dict[Width, int]] = {"1m": 60, "1h": 3600, "1d": 86_400}
_UNITS: Final[dict[Width, Unit]] = {"1m": "minute", "1h": "hour", "1d": "day"}
_DEFAULTS: Final[dict[Width, int]] = {"1m": 60, "1h": 24, "1d": 7}
_MOST: Final[dict[Width, int]] = {"1m": 1440, "1h": 168, "1d": 31}
COST_BUCKETS_MAX: Final = 180
VALUES_MAX: Final = 100
RESULTS_MAX: Final = 20_000
COSTS: Final = "costs"
PARAMETERS: Final = ("start_time", "end_time", "bucket_width", "limit", "page", "batch")
_LISTS: Final = ("group_by", "project_ids", "user_ids", "api_key_ids", "models")
END_USER: Final = "harmony.end_user"
TAG_PREFIX: Final = "harmony.tag:"
_TAG: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
TAGS_MAX: Final = 5
_PREFIX: Final = "page_"
_NANO: Final = Decimal(10**9)

Sums = Mapping[str, int]


def routes(reports: UsageReports) -> list[AdminRoute]:
    def endpoint(name: str) -> Endpoint:
        async def page(call: AdminCall) -> Json:
            query = usage_query(name, call.request.query_params, now=int(time.time()))
            return await reports.page(call.principal.tenant_id, query)

        return page

    return [
        AdminRoute(
            "GET",
            path_of(name),
            "usage.read",
            endpoint(name),
            query=(*PARAMETERS, *(one for parameter in report.lists for one in several(parameter))),
        )
        for name, report in REPORTS.items()
    ]


def path_of(name: str) -> str:
    return f"/organization/{'' if name == COSTS else 'usage/'}{name}"


def _completions(sums: Sums) -> Json:
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


def _embeddings(sums: Sums) -> Json:
    return {
        "object": "organization.usage.embeddings.result",
        "input_tokens": sums["input_tokens"],
        "num_model_requests": sums["requests"],
        "harmony": {},
    }


def _web_searches(sums: Sums) -> Json | None:
    if not sums["web_searches"]:
        return None
    return {
        "object": "organization.usage.web_searches.result",
        "num_requests": sums["web_searches"],
        "num_model_requests": sums["requests"],
    }


def _code_sessions(sums: Sums) -> Json | None:
    if not sums["code_sessions"]:
        return None
    return {
        "object": "organization.usage.code_interpreter_sessions.result",
        "num_sessions": sums["code_sessions"],
    }


class Report(NamedTuple):
    """A report. `kinds` of lines None: all, empty: it is always empty. `by_person`: it may also be
    grouped by end user and tag.
    """

    groups: tuple[str, ...]
    filters: tuple[str, ...] = ()
    kinds: tuple[str, ...] | None = ()
    sums: tuple[str, ...] = ("requests",)
    made: Callable[[Sums], Json | None] = _completions
    by_person: bool = False

    @property
    def lists(self) -> tuple[str, ...]:
        return (*_LISTS, *self.filters)


_KEYED: Final = ("project_id", "user_id", "api_key_id")
_GENERATED: Final = ("response", "compact", "count", "adjustment")
_TOKENS: Final = ("input_tokens", "cached_tokens", "output_tokens")
REPORTS: Final[Mapping[str, Report]] = {
    "completions": Report(
        (*_KEYED, "model", "batch", "service_tier", "api_source"),
        kinds=_GENERATED,
        sums=(*("requests", *_TOKENS, "reasoning_tokens", "recomputed_tokens", "voided_tokens"),),
        by_person=True,
    ),
    "embeddings": Report(
        (*_KEYED, "model"),
        kinds=("embeddings",),
        sums=("requests", "input_tokens"),
        made=_embeddings,
        by_person=True,
    ),
    "web_search_calls": Report(
        (*_KEYED, "model", "context_level", "api_source"),
        ("context_levels",),
        kinds=_GENERATED,
        sums=("requests", "web_searches"),
        made=_web_searches,
    ),
    "code_interpreter_sessions": Report(
        ("project_id",), kinds=_GENERATED, sums=("code_sessions",), made=_code_sessions
    ),
    COSTS: Report(
        ("project_id", "user_id", "line_item", "api_key_id", "api_source"),
        ("line_items",),
        kinds=None,
        sums=(*_TOKENS, *COST_COLUMNS),
    ),
    "moderations": Report((*_KEYED, "model")),
    "images": Report((*_KEYED, "model", "size", "source"), ("sizes", "sources")),
    "audio_speeches": Report((*_KEYED, "model")),
    "audio_transcriptions": Report((*_KEYED, "model")),
    "vector_stores": Report(("project_id",)),
    "file_search_calls": Report((*_KEYED, "vector_store_id"), ("vector_store_ids",)),
    "decisions": Report((*_KEYED, "model", "batch", "service_tier", "api_source")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """Query of `start` <= time < `end`; its page has the buckets from `page_start` to `page_end`.

    A filter that is None is absent; an empty one lets nothing pass, nor does `by_context_level`: no
    search has one here.
    """

    name: str
    start: int
    end: int
    page_start: int
    page_end: int
    width: Width
    group_by: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    by_end_user: bool = False
    project_ids: tuple[UUID, ...] | None = None
    user_ids: tuple[UUID, ...] | None = None
    api_key_ids: tuple[UUID, ...] | None = None
    models: tuple[str, ...] | None = None
    line_items: tuple[str, ...] | None = None
    batch: bool = False
    by_context_level: bool = False
    digest: str = field(default="", repr=False)

    @property
    def report(self) -> Report:
        return REPORTS[self.name]

    @property
    def needs_model(self) -> bool:
        # A query may filter by line items without grouping by them.
        return self.line_items is not None and "line_item" not in self.group_by

    @property
    def next_page(self) -> str | None:
        if self.page_end >= self.end:
            return None
        packed = orjson.dumps([self.page_end, self.end, self.digest])
        return _PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")

    def buckets(self) -> list[tuple[int, int]]:
        width = WIDTHS_S[self.width]
        edges = range(self.page_start - self.page_start % width + width, self.page_end, width)
        cuts = [self.page_start, *edges, self.page_end]
        return list(itertools.pairwise(cuts))


def usage_query(name: str, params: QueryParams | list[tuple[str, str]], *, now: int) -> UsageQuery:
    query, is_of_costs = QueryParams(params), name == COSTS
    widths: tuple[Width, ...] = ("1d",) if is_of_costs else ("1m", "1h", "1d")
    width: Width = choice(query, "bucket_width", widths) or "1d"
    start = integer(query, "start_time", minimum=0, maximum=SECOND_MAX)
    if start is None:
        raise InvalidRequest(
            "Missing required parameter: 'start_time', in Unix seconds.",
            code="missing_required_parameter",
            param="start_time",
        )
    most = COST_BUCKETS_MAX if is_of_costs else _MOST[width]
    limit = integer(query, "limit", minimum=1, maximum=most) or _DEFAULTS[width]
    groups, tags, by_end_user = _groups(REPORTS[name], query)
    requested_end = integer(query, "end_time", minimum=0, maximum=SECOND_MAX)
    fields: dict[str, Any] = {
        "width": width,
        "group_by": groups,
        "tags": tags,
        "by_end_user": by_end_user,
        "project_ids": _ids(query, "project_ids", ids.parse_project_id),
        "api_key_ids": _ids(query, "api_key_ids", ids.parse_api_key_id),
        "user_ids": _ids(query, "user_ids", ids.parse_user_id),
        "models": _values(query, "models"),
        "line_items": _values(query, "line_items") if is_of_costs else None,
        "batch": choice(query, "batch", ("true", "false")) == "true",
        "by_context_level": _values(query, "context_levels") is not None,
    }
    digest = hashlib.sha256(
        orjson.dumps([name, start, requested_end, fields], default=str)
    ).hexdigest()[:16]
    page_start, end = _page(query.get("page"), digest) or (start, requested_end)
    if end is None:
        end = max(now, start) + 1
    if end <= start or not start <= page_start < end:
        raise InvalidRequest(
            f"'end_time' must be greater than 'start_time' ({start}).",
            code="invalid_value",
            param="end_time",
        )
    first = page_start - page_start % WIDTHS_S[width]
    page_end = min(end, first + limit * WIDTHS_S[width])
    return UsageQuery(
        name=name,
        start=start,
        end=end,
        page_start=page_start,
        page_end=page_end,
        digest=digest,
        **fields,
    )


def _values(query: QueryParams, name: str) -> tuple[str, ...] | None:
    values = values_of(query, name)
    if len(values) > VALUES_MAX:
        raise _too_many(name, f"{len(values)} values", VALUES_MAX)
    # PostgreSQL takes no NUL; so nothing is called that.
    return tuple(filter(str.isprintable, values)) if values else None


def _ids(
    query: QueryParams, name: str, parse: Callable[[str], UUID | None]
) -> tuple[UUID, ...] | None:
    values = _values(query, name)
    return None if values is None else tuple(filter(None, map(parse, values)))


def _groups(report: Report, query: QueryParams) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    groups, tags, by_end_user = [], [], False
    for name in dict.fromkeys(values_of(query, "group_by")):
        tag = name.removeprefix(TAG_PREFIX)
        if name in report.groups:
            groups.append(name)
        elif report.by_person and name == END_USER:
            by_end_user = True
        elif report.by_person and name.startswith(TAG_PREFIX) and _TAG.fullmatch(tag):
            tags.append(tag)
        else:
            raise wrong_value("group_by", name, report.groups)
    if len(tags) > TAGS_MAX:
        raise _too_many("group_by", f"{len(tags)} tags", TAGS_MAX)
    return tuple(groups), tuple(tags), by_end_user


def _too_many(name: str, has: str, most: int) -> InvalidRequest:
    return InvalidRequest(
        f"'{name}' has {has}; it may have {most}.", code="array_above_max_length", param=name
    )


def _page(token: str | None, digest: str) -> tuple[int, int] | None:
    if not token:
        return None
    match _unpacked(token):
        case [int(page_start), int(end), of] if (
            of == digest and 0 <= page_start <= end <= SECOND_MAX + 1
        ):
            return page_start, end
        case _:
            raise InvalidRequest(
                "'page' must be the 'next_page' of an answer to the same parameters.",
                code="invalid_value",
                param="page",
            )


def _unpacked(token: str) -> Any:
    packed = token.removeprefix(_PREFIX)
    try:
        return orjson.loads(
            base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
        )
    except ValueError:  # which both of their errors are
        return None


class UsageReports:
    def __init__(
        self,
        database: Database,
        ledger: Ledger,
        *,
        rows_max: int = RESULTS_MAX,
        clock: Callable[[], float] = time.time,
    ) -> None:
        # Sums by minute and hour are read as long as `ledger` keeps them.
        self._database = database
        self._ledger = ledger
        self._rows_max = rows_max
        self._clock = clock

    async def page(self, tenant_id: TenantId, query: UsageQuery) -> Json:
        by_start: dict[int, list[Json]] = defaultdict(list)
        owners: Mapping[UUID, UUID] = {}
        if query.user_ids is not None or "user_id" in query.group_by:
            owners = await rollup.owners_of_keys(self._database, tenant_id)
        merged = _merge(await self._rows(tenant_id, query, owners), query, owners)
        for start, result in _results(query, merged):
            by_start[start].append(result)
        return {
            "object": "page",
            "data": [
                {
                    "object": "bucket",
                    "start_time": start,
                    "end_time": end,
                    "results": by_start[start],
                }
                for start, end in query.buckets()
            ],
            "has_more": query.next_page is not None,
            "next_page": query.next_page,
        }

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
            sums=query.report.sums,
        )
        rows = await rollup.read_usage(
            self._database, tenant_id, question, rows_max=self._rows_max + 1
        )
        if len(rows) > self._rows_max:
            raise InvalidRequest(
                f"The answer would have more than {self._rows_max} results. Ask for fewer buckets "
                "with 'limit', or group by less.",
                code="invalid_value",
                param="limit",
            )
        return rows

    def _span(self, query: UsageQuery) -> LineSpan:
        start, end, day_s = query.page_start, query.page_end, WIDTHS_S["1d"]
        by_minute = query.width == "1m"
        unit_s = WIDTHS_S["1m" if by_minute else "1h"]
        # Sums of the oldest interval may be incomplete: retention may have removed some of them.
        kept_s = self._ledger.minutes_s if by_minute else self._ledger.hours_s
        kept_from = self._clock() - kept_s + 3600
        inner_start, inner_end = -(-start // unit_s) * unit_s, end // unit_s * unit_s
        if query.width == "1d":
            # Sums by the day cannot be divided into hours.
            if start // day_s * day_s < kept_from:
                inner_start = -(-start // day_s) * day_s
            if end // day_s * day_s < kept_from:
                inner_end = end // day_s * day_s
        has_sums = inner_start < inner_end and (query.width == "1d" or inner_start >= kept_from)
        return LineSpan(
            start=moment_of(start),
            end=moment_of(end),
            inner_start=moment_of(inner_start if has_sums else end),
            inner_end=moment_of(inner_end if has_sums else end),
            sums=("minute" if by_minute else "hour") if has_sums else None,
        )


def _filters(query: UsageQuery, owners: Mapping[UUID, UUID]) -> dict[str, Sequence[Any] | None]:
    keys: Sequence[UUID] | None = query.api_key_ids
    if query.user_ids is not None:
        of_people = {key for key, owner in owners.items() if owner in query.user_ids}
        keys = tuple(of_people if keys is None else of_people.intersection(keys))
    # Nothing here is a batch, or of a known level.
    kinds = () if query.batch or query.by_context_level else query.report.kinds
    return {"project_id": query.project_ids, "key_id": keys, "model": query.models, "kind": kinds}


_COLUMNS: Final[dict[str, Dimension]] = {
    "project_id": "project_id",
    "api_key_id": "key_id",
    "user_id": "key_id",
    "model": "model",
    "service_tier": "service_tier",
    "line_item": "model",
}
"""Columns by group; other groups have one value for all lines."""
_VALUES: Final[dict[str, Callable[[Row, Mapping[UUID, UUID]], Any]]] = {
    "project_id": lambda row, _: ids.project_id(row["project_id"]),
    "api_key_id": lambda row, _: ids.api_key_id(row["key_id"]),
    "user_id": lambda row, owners: (
        ids.user_id(owners[row["key_id"]]) if row["key_id"] in owners else None
    ),
    "model": lambda row, _: row["model"],
    "line_item": lambda row, _: row["model"],
    "service_tier": lambda row, _: row["service_tier"],
    "batch": lambda _, __: False,
    "api_source": lambda _, __: "unlabeled",
}
"""Value of a group for a row; missing groups have none."""
Group = tuple[int, tuple[Any, ...]]
"""Start of a bucket, and the values of OpenAI's groups, then ours."""


def _merge(
    rows: Sequence[Row], query: UsageQuery, owners: Mapping[UUID, UUID]
) -> dict[Group, dict[str, int]]:
    # Rows may be finer than the groups of the query.
    merged: dict[Group, dict[str, int]] = {}
    for row in rows:
        # A full unit of time may begin before the page.
        start = max(int(row["bucket"].timestamp()), query.page_start)
        group = (start, tuple(_group(row, query, owners)))
        sums = merged.setdefault(group, defaultdict(int))
        for name, value in row.items():
            if type(value) is int:
                sums[name] += value
    return merged


def _group(row: Row, query: UsageQuery, owners: Mapping[UUID, UUID]) -> Iterator[Any]:
    for name in query.group_by:
        value = _VALUES.get(name)
        yield None if value is None else value(row, owners)
    if query.needs_model:
        yield row["model"]
    if query.by_end_user:
        yield None if row["end_user"] is None else row["end_user"].hex()
    for number in range(len(query.tags)):
        yield row[f"tag_{number}"]


def _results(query: UsageQuery, merged: Mapping[Group, Sums]) -> Iterator[tuple[int, Json]]:
    if query.name == COSTS:
        yield from _costs(query, merged)
        return
    for (start, values), sums in merged.items():
        result = query.report.made(sums)
        if result is None:
            continue
        named = dict(zip(query.group_by, values, strict=False))
        result |= {name: named.get(name) for name in query.report.groups}
        own = values[len(query.group_by) :]
        if query.by_end_user:
            result["harmony"]["end_user"], own = own[0], own[1:]
        if query.tags:
            result["harmony"]["tags"] = dict(zip(query.tags, own, strict=True))
        yield start, result


def _costs(query: UsageQuery, merged: Mapping[Group, Sums]) -> Iterator[tuple[int, Json]]:
    has_items = "line_item" in query.group_by
    totals: dict[tuple[int, tuple[Any, ...]], tuple[int, int, str | None]] = {}
    for (start, values), sums in merged.items():
        named = dict(zip(query.group_by, values, strict=False))
        model = values[-1] if query.needs_model else named.get("line_item")
        for item, nano, quantity, unit in _parts(model, sums):
            if query.line_items is None or item in query.line_items:
                group = named | ({"line_item": item} if has_items else {})
                key = (start, tuple(group.items()))
                total = totals.get(key, (0, 0, unit))
                totals[key] = (total[0] + nano, total[1] + quantity, unit)
    for (start, items), (nano, quantity, unit) in totals.items():
        group = dict(items)
        yield (
            start,
            {
                "object": "organization.costs.result",
                "amount": {"value": float(Decimal(nano) / _NANO), "currency": "usd"},
                "quantity": quantity if has_items and unit else None,
                "quantity_unit": unit if has_items else None,
                **{name: group.get(name) for name in query.report.groups},
            },
        )


LINE_ITEMS: Final = {
    "input_tokens": ("input_cost_nano", "tokens"),
    "cached_input_tokens": ("cached_cost_nano", "tokens"),
    "output_tokens": ("output_cost_nano", "tokens"),
    "tools": ("tools_cost_nano", None),
}


def _parts(model: str | None, sums: Sums) -> Iterator[tuple[str | None, int, int, str | None]]:
    # Yields line item, cost in nano-dollars, quantity and unit. Without a model: one total.
    if model is None:
        yield None, sums["cost_nano"], 0, None
        return
    quantities = {
        "input_tokens": sums["input_tokens"] - sums["cached_tokens"],
        "cached_input_tokens": sums["cached_tokens"],
        "output_tokens": sums["output_tokens"],
    }
    rest = sums["cost_nano"]
    for part, (column, unit) in LINE_ITEMS.items():
        rest -= sums[column]
        if sums[column] or quantities.get(part):
            yield f"{model}, {part}", sums[column], quantities.get(part, 0), unit
    if rest:
        yield f"{model}, adjustments", rest, 0, None
