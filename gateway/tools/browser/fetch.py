from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.message import Message
from typing import TYPE_CHECKING, Final
from urllib.parse import urldefrag, urljoin, urlsplit
from urllib.robotparser import RobotFileParser
from weakref import WeakValueDictionary

from gateway.cache import LruCache
from gateway.fair_queue import FairSlots
from gateway.tools.browser.page import Fetched, plain
from gateway.tools.egress.network_policy import EgressRefused
from gateway.tools.egress.transport import EGRESS_ERRORS, BodyTooLong, EncodedBody, normalised

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable

    from gateway.telemetry.metrics import Metrics
    from gateway.tools.egress.network_policy import NetworkPolicy
    from gateway.tools.egress.transport import EgressClient

ROBOTS_BYTES_MAX: Final = 512 * 1024
"""https://www.rfc-editor.org/rfc/rfc9309#section-2.5"""
HOSTS_MAX: Final = 1024
RULES_LINES_MAX: Final = 100_000
"""Lines of all hosts: otherwise invented hosts could each fill the cache with a `robots.txt`."""
_READABLE: Final = frozenset(
    {"text/html", "application/xhtml+xml", "text/plain", "text/markdown", "application/json",
     "application/xml", "text/xml", "application/pdf"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FetchLimits:
    timeout_s: float = 15.0
    redirects_max: int = 5
    visits_max: int = 2
    visit_interval_s: float = 1.0
    robots_kept_s: float = 24 * 3600.0
    obeys_robots: bool = True


class FetchFailed(Exception):
    """Failure to fetch a page. The message is for the model."""


class _Host:
    def __init__(self, visits_max: int) -> None:
        self.visits = FairSlots(visits_max)
        self.pause = asyncio.Lock()
        self.next_visit_at = 0.0


class PageFetcher:
    def __init__(
        self,
        client: EgressClient,
        policy: NetworkPolicy,
        limits: FetchLimits,
        *,
        user_agent: str,
        metrics: Metrics,
    ) -> None:
        self._client = client
        self._policy = policy
        self._limits = limits
        self._user_agent = user_agent
        self._metrics = metrics
        self._rules: LruCache[str, tuple[RobotFileParser, float]] = LruCache(
            size_max=RULES_LINES_MAX
        )
        """By origin: the rules, and the time until which they count."""
        self._hosts: WeakValueDictionary[str, _Host] = WeakValueDictionary()
        """Hosts that are recent, or being visited."""
        self._recent: LruCache[str, _Host] = LruCache(size_max=HOSTS_MAX)
        self._clock = time.monotonic

    async def fetch(
        self,
        url: str,
        tenant: Hashable = None,
        *,
        may_visit: Callable[[str], bool] = lambda _: True,
    ) -> Fetched:
        """Fetch a page. `may_visit` decides on each host on the way. Raises `FetchFailed`."""
        try:
            document = await self._fetch(url, tenant, may_visit)
        except EgressRefused as error:
            self._metrics.page_fetched("refused")
            self._metrics.egress_refused(purpose="page", reason=error.reason)
            raise FetchFailed(str(error)) from error
        except FetchFailed:
            self._metrics.page_fetched("failed")
            raise
        self._metrics.page_fetched("ok")
        return document

    async def _fetch(self, url: str, tenant: Hashable, may_visit: Callable[[str], bool]) -> Fetched:
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                return await self._follow(urldefrag(url).url, tenant, may_visit)
        except TimeoutError:
            raise FetchFailed("the page did not come in time") from None
        except (BodyTooLong, EncodedBody) as error:
            raise FetchFailed(str(error)) from error
        except EGRESS_ERRORS as error:
            raise FetchFailed(f"the server could not be read ({type(error).__name__})") from error

    async def _follow(
        self, url: str, tenant: Hashable, may_visit: Callable[[str], bool]
    ) -> Fetched:
        self._policy.origin(url)
        url = normalised(url)
        origin = self._policy.origin(url)
        for _ in range(self._limits.redirects_max + 1):
            if not may_visit(origin.host):
                raise FetchFailed("the domain is not among those that may be read")
            if self._limits.obeys_robots and not await self._is_welcome(url):
                raise FetchFailed("the site asks not to be read by programs (robots.txt)")
            async with self._visit(origin.host, tenant):
                fetched = await self._get(url)
            if isinstance(fetched, Fetched):
                return fetched
            url = normalised(urljoin(url, fetched))
            origin = self._policy.redirected(origin, url)
        raise FetchFailed("too many redirects")

    async def _get(self, url: str) -> Fetched | str:
        # The page, or the URL it has moved to. Raises `FetchFailed` and the client's errors.
        headers = {"user-agent": self._user_agent, "accept": ", ".join(sorted(_READABLE))}
        async with self._client.stream("GET", url, headers=headers) as answer:
            if answer.is_redirect and (where := answer.headers.get("location")):
                return str(where)
            if not answer.is_success:
                raise FetchFailed(f"the server answered {answer.status_code}")
            kind = Message()
            kind["content-type"] = answer.headers.get("content-type", "text/html")
            content_type = kind.get_content_type()
            if content_type not in _READABLE:
                size = answer.headers.get("content-length", "")
                size_note = f" of {size} bytes" if size.isdecimal() else ""
                kind_note = f"{plain(content_type)[:100]}{size_note}"
                raise FetchFailed(f"it is {kind_note}, which cannot be read")
            charset = kind.get_content_charset()
            return Fetched(url, content_type, await answer.aread(), charset)

    async def _is_welcome(self, url: str) -> bool:
        # An origin without a `robots.txt` permits everything. That of plain HTTP often has none: it
        # redirects, and says nothing about what it redirects to.
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        rules, until = self._rules.get(origin) or (None, 0.0)
        if rules is None or until <= self._clock():
            rules = RobotFileParser()
            lines = await self._robots(f"{origin}/robots.txt")
            await asyncio.to_thread(rules.parse, lines)
            until = self._clock() + self._limits.robots_kept_s
            size = min(len(lines) + RULES_LINES_MAX // HOSTS_MAX, RULES_LINES_MAX)
            self._rules.put(origin, (rules, until), size=size)
        return rules.can_fetch(self._user_agent.split("/")[0], url)

    async def _robots(self, url: str) -> list[str]:
        # Redirects are not followed.
        async with self._client.stream(
            "GET", url, headers={"user-agent": self._user_agent}
        ) as answer:
            if answer.is_server_error:  # RFC 9309, section 2.3.1.4
                raise FetchFailed("its robots.txt cannot be read now")
            if not answer.is_success:
                return []
            body = bytearray()
            async for part in answer.aiter_bytes():
                body += part
                if len(body) >= ROBOTS_BYTES_MAX:
                    break
        return body[:ROBOTS_BYTES_MAX].decode("utf-8", "replace").splitlines()

    @asynccontextmanager
    async def _visit(self, name: str, tenant: Hashable) -> AsyncIterator[None]:
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = _Host(self._limits.visits_max)
        self._recent.put(name, host, size=1)
        async with host.visits.taken(tenant):
            async with host.pause:
                await asyncio.sleep(host.next_visit_at - self._clock())
                host.next_visit_at = self._clock() + self._limits.visit_interval_s
            yield
