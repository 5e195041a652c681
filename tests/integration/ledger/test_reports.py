"""Whatever span is asked for, whatever has been summed up: buckets have what their lines have."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from gateway import ids
from gateway.admin.usage import WIDTHS_S, UsageReports, usage_query
from gateway.retention.sweep import remove_expired
from gateway.settings.sections import Ledger
from gateway.store import usage_lines
from gateway.store.ledger import rollup
from tests.fakes.usage_lines import PROJECTS, random_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.store.postgres.database import Database
    from gateway.store.usage_lines import UsageLine
    from gateway.tenancy import TenantId

DAY_S = 86_400
HOURS_S = 4 * DAY_S
MINUTES_S = DAY_S
SPAN_S = 9 * DAY_S
KEEP = Ledger.model_construct(
    lines_s=400 * DAY_S,
    minutes_s=MINUTES_S,
    hours_s=HOURS_S,
    days_s=400 * DAY_S,
    end_user_days_s=DAY_S,
)
FIGURES = {"input_tokens": "input_tokens", "output_tokens": "output_tokens"}


async def whole(
    reports: UsageReports, tenant: TenantId, asked: dict[str, str]
) -> list[dict[str, Any]]:
    """All buckets, page by page."""
    buckets, token = [], ""
    while True:
        given = [*asked.items(), *([("page", token)] if token else [])]
        page = await reports.page(tenant, usage_query("completions", given, now=int(time.time())))
        buckets += page["data"]
        token = page["next_page"]
        if not page["has_more"]:
            assert token is None
            return buckets


def expected(lines: Sequence[UsageLine], bucket: dict[str, Any]) -> Counter[Any]:
    sums: Counter[Any] = Counter()
    for one in lines:
        if bucket["start_time"] <= one.at.timestamp() < bucket["end_time"]:
            sums[one.model, "num_model_requests"] += 1
            for name, counted in FIGURES.items():
                sums[one.model, name] += getattr(one.tokens, counted)
    return sums


def told(bucket: dict[str, Any]) -> Counter[Any]:
    sums: Counter[Any] = Counter()
    for result in bucket["results"]:
        for name in ("num_model_requests", *FIGURES):
            sums[result["model"], name] += result[name]
    return sums


@pytest.mark.slow
async def test_any_span_in_any_width_has_what_its_lines_have(
    database: Database, tenant: TenantId
) -> None:
    chance = random.Random(18)
    now = int(time.time())
    begin = now - SPAN_S
    reports = UsageReports(database, KEEP, rows_max=20_000)
    lines: list[UsageLine] = []
    for _ in range(4):
        some = [
            random_line(chance, start=datetime.fromtimestamp(begin, UTC), span_s=SPAN_S)
            for _ in range(60)
        ]
        await usage_lines.record_all(database, [(tenant, one) for one in some])
        lines += some
        if chance.random() < 0.8:
            await rollup.advance(database, minutes_s=MINUTES_S)
            await remove_expired(database, KEEP, rows_max=50)
        for width, span_s in (("1d", SPAN_S), ("1h", 3 * DAY_S), ("1m", 7_200)) * 3:
            start = begin + chance.randrange(SPAN_S)
            end = start + chance.randrange(1, span_s)
            asked = {
                "start_time": str(start),
                "end_time": str(end),
                "bucket_width": width,
                "limit": str(chance.choice((5, 24))),
                "group_by[]": "model",
            }
            buckets = await whole(reports, tenant, asked)
            edges = [(one["start_time"], one["end_time"]) for one in buckets]
            assert (edges[0][0], edges[-1][1]) == (start, end)
            assert all(one[1] == two[0] for one, two in itertools.pairwise(edges))
            assert all(at % WIDTHS_S[width] == 0 for at, _ in edges[1:])  # type: ignore[index]
            for bucket in buckets:
                assert told(bucket) == expected(lines, bucket), (asked, bucket)
    of_project = await whole(
        reports,
        tenant,
        {"start_time": str(begin), "limit": "31", "project_ids[]": ids.project_id(PROJECTS[-1])},
    )
    own = sum(one.project_id == PROJECTS[-1] for one in lines)
    assert sum(one["num_model_requests"] for day in of_project for one in day["results"]) == own
