"""Typed query parameters and lists, with the error envelopes of body parameters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
from starlette.responses import Response

from gateway.errors import InvalidRequest, shown
from gateway.protocol.documented import INCLUDE_VALUES
from gateway.protocol.pages import Order, PageParams
from gateway.protocol.request_errors import mutually_exclusive, number_out_of_range, wrong_value
from gateway.protocol.responses.create_request import TOKEN_ID_VALUES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from starlette.datastructures import QueryParams

Word = TypeVar("Word", bound=str)

PAGE_ITEMS_MAX: Final = 100
PAGE_ITEMS_DEFAULT: Final = 20
ORDERS: Final[tuple[Order, ...]] = ("asc", "desc")
_INCLUDE_VALUES: Final = (*INCLUDE_VALUES, *TOKEN_ID_VALUES)
_INTEGER: Final = re.compile(r"-?[0-9]{1,64}")
"""Narrower than `int`: bounded, and without spaces, underscores or digits of other scripts."""
_INDEX: Final = re.compile(r"\[[0-9]+\]\Z")


def integer(
    query: Mapping[str, str], name: str, *, minimum: int, maximum: int | None = None
) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not _INTEGER.fullmatch(text):
        raise InvalidRequest(
            f"Invalid type for '{name}': expected an integer, but got '{shown(text)}' instead.",
            code="invalid_type",
            param=name,
        )
    value = int(text)
    if value < minimum:
        raise number_out_of_range(name, value, bound=minimum, above=False)
    if maximum is not None and value > maximum:
        raise number_out_of_range(name, value, bound=maximum, above=True)
    return value


def boolean(query: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    word = choice(query, name, ("true", "false"))
    return default if word is None else word == "true"


def choice(query: Mapping[str, str], name: str, values: Sequence[Word]) -> Word | None:
    text = query.get(name)
    if text is None:
        return None
    for value in values:
        if value == text:
            return value
    raise wrong_value(name, text, values)


def several(name: str) -> tuple[str, str]:
    """Return both names of a list parameter: SDKs write `name[]`."""
    return name, f"{name}[]"


def without_index(name: str) -> str:
    """Replace `name[0]` by `name[]`."""
    return _INDEX.sub("[]", name)


def values_of(query: QueryParams, name: str) -> list[str]:
    names = several(name)
    return [value for key, value in query.multi_items() if without_index(key) in names]


def include_of(query: QueryParams) -> frozenset[str]:
    """Parse `include[]`. Some valid values add nothing here; `protocol.items` has those that do."""
    values = values_of(query, "include")
    for index, value in enumerate(values):
        if value not in _INCLUDE_VALUES:
            raise wrong_value(f"include[{index}]", value, _INCLUDE_VALUES)
    return frozenset(values)


def page_query(
    query: QueryParams,
    *,
    limit: int = PAGE_ITEMS_DEFAULT,
    limit_max: int = PAGE_ITEMS_MAX,
    order: Order = "desc",
) -> PageParams:
    after, before = query.get("after") or None, query.get("before") or None
    if after is not None and before is not None:
        raise mutually_exclusive("after", "before", param="before")
    return PageParams(
        integer(query, "limit", minimum=1, maximum=limit_max) or limit,
        after,
        before,
        order=choice(query, "order", ORDERS) or order,
    )


def json_response(body: object, *, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


def list_body(items: Iterable[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    listed = list(items)
    return {
        "object": "list",
        "data": listed,
        "first_id": listed[0]["id"] if listed else None,
        "last_id": listed[-1]["id"] if listed else None,
        "has_more": has_more,
    }
