"""What bodies of rate limits say."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.admin.limits import UNLIMITED, KeyLimits, RateLimitUpdate
from gateway.errors import InvalidRequest
from gateway.protocol.request_errors import validated
from tests.fakes.cases import each

DAILY = ("tokens", 86_400)


@each(
    ("body", "values"),
    [
        ({}, {}),
        ({"max_requests_per_1_minute": 5}, {("requests", 60): 5}),
        ({"max_requests_per_1_minute": None}, {("requests", 60): None}),
        ({"max_requests_per_1_minute": 0}, {("requests", 60): 0}),
        ({"max_requests_per_1_minute": UNLIMITED - 1}, {("requests", 60): UNLIMITED - 1}),
        ({"max_requests_per_1_minute": UNLIMITED}, {("requests", 60): None}),
        ({"max_requests_per_1_day": UNLIMITED + 1}, {("requests", 86_400): None}),
        ({"harmony": {"max_tokens_per_1_day": None}}, {DAILY: None}),
        ({"harmony": {"max_tokens_per_1_day": UNLIMITED}}, {DAILY: UNLIMITED}),
        ({"harmony": None, "max_images_per_1_minute": None}, {}),
    ],
)
def test_a_limit_is_taken_away_by_null_and_by_what_means_none(
    body: dict[str, Any], values: object
) -> None:
    assert validated(RateLimitUpdate, body).values == values


@pytest.mark.parametrize(
    ("harmony", "mode"),
    [
        (None, None),
        ({}, None),
        ({"mode": None}, None),
        *[({"mode": one}, one) for one in ("enforce", "observe")],
    ],
)
def test_a_mode_that_is_left_out_stays(harmony: object, mode: str | None) -> None:
    assert validated(RateLimitUpdate, {"harmony": harmony}).mode == mode


def test_what_is_not_limited_here_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="max_images_per_1_minute"):
        _ = validated(RateLimitUpdate, {"max_images_per_1_minute": 1}).values


def test_limits_of_a_new_key_are_those_that_are_numbers() -> None:
    given = {
        "max_requests_per_1_minute": 5,
        "max_tokens_per_1_minute": UNLIMITED,
        "max_tokens_per_1_day": None,
    }
    assert validated(KeyLimits, given).values == {("requests", 60): 5}
