"""Query parameters, typed, with the same envelopes as body parameters; JSON answers and lists."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
from starlette.responses import Response

from gateway.errors import InvalidRequest, shown
from gateway.protocol.documented import INCLUDE_VALUES
from gateway.protocol.pages import Order, PageParams
from gateway.protocol.request_errors import mutually_exclusive, wrong_value
from gateway.protocol.responses.create_request import TOKEN_ID_VALUES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from starlette.datastructures import QueryParams

Word = TypeVar("Word", bound=str)

PAGE_ITEMS_MAX: Final = 100
PAGE_ITEMS_DEFAULT: Final = 20
ORDERS: Final[tuple[Order, ...]] = ("asc", "desc")
_INCLUDE_VALUES: Final = (*INCLUDE_VALUES, *TOKEN_ID_VALUES)
_INTEGER: Final = re.compile(r"-?[0-9]{1,1000}")
"""Less than `int` reads: no spaces, underscores or digits of other scripts, and not without end."""
_INDEX: Final = re.compile(r"\[[0-9]+\]\Z")


def integer(
    query: Mapping[str, str], name: str, *, minimum: int, maximum: int | None = None
) -> int | None:
    """Return the integer `name`, None if absent. Raises `InvalidRequest`."""
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
        raise _out_of_bounds(name, "below minimum", f">= {minimum}", text)
    if maximum is not None and value > maximum:
        raise _out_of_bounds(name, "above maximum", f"<= {maximum}", text)
    return value


def boolean(query: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Return True if `name` is `true`, `default` if absent.

    Raises `InvalidRequest` for words other than `true` and `false`.
    """
    word = choice(query, name, ("true", "false"))
    return default if word is None else word == "true"


def choice(query: Mapping[str, str], name: str, values: Sequence[Word]) -> Word | None:
    """Return the one of `values` under `name`, None if absent. Raises `InvalidRequest`."""
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
    """Return the name of a parameter, with `name[0]` written as `name[]`."""
    return _INDEX.sub("[]", name)


def values_of(query: QueryParams, name: str) -> list[str]:
    """Return the values of a list parameter, in their order."""
    names = several(name)
    return [value for key, value in query.multi_items() if without_index(key) in names]


def include_of(query: QueryParams) -> frozenset[str]:
    """Parse `include[]`: further details of items to show.

    Some values that the API knows add nothing here (`protocol.items` has those that
    do). Raises `InvalidRequest` for an unknown value.
    """
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
    """Parse the page that a query asks for, with these defaults. Raises `InvalidRequest`."""
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
    """Return the list object of a page; an empty one has no ids."""
    listed = list(items)
    return {
        "object": "list",
        "data": listed,
        "first_id": listed[0]["id"] if listed else None,
        "last_id": listed[-1]["id"] if listed else None,
        "has_more": has_more,
    }


def _out_of_bounds(name: str, side: str, expected: str, text: str) -> InvalidRequest:
    bound = "below_min" if side.startswith("below") else "above_max"
    return InvalidRequest(
        f"Invalid '{name}': integer {side} value. Expected a value {expected}, "
        f"but got {shown(text)} instead.",
        code=f"integer_{bound}_value",
        param=name,
    )
