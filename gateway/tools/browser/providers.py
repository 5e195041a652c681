"""Search engines behind one contract: what each is asked, and the hits in what it answers.

    SearXNG    https://docs.searxng.org/dev/search_api.html
    Brave      https://api-dashboard.search.brave.com/api-reference/web/search/get
    Exa        https://docs.exa.ai/reference/search
    Tavily     https://docs.tavily.com/api-reference/endpoint/search
    You.com    https://you.com/docs/guides/search/request-controls

No I/O here: `search.SearchClient` sends what these say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.protocol.grants import EVERY_DOMAIN, DomainRules
from gateway.tools.browser.page import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

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
    """Terms of a search. `domains` include their subdomains; empty means all. Pages that `rules` do
    not permit are no hits either.

    `country` is an ISO 3166 code of two letters.
    """

    text: str
    count: int = 10
    domains: tuple[str, ...] = ()
    country: str | None = None
    rules: DomainRules = EVERY_DOMAIN


@dataclass(frozen=True, slots=True)
class Hit:
    """One page that was found. `published` is a date as the provider wrote it."""

    url: str
    title: str
    snippet: str
    published: str | None = None


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """An HTTP request below the provider's base URL. `json` None: a GET with `params`."""

    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Mapping[str, Any] | None = None


class BadAnswer(ValueError):
    """Answer of a provider that does not have the form that the provider documents."""


class Provider(Protocol):
    """One search engine."""

    @property
    def base_url(self) -> str:
        """Return the provider's URL, without a slash at the end."""
        ...

    def request(self, query: Query) -> SearchRequest:
        """Return the HTTP request for `query`."""
        ...

    def hits(self, answer: bytes) -> list[Hit]:
        """Parse the hits of an answer, best first. Raises `BadAnswer`."""
        ...


AnswerT = TypeVar("AnswerT", bound=BaseModel)


class _Answer(BaseModel):
    """Answer of a provider; unknown fields are ignored."""

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


@dataclass(frozen=True, slots=True)
class SearXNG:
    """An instance of one's own. It has to allow `format=json` (`search.formats`).

    `api_key` is for a proxy in front of it, as a bearer token.
    """

    base_url: str
    api_key: str = ""

    def request(self, query: Query) -> SearchRequest:
        params = {"q": _with_sites(query), "format": "json", "safesearch": "1"}
        headers = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return SearchRequest("/search", params, headers)

    def hits(self, answer: bytes) -> list[Hit]:
        return _hits(_parse(_Results, answer).results)


@dataclass(frozen=True, slots=True)
class Brave:
    api_key: str
    base_url: str = "https://api.search.brave.com"

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

    def hits(self, answer: bytes) -> list[Hit]:
        return _hits(_parse(_BraveAnswer, answer).web.results)


@dataclass(frozen=True, slots=True)
class Exa:
    api_key: str
    base_url: str = "https://api.exa.ai"

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

    def hits(self, answer: bytes) -> list[Hit]:
        return _hits(_parse(_Results, answer).results)


@dataclass(frozen=True, slots=True)
class Tavily:
    api_key: str
    base_url: str = "https://api.tavily.com"

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

    def hits(self, answer: bytes) -> list[Hit]:
        return _hits(_parse(_Results, answer).results)


@dataclass(frozen=True, slots=True)
class YouCom:
    api_key: str
    base_url: str = "https://ydc-index.io"

    def request(self, query: Query) -> SearchRequest:
        body: dict[str, Any] = {"query": query.text, "count": query.count}
        if query.domains:
            body["include_domains"] = list(query.domains)
        if query.country:
            body["country"] = query.country
        return SearchRequest("/v1/search", headers={"x-api-key": self.api_key}, json=body)

    def hits(self, answer: bytes) -> list[Hit]:
        results = _parse(_YouAnswer, answer).results
        return _hits((*results.web, *results.news))


def hits_of_tool(answer: Mapping[str, Any] | str) -> list[Hit]:
    """Parse the hits in the result of an MCP server's tool.

    The result is `results` or a list, of objects with a `url`; or text whose paragraphs have a URL
    each. Raises `BadAnswer`.
    """
    try:
        said = orjson.loads(answer) if isinstance(answer, str) else answer
    except orjson.JSONDecodeError:
        return _hits(_paragraphs(str(answer)))
    try:
        return _hits(_Results.model_validate({"results": said} if _is_list(said) else said).results)
    except ValidationError as error:
        raise BadAnswer(_first(error)) from None


def _is_list(value: object) -> bool:
    return isinstance(value, list)


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
    found: dict[str, Hit] = {}
    fault: ValidationError | None = None
    for result in results:
        try:
            page = _Result.model_validate(result)
        except ValidationError as error:
            fault = fault or error
            continue
        found.setdefault(page.url, page.hit())
    if fault is not None and not found:
        raise BadAnswer(_first(fault))
    return list(found.values())


def _parse(model: type[AnswerT], answer: bytes) -> AnswerT:
    try:
        return model.model_validate_json(answer)
    except ValidationError as error:
        raise BadAnswer(_first(error)) from None


def _first(error: ValidationError) -> str:
    # Without the invalid value, which may be anything.
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
