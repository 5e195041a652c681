"""Pages of a list that is all at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from gateway.admin.routes import cut
from gateway.errors import InvalidRequest
from gateway.protocol.pages import PageParams
from tests.fakes.cases import each

if TYPE_CHECKING:
    from collections.abc import Iterator

ITEMS = [{"id": str(number)} for number in range(5)]
Order = Literal["asc", "desc"]


def forward(limit: int, order: Order) -> Iterator[list[str]]:
    after, has_more = None, True
    while has_more:
        page, has_more = cut(ITEMS, PageParams(limit, after=after, order=order))
        yield [one["id"] for one in page]
        after = page[-1]["id"]


def backward(limit: int, order: Order, before: str) -> Iterator[list[str]]:
    has_more = True
    while has_more:
        page, has_more = cut(ITEMS, PageParams(limit, before=before, order=order))
        yield [one["id"] for one in page]
        before = page[0]["id"]


@each("limit", range(1, 7))
@each(("order", "listed"), [("asc", "01234"), ("desc", "43210")])
def test_pages_are_the_whole_list_in_both_directions(order: Order, listed: str, limit: int) -> None:
    pages = list(forward(limit, order))
    assert "".join(map("".join, pages)) == listed
    assert all(len(one) == limit for one in pages[:-1])
    earlier = list(backward(limit, order, listed[-1]))
    assert "".join(map("".join, reversed(earlier))) == listed[:-1]


@pytest.mark.parametrize("place", [PageParams(1, after="7"), PageParams(1, before="7")])
def test_what_is_not_in_the_list_is_no_place_in_it(place: PageParams) -> None:
    with pytest.raises(InvalidRequest, match="no item of that id"):
        cut(ITEMS, place)
