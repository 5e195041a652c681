"""Parse the queries of `GET /v1/organization/usage/*` and `/costs`.

The parameters and their bounds are those of OpenAI's reference; a value beyond a bound is refused,
not cut. Times are Unix seconds. Buckets begin at full minutes, hours or days of UTC; the first and
the last one begin and end with the query. An end in the future is taken as it is.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from gateway import ids
from gateway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

Report = Literal[
    "completions",
    "embeddings",
    "web_search_calls",
    "code_interpreter_sessions",
    "costs",
    "moderations",
    "images",
    "audio_speeches",
    "audio_transcriptions",
    "vector_stores",
    "file_search_calls",
    "decisions",
]
"""What is asked for: the last part of the path."""
Width = Literal["1m", "1h", "1d"]
WIDTHS_S: Final[dict[Width, int]] = {"1m": 60, "1h": 3600, "1d": 86_400}
_DEFAULTS: Final[dict[Width, int]] = {"1m": 60, "1h": 24, "1d": 7}
_MOST: Final[dict[Width, int]] = {"1m": 1440, "1h": 168, "1d": 31}
COST_BUCKETS_MAX: Final = 180
VALUES_MAX: Final = 100
"""Of one filter."""
TIME_MAX: Final = 253_402_300_799
"""The end of the year 9999, in Unix seconds."""

_KEYED: Final = ("project_id", "user_id", "api_key_id")
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "completions": (*_KEYED, "model", "batch", "service_tier", "api_source"),
    "decisions": (*_KEYED, "model", "batch", "service_tier", "api_source"),
    "embeddings": (*_KEYED, "model"),
    "moderations": (*_KEYED, "model"),
    "images": (*_KEYED, "model", "size", "source"),
    "audio_speeches": (*_KEYED, "model"),
    "audio_transcriptions": (*_KEYED, "model"),
    "vector_stores": ("project_id",),
    "code_interpreter_sessions": ("project_id",),
    "file_search_calls": (*_KEYED, "vector_store_id"),
    "web_search_calls": (*_KEYED, "model", "context_level", "api_source"),
    "costs": ("project_id", "user_id", "line_item", "api_key_id", "api_source"),
}
"""What each may be grouped by."""
_LISTS: Final = ("group_by", "project_ids", "user_ids", "api_key_ids", "models")
_OWN_LISTS: Final[Mapping[str, tuple[str, ...]]] = {
    "costs": ("line_items",),
    "web_search_calls": ("context_levels",),
    "images": ("sizes", "sources"),
    "file_search_calls": ("vector_store_ids",),
}
END_USER: Final = "harmony.end_user"
TAG_PREFIX: Final = "harmony.tag:"
_OF_PEOPLE: Final = ("completions", "embeddings")
"""Reports that may also be grouped by end user and by tag."""
_TAG: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
TAGS_MAX: Final = 5
_INTEGER: Final = re.compile(r"[0-9]{1,15}")
_PREFIX: Final = "page_"
_SHOWN_CHARS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """Query of `start` <= time < `end`; this page has the buckets from `page_start` to `page_end`.

    `group_by` are names of `GROUPS`; `tags` and `by_end_user` are groups beside these. A filter
    that is None is absent; an empty one lets nothing pass, nor does `by_context_level`: the context
    level of a search is not known here.
    """

    report: Report
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
    batch: bool | None = None
    by_context_level: bool = False
    digest: str = field(default="", repr=False)

    @property
    def next_page(self) -> str | None:
        """Return the token of the next page; None for the last."""
        if self.page_end >= self.end:
            return None
        packed = orjson.dumps([self.page_end, self.end, self.digest])
        return _PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")

    def buckets(self) -> list[tuple[int, int]]:
        """Return start and end of every bucket of this page."""
        width = WIDTHS_S[self.width]
        edges = range(self.page_start - self.page_start % width + width, self.page_end, width)
        cuts = [self.page_start, *edges, self.page_end]
        return list(itertools.pairwise(cuts))

    def bucket_of(self, at: int) -> int:
        # `at` is a full unit of time, which may begin before the page.
        return max(at, self.page_start)


def lists_of(report: Report) -> tuple[str, ...]:
    """Return the report's parameters that may have several values."""
    return (*_LISTS, *_OWN_LISTS.get(report, ()))


def usage_query(report: Report, given: Sequence[tuple[str, str]], *, now: int) -> UsageQuery:
    """Parse the query parameters of a report at `now`. Raises `InvalidRequest`."""
    lists = _Parameters(given)
    width = _width(report, lists)
    start = lists.integer("start_time", least=0, most=TIME_MAX)
    if start is None:
        raise InvalidRequest(
            "Missing required parameter: 'start_time', in Unix seconds.",
            code="missing_required_parameter",
            param="start_time",
        )
    limit = _limit(report, width, lists)
    groups, tags, by_end_user = _groups(report, lists)
    asked_end = lists.integer("end_time", least=0, most=TIME_MAX)
    fields: dict[str, Any] = {
        "width": width,
        "group_by": groups,
        "tags": tags,
        "by_end_user": by_end_user,
        "project_ids": lists.ids("project_ids", ids.parse_project_id),
        "api_key_ids": lists.ids("api_key_ids", ids.parse_api_key_id),
        "user_ids": lists.ids("user_ids", ids.parse_user_id),
        "models": lists.several("models"),
        "line_items": lists.several("line_items") if report == "costs" else None,
        "batch": lists.boolean("batch"),
        "by_context_level": lists.all("context_levels") is not None,
    }
    digest = hashlib.sha256(
        orjson.dumps([report, start, asked_end, fields], default=str)
    ).hexdigest()[:16]
    page_start, end = _page(lists.one("page"), digest) or (start, asked_end)
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
        report=report,
        start=start,
        end=end,
        page_start=page_start,
        page_end=page_end,
        digest=digest,
        **fields,
    )


class _Parameters:
    """Parameters of a query, by name; each may come several times, with or without brackets."""

    def __init__(self, given: Sequence[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in given:
            plain = re.sub(r"\[[0-9]*\]\Z", "", name)
            self._values.setdefault(plain, []).append(value)

    def one(self, name: str) -> str | None:
        values = self._values.get(name)
        return values[-1] if values else None

    def several(self, name: str) -> tuple[str, ...] | None:
        values = self.all(name)
        # PostgreSQL takes no such text; so nothing is called that.
        return None if values is None else tuple(filter(_is_text, values))

    def all(self, name: str) -> list[str] | None:
        values = self._values.get(name)
        if values is not None and len(values) > VALUES_MAX:
            raise InvalidRequest(
                f"'{name}' has {len(values)} values; it may have {VALUES_MAX}.",
                code="array_above_max_length",
                param=name,
            )
        return values

    def ids(self, name: str, parse: Any) -> tuple[UUID, ...] | None:
        """Parse a list of ids, without invalid ones, which match nothing."""
        values = self.several(name)
        if values is None:
            return None
        return tuple(found for value in values if (found := parse(value)) is not None)

    def integer(self, name: str, *, least: int, most: int) -> int | None:
        text = self.one(name)
        if text is None:
            return None
        if not _INTEGER.fullmatch(text):
            raise InvalidRequest(
                f"Invalid type for '{name}': expected an integer, but got '{_shown(text)}'.",
                code="invalid_type",
                param=name,
            )
        if not least <= int(text) <= most:
            raise InvalidRequest(
                f"Invalid '{name}': it must be from {least} to {most}, but is {int(text)}.",
                code="integer_out_of_range",
                param=name,
            )
        return int(text)

    def boolean(self, name: str) -> bool | None:
        text = self.one(name)
        if text not in {None, "true", "false"}:
            raise _not_among(name, str(text), ("true", "false"))
        return None if text is None else text == "true"


def _width(report: Report, lists: _Parameters) -> Width:
    text = lists.one("bucket_width") or "1d"
    among: tuple[Width, ...] = ("1d",) if report == "costs" else ("1m", "1h", "1d")
    for width in among:
        if width == text:
            return width
    raise _not_among("bucket_width", text, among)


def _limit(report: Report, width: Width, lists: _Parameters) -> int:
    most = COST_BUCKETS_MAX if report == "costs" else _MOST[width]
    limit = lists.integer("limit", least=1, most=most)
    return _DEFAULTS[width] if limit is None else limit


def _groups(report: Report, lists: _Parameters) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    known, tags, by_end_user = [], [], False
    for name in dict.fromkeys(lists.all("group_by") or ()):
        is_own = report in _OF_PEOPLE
        if is_own and name == END_USER:
            by_end_user = True
        elif is_own and name.startswith(TAG_PREFIX) and _TAG.fullmatch(name[len(TAG_PREFIX) :]):
            tags.append(name[len(TAG_PREFIX) :])
        elif name in GROUPS[report]:
            known.append(name)
        else:
            raise _not_among("group_by", name, GROUPS[report])
    if len(tags) > TAGS_MAX:
        raise InvalidRequest(
            f"'group_by' has {len(tags)} tags; it may have {TAGS_MAX}.",
            code="array_above_max_length",
            param="group_by",
        )
    return tuple(known), tuple(tags), by_end_user


def _page(token: str | None, digest: str) -> tuple[int, int] | None:
    # The start of the page and the end of the query; None for the first page.
    if not token:
        return None
    match _unpacked(token):
        case [int(page_start), int(end), of] if (
            of == digest and 0 <= page_start <= end <= TIME_MAX + 1
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


def _not_among(name: str, text: str, among: Sequence[str]) -> InvalidRequest:
    listed = ", ".join(f"'{one}'" for one in among)
    return InvalidRequest(
        f"Invalid value: '{_shown(text)}'. Supported values are: {listed}.",
        code="invalid_value",
        param=name,
    )


def _shown(text: str) -> str:
    return text[:_SHOWN_CHARS_MAX].encode("utf-8", "replace").decode()


def _is_text(value: str) -> bool:
    return "\0" not in value and value.isprintable()
