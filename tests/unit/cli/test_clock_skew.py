"""How far another clock is ahead, by the Date header that it wrote."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime

import pytest

from gateway.cli.deployment_checks import date_skew_s

AHEAD_S = 3600.0


@pytest.mark.parametrize("zone", ["GMT", "-0000", "+0100"])
def test_the_skew_is_told_whatever_the_zone_is_called(zone: str) -> None:
    then = datetime.now(timezone(timedelta(hours=1)) if zone == "+0100" else UTC)
    date = format_datetime(then + timedelta(seconds=AHEAD_S)).replace("+0000", zone)
    skew_s = date_skew_s(date)
    assert skew_s is not None
    assert abs(skew_s - AHEAD_S) < AHEAD_S / 2


@pytest.mark.parametrize(
    "date",
    [
        None,
        "",
        "yesterday",
        "Mon, 99 Nov 2026 25:61:00 GMT",
        f"Mon, 30 Nov 2026 18:00:00 +{'9' * 30}",
    ],
)
def test_a_header_that_is_no_date_tells_nothing(date: str | None) -> None:
    assert date_skew_s(date) is None
