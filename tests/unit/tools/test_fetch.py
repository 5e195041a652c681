"""Visits to a real site on loopback."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import TYPE_CHECKING

import httpx2
import pytest

from gateway.telemetry.metrics import Metrics
from gateway.tools.browser.fetch import FetchFailed, FetchLimits, PageFetcher
from gateway.tools.browser.page import Fetched
from gateway.tools.egress.network_policy import NetworkPolicy
from gateway.tools.egress.transport import EgressLimits, client, resolve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from gateway.tools.egress.transport import Resolver

POLICY = NetworkPolicy(networks=(ip_network("127.0.0.1/32"),))
LIMITS = FetchLimits(timeout_s=5, visit_interval_s=0)
AGENT = "HarmonyGateway/1 (+https://operator.example)"


def answer(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Site:
    """Pages by path; what is asked for otherwise is not there."""

    def __init__(self, pages: Mapping[str, bytes]) -> None:
        self.pages = dict(pages)
        self.asked: list[str] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        self.asked.append(path)
        writer.write(self.pages.get(path, answer(b"", "404 Not Found")))
        await writer.drain()
        writer.close()

    def pages_asked(self) -> list[str]:
        return [path for path in self.asked if path != "/robots.txt"]


@asynccontextmanager
async def visiting(
    pages: Mapping[str, bytes], limits: FetchLimits = LIMITS, resolver: Resolver = resolve
) -> AsyncIterator[tuple[Site, PageFetcher]]:
    site = Site(pages)
    listener = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    site.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    bounds = EgressLimits(body_bytes_max=1000)
    async with listener, client(POLICY, bounds, resolver=resolver) as http:
        yield site, PageFetcher(http, POLICY, limits, user_agent=AGENT, metrics=Metrics())


def anywhere(_host: str) -> bool:
    return True


async def failure(fetcher: PageFetcher, url: str) -> str:
    with pytest.raises(FetchFailed) as raised:
        await fetcher.fetch(url, may_visit=anywhere)
    return str(raised.value)


async def test_page_comes_with_its_type_and_charset() -> None:
    page = answer("é".encode("latin-1"), content_type="text/html; charset=ISO-8859-1")
    async with visiting({"/page": page}) as (site, fetcher):
        found = await fetcher.fetch(f"{site.url}/page#part", may_visit=anywhere)
        assert found == Fetched(f"{site.url}/page", "text/html", b"\xe9", "iso-8859-1")
        assert found.text == "é"
        assert site.asked == ["/robots.txt", "/page"]


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        (b'<meta charset="latin-1">\xe9', None, '<meta charset="latin-1">é'),
        ("é".encode(), None, "é"),
        (b"a\xff", "no-such-charset", "a�"),
    ],
)
def test_charsets(body: bytes, charset: str | None, text: str) -> None:
    assert Fetched("", "text/html", body, charset).text == text


async def test_redirects_are_followed_and_bounded() -> None:
    pages = {
        "/a": answer(b"", "302 Found", location="b?x=1"),
        "/b?x=1": answer(b"end", content_type="text/plain"),
        "/loop": answer(b"", "301 Moved Permanently", location="/loop"),
        "/inside": answer(b"", "302 Found", location="http://169.254.169.254/latest/meta-data"),
        "/file": answer(b"", "302 Found", location="file:///etc/passwd"),
    }
    async with visiting(pages) as (site, fetcher):
        found = await fetcher.fetch(f"{site.url}/a", may_visit=anywhere)
        assert (found.url, found.text) == (f"{site.url}/b?x=1", "end")
        assert await failure(fetcher, f"{site.url}/loop") == "too many redirects"
        assert site.pages_asked().count("/loop") == LIMITS.redirects_max + 1
        assert "not reachable" in await failure(fetcher, f"{site.url}/inside")
        assert "only http" in await failure(fetcher, f"{site.url}/file")


async def test_every_host_on_the_way_is_asked_for() -> None:
    pages = {"/a": answer(b"", "302 Found", location="http://other.example/")}
    async with visiting(pages) as (site, fetcher):
        with pytest.raises(FetchFailed, match="domain"):
            await fetcher.fetch(f"{site.url}/a", may_visit=lambda host: host == "127.0.0.1")
        with pytest.raises(FetchFailed, match="domain"):
            await fetcher.fetch(f"{site.url}/a", may_visit=lambda _: False)
        assert site.pages_asked() == ["/a"]


async def test_what_cannot_be_read_is_said() -> None:
    pages = {
        "/image": answer(b"", content_type="image/png"),
        "/huge": answer(b"x" * 1001, content_type="text/plain"),
        "/gzip": answer(b"x", content_encoding="gzip"),
        "/broken": b"nonsense\r\n\r\n",
    }
    async with visiting(pages) as (site, fetcher):
        assert "404" in await failure(fetcher, f"{site.url}/none")
        assert "image/png of 0 bytes" in await failure(fetcher, f"{site.url}/image")
        assert "longer" in await failure(fetcher, f"{site.url}/huge")
        assert "compressed" in await failure(fetcher, f"{site.url}/gzip")
        assert "could not be read" in await failure(fetcher, f"{site.url}/broken")
        assert "malformed" in await failure(fetcher, "http://[")


async def test_robots_are_obeyed_and_remembered() -> None:
    rules = b"User-agent: HarmonyGateway\nDisallow: /private\n"
    pages = {
        "/robots.txt": answer(rules, content_type="text/plain"),
        "/open": answer(b"open", content_type="text/plain"),
        "/private": answer(b"secret", content_type="text/plain"),
    }
    async with visiting(pages) as (site, fetcher):
        await fetcher.fetch(f"{site.url}/open", may_visit=anywhere)
        assert "robots.txt" in await failure(fetcher, f"{site.url}/private")
        assert site.asked == ["/robots.txt", "/open"]


async def test_site_whose_rules_fail_is_left_alone_until_they_can_be_read() -> None:
    pages = {"/robots.txt": answer(b"", "503 Service Unavailable"), "/a": answer(b"a")}
    async with visiting(pages) as (site, fetcher):
        assert "robots.txt" in await failure(fetcher, f"{site.url}/a")
        assert site.pages_asked() == []
        del site.pages["/robots.txt"]
        assert (await fetcher.fetch(f"{site.url}/a")).body == b"a"


async def test_rules_are_those_of_the_scheme_that_is_read() -> None:
    def site(request: httpx2.Request) -> httpx2.Response:
        url = request.url
        if url.scheme == "http":
            return httpx2.Response(301, headers={"location": str(url.copy_with(scheme="https"))})
        if url.path == "/robots.txt":
            return httpx2.Response(200, text="User-agent: *\nDisallow: /private")
        return httpx2.Response(200, text="read")

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(site)) as http:
        policy = NetworkPolicy()
        fetcher = PageFetcher(http, policy, LIMITS, user_agent=AGENT, metrics=Metrics())
        assert (await fetcher.fetch("http://site.example/open")).body == b"read"
        assert "robots.txt" in await failure(fetcher, "http://site.example/private")


async def test_tenants_take_turns_at_a_host() -> None:
    limits = FetchLimits(timeout_s=5, visits_max=1, visit_interval_s=0, obeys_robots=False)
    paths = ("/a1", "/a2", "/a3", "/b")
    async with visiting({path: answer(b"page") for path in paths}, limits) as (site, fetcher):
        await asyncio.gather(*(fetcher.fetch(f"{site.url}{path}", path[1]) for path in paths))
        assert site.asked == ["/a1", "/a2", "/b", "/a3"]


async def test_a_visit_that_is_cancelled_before_it_begins_holds_up_no_other() -> None:
    limits = FetchLimits(timeout_s=5, visit_interval_s=3600, obeys_robots=False)
    async with visiting({"/a": answer(b"a")}, limits) as (site, fetcher):
        await fetcher.fetch(f"{site.url}/a")
        (host,) = fetcher._hosts.values()
        next_visit_at = host.next_visit_at
        visit = asyncio.create_task(fetcher.fetch(f"{site.url}/a"))
        await asyncio.sleep(0)
        assert host.visits._free == limits.visits_max - 1
        visit.cancel()
        await asyncio.wait([visit])
        assert host.next_visit_at == next_visit_at


async def test_a_host_that_is_visited_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.tools.browser.fetch.HOSTS_MAX", 1)

    async def everywhere(host: str, port: int) -> tuple[str, ...]:
        return ("127.0.0.1",)

    limits = FetchLimits(visits_max=1, visit_interval_s=3600, obeys_robots=False)
    async with visiting({"/a": answer(b"a")}, limits, everywhere) as (site, fetcher):
        port = site.url.rpartition(":")[2]
        await fetcher.fetch(f"http://a.example:{port}/a")
        visits = [asyncio.create_task(fetcher.fetch(f"http://a.example:{port}/a"))]
        await asyncio.sleep(0)
        await fetcher.fetch(f"http://b.example:{port}/a")
        visits.append(asyncio.create_task(fetcher.fetch(f"http://a.example:{port}/a")))
        await asyncio.wait(visits, timeout=0.1)
        assert len(site.asked) == 2
        for visit in visits:
            visit.cancel()
        await asyncio.wait(visits)


@pytest.mark.slow
async def test_visits_have_a_deadline() -> None:
    limits = FetchLimits(timeout_s=1.0, visit_interval_s=3600)
    async with visiting({"/a": answer(b"a")}, limits) as (site, fetcher):
        await fetcher.fetch(f"{site.url}/a", may_visit=anywhere)
        assert "in time" in await failure(fetcher, f"{site.url}/a")


@pytest.mark.parametrize(
    "addresses",
    [
        ("64:ff9b::7f00:1",),
        ("2002:7f00:1::",),
        ("2001:0:7f00:1::",),
        ("::ffff:10.0.0.1",),
        ("169.254.169.254",),
        ("fd00:ec2::254",),
        ("1.1.1.1", "10.0.0.1"),
        (),
    ],
)
async def test_names_that_lead_inside_are_refused(addresses: tuple[str, ...]) -> None:
    metrics = Metrics()
    looked_up: list[str] = []

    async def resolver(host: str, port: int) -> tuple[str, ...]:
        looked_up.append(host)
        return addresses

    policy = NetworkPolicy()
    async with client(policy, EgressLimits(), resolver=resolver) as http:
        fetcher = PageFetcher(http, policy, LIMITS, user_agent=AGENT, metrics=metrics)
        told = await failure(fetcher, "http://inside.example/")
    assert "address" in told or "not reachable" in told
    assert not any(address in told for address in addresses)
    assert looked_up == ["inside.example"]
    labels = {"purpose": "page", "reason": "address" if addresses else "host"}
    assert metrics.registry.get_sample_value("gateway_egress_refused_total", labels) == 1
    refused = metrics.registry.get_sample_value(
        "gateway_page_fetches_total", {"outcome": "refused"}
    )
    assert refused == 1


async def test_name_that_changes_its_address_between_two_requests_is_refused() -> None:
    """Of a site that may be read when its robots.txt is fetched, and lies inside right after."""
    answers = [("127.0.0.1",), ("10.0.0.1",)]

    async def rebinding(host: str, port: int) -> tuple[str, ...]:
        return answers.pop(0)

    async with visiting({"/page": answer(b"page")}, resolver=rebinding) as (site, fetcher):
        url = site.url.replace("127.0.0.1", "rebinding.example")
        assert "not reachable" in await failure(fetcher, f"{url}/page")
        assert site.asked == ["/robots.txt"]


async def test_rules_are_read_as_far_as_they_may_go() -> None:
    rules = b"User-agent: *\nDisallow: /private\n" + b"# filler\n" * 100
    pages = {"/robots.txt": answer(rules), "/private": answer(b"")}
    async with visiting(pages) as (site, fetcher):
        assert "robots.txt" in await failure(fetcher, f"{site.url}/private")
    pages["/robots.txt"] = answer(b"User-agent: *\nAllow: /\n" + b"#" * 2000)
    async with visiting(pages) as (site, fetcher):
        assert "longer" in await failure(fetcher, f"{site.url}/private")


async def test_robots_may_be_ignored() -> None:
    pages = {"/robots.txt": answer(b"User-agent: *\nDisallow: /\n"), "/a": answer(b"a")}
    limits = FetchLimits(timeout_s=5, visit_interval_s=0, obeys_robots=False)
    async with visiting(pages, limits) as (site, fetcher):
        assert (await fetcher.fetch(f"{site.url}/a")).body == b"a"
        assert site.asked == ["/a"]


async def test_domains_are_compared_in_ascii() -> None:
    async def resolver(host: str, port: int) -> tuple[str, ...]:
        return ("127.0.0.1",)

    asked: list[str] = []

    def may_visit(host: str) -> bool:
        asked.append(host)
        return True

    page = answer(b"page", content_type="text/plain")
    async with visiting({"/%C3%A4": page}, resolver=resolver) as (site, fetcher):
        url = site.url.replace("127.0.0.1", "d\u00f3cs.example")
        found = await fetcher.fetch(f"{url}/\u00e4#part", may_visit=may_visit)
        ascii_url = site.url.replace("127.0.0.1", "xn--dcs-gna.example")
        assert found.url == f"{ascii_url}/%C3%A4"
        assert asked == ["xn--dcs-gna.example"]
        assert "malformed" in await failure(fetcher, "http://\u2460.example/")


async def test_rules_of_many_hosts_are_not_kept_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.tools.browser.fetch.RULES_LINES_MAX", 5)
    rules = b"User-agent: *\nDisallow: /private\nDisallow: /more"
    pages = {"/robots.txt": answer(rules, content_type="text/plain"), "/a": answer(b"a")}

    async def everywhere(host: str, port: int) -> tuple[str, ...]:
        return ("127.0.0.1",)

    async with visiting(pages, resolver=everywhere) as (site, fetcher):
        port = site.url.rpartition(":")[2]
        for host in ("a.example", "b.example", "a.example", "a.example"):
            await fetcher.fetch(f"http://{host}:{port}/a")
            assert "robots.txt" in await failure(fetcher, f"http://{host}:{port}/private")
    assert site.asked.count("/robots.txt") == 3
