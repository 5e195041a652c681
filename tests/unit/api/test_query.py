"""Query parameters and their envelopes."""

from __future__ import annotations

import pytest
from starlette.datastructures import QueryParams

from gateway.api.query import boolean, choice, include_of, integer, page_query, values_of
from gateway.errors import InvalidRequest
from tests.fakes.cases import each


def test_absent_parameters_have_no_value() -> None:
    assert integer({}, "limit", minimum=1) is None
    assert choice({}, "order", ("asc",)) is None
    assert boolean({}, "stream") is False
    assert boolean({}, "include_obfuscation", default=True) is True


def test_a_list_comes_under_its_name_with_brackets_or_an_index() -> None:
    query = QueryParams("a[]=1&a=2&b[]=3&a[0]=4&a[x]=5&ab=6")
    assert values_of(query, "a") == ["1", "2", "4"]


def test_values_within_bounds_are_taken() -> None:
    assert integer({"limit": "7"}, "limit", minimum=1, maximum=100) == 7
    assert choice({"order": "asc"}, "order", ("asc", "desc")) == "asc"
    assert boolean({"stream": "true"}, "stream") is True
    assert boolean({"include_obfuscation": "false"}, "include_obfuscation", default=True) is False


@each(
    ("text", "code"),
    [
        ("x", "invalid_type"),
        ("", "invalid_type"),
        (" 7", "invalid_type"),
        ("+7", "invalid_type"),
        ("1_0", "invalid_type"),
        ("\N{ARABIC-INDIC DIGIT SEVEN}", "invalid_type"),
        ("7\n", "invalid_type"),
        ("9" * 5000, "invalid_type"),
        ("9" * 64, "integer_above_max_value"),
        ("-7", "integer_below_min_value"),
        ("0", "integer_below_min_value"),
        ("101", "integer_above_max_value"),
    ],
)
def test_a_bad_number_says_what_is_expected(text: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        integer({"limit": text}, "limit", minimum=1, maximum=100)
    assert (caught.value.code, caught.value.param) == (code, "limit")
    assert len(caught.value.message) < 220


@pytest.mark.parametrize("text", ["1", "TRUE", ""])
def test_booleans_are_words(text: str) -> None:
    with pytest.raises(InvalidRequest, match="Supported values are: 'true' and 'false'") as caught:
        boolean({"stream": text}, "stream")
    assert caught.value.code == "invalid_value"


@pytest.mark.parametrize("name", ["include", "include[]"])
def test_includes_are_those_of_the_api(name: str) -> None:
    known = (name, "reasoning.encrypted_content")
    assert include_of(QueryParams([])) == frozenset()
    assert include_of(QueryParams([known])) == {"reasoning.encrypted_content"}
    with pytest.raises(InvalidRequest) as caught:
        include_of(QueryParams([known, (name, "bogus")]))
    assert (caught.value.code, caught.value.param) == ("invalid_value", "include[1]")


def test_a_page_before_a_place_is_read_backwards_from_there() -> None:
    for order, backwards in (("asc", "desc"), ("desc", "asc")):
        page = page_query(QueryParams([("before", "b"), ("order", order)]))
        assert (page.cursor, page.cursor_name) == ("b", "before")
        assert page.order_from_cursor == backwards
        page = page_query(QueryParams([("after", "a"), ("order", order)]))
        assert (page.cursor, page.cursor_name) == ("a", "after")
        assert page.order_from_cursor == order
