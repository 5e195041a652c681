"""Search engines, over HTTP or MCP, and the local index.

SearXNG    https://docs.searxng.org/dev/search_api.html
Brave      https://api-dashboard.search.brave.com/api-reference/web/search/get
Exa        https://docs.exa.ai/reference/search
Tavily     https://docs.tavily.com/api-reference/endpoint/search
You.com    https://you.com/docs/guides/search/request-controls
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, get_args
from urllib.parse import urlsplit

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import override

from gateway.errors import StoreError
from gateway.fair_queue import FairSlots
from gateway.protocol.grants import EVERY_DOMAIN, DomainRules, is_within
from gateway.store.tools import web_pages
from gateway.telemetry.logs import EventLog
from gateway.tools.browser.page import plain
from gateway.tools.egress.network_policy import URL_CHARS_MAX, EgressRefused
from gateway.tools.egress.transport import EGRESS_ERRORS, StatusError, normalised

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics
    from gateway.tenancy import TenantId
    from gateway.tools.egress.transport import EgressClient


SNIPPET_CHARS_MAX: Final = 1000
TITLE_CHARS_MAX: Final = 300
DATE_CHARS_MAX: Final = 40
PARAGRAPHS_MAX: Final = 100
_PARAGRAPHS: Final = re.compile(r"\n(?:[ \t-]*\n)+")
_URL: Final = re.compile(r"https?://[^\s<>()\[\]\"'`]{1,2000}")
_TITLE: Final = re.compile(
    r"^\W{0,9}title\W{0,9}:\W{0,9}([^\n]{1,300})", re.IGNORECASE | re.MULTILINE
)
_LINK: Final = re.compile(r"\[([^\]\n]{1,300})\]\(")


@dataclass(frozen=True, slots=True)
class Query:
    """Search. `domains` include their subdomains; empty means all. `country` is an ISO 3166 alpha-2
    code.
    """

    text: str
    count: int = 10
    domains: tuple[str, ...] = ()
    country: str | None = None
    rules: DomainRules = EVERY_DOMAIN


@dataclass(frozen=True, slots=True)
class Hit:
    """Page that was found. `published` is in the provider's words."""

    url: str
    title: str
    snippet: str
    published: str | None = None


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """Request of a provider. `json` None: a GET with `params`."""

    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Mapping[str, Any] | None = None


class BadAnswer(ValueError):
    """Answer that is not as the provider documents it."""


AnswerT = TypeVar("AnswerT", bound=BaseModel)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Result(_Answer):
    url: str
    title: str | None = None
    content: str | None = None
    description: str | None = None
    snippet: str | None = None
    summary: str | None = None
    text: str | None = None
    snippets: tuple[str, ...] = ()
    highlights: tuple[str, ...] = ()
    extra_snippets: tuple[str, ...] = ()
    published: str | None = Field(None, alias="publishedDate")
    published_date: str | None = None
    page_age: str | None = None
    age: str | None = None

    def hit(self) -> Hit:
        words = (
            self.content,
            self.description,
            self.snippet,
            self.summary,
            *self.highlights,
            *self.snippets,
            *self.extra_snippets,
        )
        snippet = " … ".join(dict.fromkeys(filter(None, words))) or self.text or ""
        when = self.published or self.published_date or self.page_age or self.age or ""
        published = " ".join(plain(when).split())[:DATE_CHARS_MAX] or None
        title = plain(self.title or self.url)[:TITLE_CHARS_MAX]
        return Hit(
            self.url.encode("utf-8", "replace").decode(),
            title,
            plain(snippet)[:SNIPPET_CHARS_MAX],
            published,
        )


class _Results(_Answer):
    results: tuple[object, ...] = ()


class _BraveAnswer(_Answer):
    web: _Results = _Results()


class _YouResults(_Answer):
    web: tuple[object, ...] = ()
    news: tuple[object, ...] = ()


class _YouAnswer(_Answer):
    results: _YouResults = _YouResults()


class Provider(Protocol):
    """Search engine. `base_url` has no slash at the end."""

    @property
    def base_url(self) -> str: ...

    def request(self, query: Query) -> SearchRequest: ...

    def hits(self, answer: bytes) -> list[Hit]:
        """Parse the hits, best first. Raises `BadAnswer`."""
        return _hits(_parse(_Results, answer).results)


@dataclass(frozen=True, slots=True)
class SearXNG(Provider):
    """Instance that allows `format=json`. `api_key` is for a proxy in front of it."""

    base_url: str
    api_key: str = ""

    @override
    def request(self, query: Query) -> SearchRequest:
        params = {"q": _with_sites(query), "format": "json", "safesearch": "1"}
        headers = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return SearchRequest("/search", params, headers)


@dataclass(frozen=True, slots=True)
class Brave(Provider):
    api_key: str
    base_url: str = "https://api.search.brave.com"

    @override
    def request(self, query: Query) -> SearchRequest:
        params = {
            "q": _with_sites(query, chars_max=400, words_max=50),
            "count": str(min(query.count, 20)),
            "result_filter": "web",
            "text_decorations": "false",
        }
        if query.country:
            params["country"] = query.country
        return SearchRequest("/res/v1/web/search", params, {"x-subscription-token": self.api_key})

    @override
    def hits(self, answer: bytes) -> list[Hit]:
        return _hits(_parse(_BraveAnswer, answer).web.results)


@dataclass(frozen=True, slots=True)
class Exa(Provider):
    api_key: str
    base_url: str = "https://api.exa.ai"

    @override
    def request(self, query: Query) -> SearchRequest:
        body: dict[str, Any] = {
            "query": query.text,
            "numResults": query.count,
            "contents": {"highlights": True},
        }
        if query.domains:
            body["includeDomains"] = list(query.domains)
        if query.country:
            body["userLocation"] = query.country
        return SearchRequest("/search", headers={"x-api-key": self.api_key}, json=body)


@dataclass(frozen=True, slots=True)
class Tavily(Provider):
    api_key: str
    base_url: str = "https://api.tavily.com"

    @override
    def request(self, query: Query) -> SearchRequest:
        body: dict[str, Any] = {
            "query": _shorten(query.text, chars_max=400),
            "max_results": min(query.count, 20),
            "include_answer": False,
        }
        if query.domains:
            body["include_domains"] = list(query.domains)
        headers = {"authorization": f"Bearer {self.api_key}"}
        return SearchRequest("/search", headers=headers, json=body)


@dataclass(frozen=True, slots=True)
class YouCom(Provider):
    api_key: str
    base_url: str = "https://ydc-index.io"

    @override
    def request(self, query: Query) -> SearchRequest:
        body: dict[str, Any] = {"query": query.text, "count": query.count}
        if query.domains:
            body["include_domains"] = list(query.domains)
        if query.country:
            body["country"] = query.country
        return SearchRequest("/v1/search", headers={"x-api-key": self.api_key}, json=body)

    @override
    def hits(self, answer: bytes) -> list[Hit]:
        results = _parse(_YouAnswer, answer).results
        return _hits((*results.web, *results.news))


def hits_of_tool(answer: str) -> list[Hit]:
    """Parse the hits in an MCP tool's result: `results` or a list, of objects with a `url`; or text
    whose paragraphs have a URL each. Raises `BadAnswer`.
    """
    try:
        decoded = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return _hits(_paragraphs(answer))
    try:
        results = {"results": decoded} if isinstance(decoded, list) else decoded
        return _hits(_Results.model_validate(results).results)
    except ValidationError as error:
        raise BadAnswer(_first(error)) from None


def _paragraphs(text: str) -> Iterator[_Result]:
    # Each result is a paragraph that contains its URL.
    for paragraph in _PARAGRAPHS.split(text)[:PARAGRAPHS_MAX]:
        if (url := _URL.search(paragraph)) is None:
            continue
        named = _TITLE.search(paragraph) or _LINK.search(paragraph)
        first = paragraph.strip().partition("\n")[0].strip(" #*-")
        title = named[1] if named else first
        rest = paragraph.replace(url[0], "")
        yield _Result(url=url[0], title=title, content=" ".join(rest.split()))


def _with_sites(query: Query, *, chars_max: int = 2000, words_max: int = 200) -> str:
    # For engines that know domains only as words of the query. Too many of them are left out: hits
    # of other domains are filtered anyway.
    sites = " OR ".join(f"site:{domain}" for domain in query.domains)
    sites = f"({sites})" if len(query.domains) > 1 else sites
    if len(sites) > chars_max // 2 or len(sites.split()) > words_max // 2:
        sites = ""
    left = words_max - len(sites.split())
    text = _shorten(query.text, chars_max=chars_max - len(sites) - 1, words_max=left)
    return f"{text} {sites}".strip()


def _shorten(text: str, *, chars_max: int, words_max: int = 200) -> str:
    # Engines bound the words and characters of a query.
    words = " ".join(text.split()[:words_max])
    return (
        words
        if len(words) <= chars_max
        else words[:chars_max].rpartition(" ")[0] or words[:chars_max]
    )


def _hits(results: Iterable[object]) -> list[Hit]:
    # Each page once, in order. Engines put answers and tables without a URL among their results:
    # those are left out. Raises `BadAnswer` where no result is valid.
    hits: dict[str, Hit] = {}
    fault: ValidationError | None = None
    for result in results:
        try:
            page = _Result.model_validate(result)
        except ValidationError as error:
            fault = fault or error
            continue
        hits.setdefault(page.url, page.hit())
    if fault is not None and not hits:
        raise BadAnswer(_first(fault))
    return list(hits.values())


def _parse(model: type[AnswerT], answer: bytes) -> AnswerT:
    try:
        return model.model_validate_json(answer)
    except ValidationError as error:
        raise BadAnswer(_first(error)) from None


def _first(error: ValidationError) -> str:
    # Without the invalid value, which may be anything.
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


Cause = Literal["credentials", "busy", "error", "timeout"]

RETRY_AFTER_MAX_S: Final = 2.0
"""A source that asks for a longer pause is passed over."""
_HIT_SCHEMES: Final = frozenset({"http", "https"})
_BUSY: Final = 429
_CREDENTIALS: Final = frozenset({401, 402, 403})
_OF_QUERY: Final = frozenset({400, 422})
"""The source refuses the query, as for an unknown country."""

_log = EventLog(__name__)


class SearchFailed(Exception):
    """Failure of all sources. The message is for the model."""


class SourceFailed(Exception):
    """Failure for operators. `is_of_query`: another query may succeed."""

    def __init__(self, cause: Cause, message: str, *, is_of_query: bool = False) -> None:
        super().__init__(message)
        self.cause: Cause = cause
        self.is_of_query = is_of_query


class SearchSource(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def is_live(self) -> bool:
        """Return True if queries go to an outside service."""
        ...

    async def find(self, query: Query, tenant_id: TenantId) -> Sequence[Hit]:
        """Return the hits, best first. Raises `SourceFailed`."""
        ...


@dataclass(frozen=True, slots=True)
class HttpSource:
    provider: Provider
    http: EgressClient
    name: str
    is_live: bool = True

    async def find(self, query: Query, tenant_id: TenantId) -> Sequence[Hit]:  # noqa: ARG002
        try:
            return self.provider.hits(await self._answer(query))
        except StatusError as error:
            status = error.response.status_code
            cause: Cause = "busy" if status == _BUSY else "error"
            cause = "credentials" if status in _CREDENTIALS else cause
            is_of_query = status in _OF_QUERY
            raise SourceFailed(cause, f"it answered {status}", is_of_query=is_of_query) from error
        except (*EGRESS_ERRORS, EgressRefused) as error:
            raise SourceFailed("error", str(error) or type(error).__name__) from error

    async def _answer(self, query: Query) -> bytes:
        spec = self.provider.request(query)
        url = self.provider.base_url + spec.path
        request = self.http.build_request(
            "GET" if spec.json is None else "POST",
            url,
            params=spec.params or None,
            headers=spec.headers,
            json=spec.json,
        )
        answer = await self.http.send(request)
        pause = answer.headers.get("retry-after", "")
        is_busy = answer.status_code == _BUSY and pause.isdecimal()
        if is_busy and float(pause) <= RETRY_AFTER_MAX_S:  # `int` refuses thousands of digits
            await asyncio.sleep(float(pause))
            answer = await self.http.send(request)
        answer.raise_for_status()
        return answer.content


@dataclass(frozen=True, slots=True)
class IndexSource:
    """Local index. `language` is its text search configuration."""

    database: Database
    language: str
    name: str = "index"
    is_live: bool = False

    async def find(self, query: Query, tenant_id: TenantId) -> Sequence[Hit]:
        try:
            documents = await web_pages.search_documents(
                self.database, tenant_id, query.text,
                domains=DomainRules(query.domains, query.rules.denied), count=query.count,
                language=self.language,
            )  # fmt: skip
        except StoreError as error:
            raise SourceFailed("error", str(error)) from error
        return [
            Hit(one.url, one.title, one.snippet, one.added_at.date().isoformat())
            for one in documents
            if query.rules.permits(urlsplit(one.url).hostname or "")
        ]


MCP_SEARCHES_MAX: Final = 8
"""Calls that one session takes."""
MCP_TURN_S: Final = 4.0
"""Part of `SEARCH_TIMEOUT_S`."""


@dataclass(frozen=True, slots=True)
class McpSource:
    """Tool of an MCP server. All tenants share one session, so they take turns."""

    call: Callable[[dict[str, Any]], Awaitable[str]]
    name: str = "mcp"
    is_live: bool = True
    _slots: FairSlots = field(default_factory=lambda: FairSlots(MCP_SEARCHES_MAX))

    async def find(self, query: Query, tenant_id: TenantId) -> Sequence[Hit]:
        turn = asyncio.timeout(MCP_TURN_S)
        try:
            async with turn, self._slots.taken(tenant_id):
                turn.reschedule(None)
                return hits_of_tool(await self.call({"query": query.text}))
        except Exception as error:
            if turn.expired():
                # The server is not to blame: other tenants may have their turn.
                message = f"no turn in {MCP_TURN_S:g} s"
                raise SourceFailed("busy", message, is_of_query=True) from error
            raise SourceFailed("error", type(error).__name__) from error


SEARCH_TIMEOUT_S: Final = 8.0


@dataclass(frozen=True, slots=True)
class SearchClient:
    """Sources that are queried in order until one answers. One that failed, but for the query,
    comes last for `rest_s`, so that it does not hold up every search.
    """

    sources: Sequence[SearchSource]
    offline: SearchSource
    metrics: Metrics
    timeout_s: float = SEARCH_TIMEOUT_S
    rest_s: float = 30.0
    clock: Callable[[], float] = time.monotonic
    _rests_until: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for source in (*self.sources, self.offline):
            self.metrics.searches_begin(source.name, ("ok", *get_args(Cause)))

    async def search(self, query: Query, tenant_id: TenantId, *, is_live: bool = True) -> list[Hit]:
        """Return at most `count` hits within the domains. Raises `SearchFailed`."""
        for source in self._in_turn() if is_live else (self.offline,):
            try:
                async with asyncio.timeout(self.timeout_s):
                    hits = await source.find(query, tenant_id)
            except SourceFailed as error:
                self._tell(source, error)
            except TimeoutError:
                self._tell(source, SourceFailed("timeout", "no answer in time"))
            else:
                self.metrics.searched(source.name, "ok")
                self._rests_until.pop(source.name, None)
                wanted = (hit for hit in hits if not source.is_live or _is_wanted(hit, query))
                return list(wanted)[: query.count]
        raise SearchFailed("Search is not available now.")

    def _in_turn(self) -> list[SearchSource]:
        now = self.clock()
        return sorted(self.sources, key=lambda one: self._rests_until.get(one.name, 0.0) > now)

    def _tell(self, source: SearchSource, error: SourceFailed) -> None:
        if not error.is_of_query:
            self._rests_until[source.name] = self.clock() + self.rest_s
        self.metrics.searched(source.name, error.cause)
        if isinstance(error.__cause__, EgressRefused):
            self.metrics.egress_refused(purpose="provider", reason=error.__cause__.reason)
        if error.cause == "credentials":
            _log.error(
                "a search provider refuses to answer: is its key right, and paid for?",
                upstream=source.name,
                reason=str(error),
            )
        else:
            _log.warning("a search provider failed", upstream=source.name, reason=error.cause)


def _is_wanted(hit: Hit, query: Query) -> bool:
    # Providers may ignore the domains of a query. A URL with a user name looks like one of another
    # host, and is never opened; nor is a longer one than tools may open.
    try:
        # Check the URL itself first: escaping can make a valid host of an invalid one.
        urlsplit(hit.url)
        url = normalised(hit.url)
        parts = urlsplit(url)
    except EGRESS_ERRORS:
        return False
    host = parts.hostname or ""
    is_plain = parts.scheme in _HIT_SCHEMES and "@" not in parts.netloc
    may_be_opened = is_plain and len(url) <= URL_CHARS_MAX
    return may_be_opened and is_within(host, query.domains) and query.rules.permits(host)
