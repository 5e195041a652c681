from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.usage import REPORTS, WIDTHS_S, Width, usage_query
from gateway.errors import InvalidRequest
from gateway.protocol.admin_bodies import SECOND_MAX
from tests.fakes.cases import each
from tests.unit.ledger.expected import refusal_of

NOW = 1_790_000_000


@pytest.mark.slow
@given(
    start=st.integers(0, 4 * 86_400),
    length=st.integers(1, 40 * 86_400),
    width=st.sampled_from(["1m", "1h", "1d"]),
    limit=st.integers(1, 31),
)
def test_pages_are_the_whole_span_bucket_by_bucket(
    start: int, length: int, width: Width, limit: int
) -> None:
    if WIDTHS_S[width] == 60:  # else there are thousands of pages
        length = min(length, 7_200)
    asked = {
        "start_time": str(start),
        "end_time": str(start + length),
        "bucket_width": width,
        "limit": str(limit),
    }
    edges, token = [start], None
    while True:
        given_ = [*asked.items(), *([("page", token)] if token else [])]
        query = usage_query("completions", given_, now=NOW)
        buckets = query.buckets()
        assert len(buckets) <= limit
        for begin, end in buckets:
            assert begin == edges[-1] < end
            # Only the first and the last bucket may be shorter than their width.
            assert begin % WIDTHS_S[width] == 0 or begin == start
            assert end % WIDTHS_S[width] == 0 or end == start + length
            edges.append(end)
        token = query.next_page
        if token is None:
            break
    assert edges[-1] == start + length


def test_without_an_end_it_is_now_on_every_page() -> None:
    asked = [("start_time", str(NOW - 20 * 86_400))]
    first = usage_query("completions", asked, now=NOW)
    assert first.end == NOW + 1
    assert first.next_page is not None
    later = usage_query("completions", [*asked, ("page", first.next_page)], now=NOW + 5_000)
    assert later.end == NOW + 1
    assert later.page_start == first.page_end


def test_an_end_in_the_future_is_taken_as_it_is() -> None:
    asked = [("start_time", str(NOW)), ("end_time", str(NOW + 3 * 86_400)), ("limit", "31")]
    assert usage_query("completions", asked, now=NOW).end == NOW + 3 * 86_400


def test_lists_come_with_brackets_or_without() -> None:
    asked = [
        ("start_time", "0"),
        *[("group_by[]", "model"), ("group_by", "project_id"), ("group_by[1]", "batch")],
        *[("project_ids[]", f"proj_{7:032x}"), ("project_ids[]", "somebody else's")],
        *[("models[]", "a"), ("models[]", "b\0"), ("batch", "false")],
        *[("group_by[]", "harmony.tag:team"), ("group_by[]", "harmony.end_user")],
    ]
    query = usage_query("completions", asked, now=NOW)
    assert query.group_by == ("model", "project_id", "batch")
    assert (query.tags, query.by_end_user, query.batch) == (("team",), True, False)
    assert query.project_ids is not None
    assert [one.int for one in query.project_ids] == [7]
    assert query.models == ("a",)


@each(
    ("report", "asked", "param"),
    [
        ("completions", {}, "start_time"),
        ("completions", {"start_time": "soon"}, "start_time"),
        ("completions", {"start_time": str(SECOND_MAX + 1)}, "start_time"),
        ("completions", {"start_time": "5", "end_time": "5"}, "end_time"),
        ("completions", {"start_time": "5", "bucket_width": "1w"}, "bucket_width"),
        ("costs", {"start_time": "5", "bucket_width": "1h"}, "bucket_width"),
        ("completions", {"start_time": "5", "limit": "32"}, "limit"),
        ("completions", {"start_time": "5", "limit": "169", "bucket_width": "1h"}, "limit"),
        ("completions", {"start_time": "5", "limit": "1441", "bucket_width": "1m"}, "limit"),
        ("costs", {"start_time": "5", "limit": "181"}, "limit"),
        ("completions", {"start_time": "5", "limit": "0"}, "limit"),
        ("completions", {"start_time": "5", "batch": "maybe"}, "batch"),
        ("completions", {"start_time": "5", "group_by[]": "line_item"}, "group_by"),
        ("costs", {"start_time": "5", "group_by[]": "harmony.end_user"}, "group_by"),
        ("completions", {"start_time": "5", "group_by[]": "harmony.tag:\0"}, "group_by"),
        ("completions", {"start_time": "5", "page": "2"}, "page"),
        ("completions", {"start_time": "5", "page": "page_é"}, "page"),
    ],
)
def test_what_is_beyond_a_bound_is_refused(report: str, asked: dict[str, str], param: str) -> None:
    assert refusal_of(report, list(asked.items())).param == param


def test_lists_have_a_bound() -> None:
    many = [("start_time", "5"), *[("models[]", "m")] * 101]
    assert refusal_of("completions", many).code == "array_above_max_length"
    tags = [("start_time", "5"), *[("group_by[]", f"harmony.tag:{n}") for n in range(6)]]
    assert refusal_of("completions", tags).code == "array_above_max_length"


def test_a_page_of_other_parameters_is_refused() -> None:
    asked = [("start_time", "0"), ("end_time", "9999999")]
    token = usage_query("completions", asked, now=NOW).next_page
    assert token is not None
    for other in ([("start_time", "1"), asked[1]], [*asked, ("models[]", "m")]):
        assert refusal_of("completions", [*other, ("page", token)]).param == "page"
    assert refusal_of("costs", [*asked, ("page", token)]).param == "page"


@given(st.binary(max_size=60))
def test_no_page_token_breaks_anything(junk: bytes) -> None:
    token = "page_" + base64.urlsafe_b64encode(junk).decode()
    with pytest.raises(InvalidRequest):
        usage_query("completions", [("start_time", "5"), ("page", token)], now=NOW)


def test_every_report_has_its_groups() -> None:
    for report, groups in ((name, one.groups) for name, one in REPORTS.items()):
        asked = [("start_time", "5"), *(("group_by[]", name) for name in groups)]
        assert usage_query(report, asked, now=NOW).group_by == groups
