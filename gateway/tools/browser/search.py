"""A query → hits, from the first source that answers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol
from urllib.parse import urlsplit

from gateway.errors import StoreError
from gateway.protocol.grants import DomainRules, is_within
from gateway.store.tools import documents
from gateway.telemetry.logs import EventLog
from gateway.tools.browser.providers import BadAnswer, Hit, hits_of_tool
from gateway.tools.egress.network_policy import EgressRefused
from gateway.tools.egress.transport import EGRESS_ERRORS, StatusError, normalised

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics
    from gateway.tenancy import TenantId
    from gateway.tools.browser.providers import Provider, Query
    from gateway.tools.egress.transport import EgressClient

Cause = Literal["credentials", "busy", "error", "timeout"]
"""Why a source did not answer, as metrics name it."""

RETRY_AFTER_MAX_S: Final = 2.0
"""A source that asks for a longer pause is passed over."""
_HIT_SCHEMES: Final = frozenset({"http", "https"})
_BUSY: Final = 429
_CREDENTIALS: Final = frozenset({401, 402, 403})

_log = EventLog(__name__)


class SearchFailed(Exception):
    """Failure of all sources. The message is for the model; `causes` are for operators."""

    def __init__(self, causes: Sequence[str]) -> None:
        super().__init__("Search is not available now.")
        self.causes = tuple(causes)


class SourceFailed(Exception):
    """Failure of one source. The message is for operators."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause: Cause = cause


class SearchSource(Protocol):
    """Source that is searched for pages."""

    @property
    def name(self) -> str:
        """Return the name for logs and metrics."""
        ...

    @property
    def is_live(self) -> bool:
        """Return True if the source sends queries to an outside service."""
        ...

    async def find(self, query: Query, tenant_id: TenantId) -> Sequence[Hit]:
        """Return the hits, best first. Raises `SourceFailed`."""
        ...


@dataclass(frozen=True, slots=True)
class HttpSource:
    """A search engine, asked over `http`, a client of the purpose `provider`."""

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
            raise SourceFailed(cause, f"it answered {status}") from error
        except (*EGRESS_ERRORS, EgressRefused, BadAnswer) as error:
            raise SourceFailed("error", str(error) or type(error).__name__) from error

    async def _answer(self, query: Query) -> bytes:
        asked = self.provider.request(query)
        url = self.provider.base_url + asked.path
        request = self.http.build_request(
            "GET" if asked.json is None else "POST",
            url,
            params=asked.params or None,
            headers=asked.headers,
            json=asked.json,
        )
        answer = await self.http.send(request)
        pause = answer.headers.get("retry-after", "")
        is_busy = answer.status_code == _BUSY and pause.isdecimal()
        if is_busy and int(pause) <= RETRY_AFTER_MAX_S:
            await asyncio.sleep(int(pause))
            answer = await self.http.send(request)
        answer.raise_for_status()
        return answer.content


@dataclass(frozen=True, slots=True)
class IndexSource:
    """The local index. `language` is the text search configuration that it was made with."""

    database: Database
    language: str
    name: str = "index"
    is_live: bool = False

    async def find(self, query: Query, tenant_id: TenantId) -> Sequence[Hit]:
        try:
            found = await documents.search(
                self.database, tenant_id, query.text,
                domains=DomainRules(query.domains, query.rules.denied), count=query.count,
                language=self.language,
            )  # fmt: skip
        except StoreError as error:
            raise SourceFailed("error", str(error)) from error
        return [
            Hit(one.url, one.title, one.snippet, one.added_at.date().isoformat())
            for one in found
            if query.rules.permits(urlsplit(one.url).hostname or "")
        ]


@dataclass(frozen=True, slots=True)
class McpSource:
    """A tool of an MCP server. `call` is given its arguments, and gives its structured result or
    its text; whatever it raises means that the server did not answer.
    """

    call: Callable[[dict[str, Any]], Awaitable[Mapping[str, Any] | str]]
    name: str = "mcp"
    is_live: bool = True

    async def find(self, query: Query, tenant_id: TenantId) -> Sequence[Hit]:  # noqa: ARG002
        try:
            return hits_of_tool(await self.call({"query": query.text}))
        except Exception as error:
            raise SourceFailed("error", type(error).__name__) from error


SEARCH_TIMEOUT_S: Final = 8.0
"""For which one provider is waited for."""


@dataclass(frozen=True, slots=True)
class SearchClient:
    """Client that queries sources in order until one answers; only `offline` without live access.

    It queries the next source after an error of the connection, of the server, or of its limits;
    also after a source refuses the key: the log tells the operator, not the model. A source that
    failed comes after all others for `rest_s`, so that it does not hold up every search.
    """

    sources: Sequence[SearchSource]
    offline: SearchSource
    metrics: Metrics
    timeout_s: float = SEARCH_TIMEOUT_S
    rest_s: float = 30.0
    clock: Callable[[], float] = time.monotonic
    _rests_until: dict[str, float] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        # In the order in which the sources are asked.
        return [source.name for source in self.sources]

    async def search(self, query: Query, tenant_id: TenantId, *, is_live: bool = True) -> list[Hit]:
        """Return at most `count` hits within the domains of the query. Raises `SearchFailed`."""
        causes: list[str] = []
        for source in self._in_turn() if is_live else (self.offline,):
            try:
                async with asyncio.timeout(self.timeout_s):
                    found = await source.find(query, tenant_id)
            except SourceFailed as error:
                self._tell(source, error)
                causes.append(f"{source.name}: {error}")
            except TimeoutError:
                late = SourceFailed("timeout", f"no answer in {self.timeout_s:g} s")
                self._tell(source, late)
                causes.append(f"{source.name}: {late}")
            else:
                self.metrics.searched(source.name, "ok")
                self._rests_until.pop(source.name, None)
                wanted = (hit for hit in found if not source.is_live or _is_wanted(hit, query))
                return list(wanted)[: query.count]
        raise SearchFailed(causes)

    def _in_turn(self) -> list[SearchSource]:
        now = self.clock()
        return sorted(self.sources, key=lambda one: self._rests_until.get(one.name, 0.0) > now)

    def _tell(self, source: SearchSource, error: SourceFailed) -> None:
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
    # host, and is never opened.
    try:
        # Escaping makes names of hosts of what is none.
        urlsplit(hit.url)
        parts = urlsplit(normalised(hit.url))
    except (*EGRESS_ERRORS, ValueError):
        return False
    host = parts.hostname or ""
    is_plain = parts.scheme in _HIT_SCHEMES and "@" not in parts.netloc
    return is_plain and is_within(host, query.domains) and query.rules.permits(host)
