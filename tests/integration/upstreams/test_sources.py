"""Sources of backends: real files, a real name server, and an API server over real HTTP."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import aclosing, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import orjson
import pytest

from gateway.settings import Settings
from gateway.settings.discovery import Discovery
from gateway.upstreams.backend import Backend
from gateway.upstreams.membership import kubernetes
from gateway.upstreams.membership.desired import Fault
from gateway.upstreams.membership.kubernetes import KubernetesService, KubernetesSource, PodAccount
from gateway.upstreams.membership.resolver import NameServers, system_servers
from gateway.upstreams.membership.source import BackendTemplate, SourceError
from gateway.wiring.membership import sources
from tests.fakes.api_server import ApiServer, api_server, endpoint, slice_of
from tests.fakes.certificate import self_signed
from tests.fakes.dns_server import dns_server
from tests.fakes.raw_server import RawServer, response

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

    from gateway.upstreams.membership.desired import Answer
    from gateway.upstreams.membership.source import BackendSource

ONE = "backends:\n  - {name: gpu-1, url: 'http://gpu-1:8000'}\n"
TWO = ONE + "  - {name: gpu-2, url: 'http://gpu-2:8000'}\n"


def source(**fields: object) -> BackendSource:
    discovery = Discovery.model_validate({"name": "found", **fields})
    settings = Settings.model_validate(
        {"discovery": [discovery], "membership": {"refresh_s": 0.01, "answer_s": 0.5}}
    )
    return sources(settings)[0]


def names(answer: Answer) -> list[str]:
    assert not isinstance(answer, Fault), answer
    return [one.name for one in answer]


async def heard(answers: AsyncGenerator[Answer], *wanted: str) -> tuple[Backend, ...]:
    """The next answer with these names."""
    async with asyncio.timeout(30):
        async for answer in answers:
            if not isinstance(answer, Fault) and [one.name for one in answer] == list(wanted):
                return answer
    raise AssertionError("it ended")


async def fault(answers: AsyncGenerator[Answer]) -> str:
    async with asyncio.timeout(30):
        async for answer in answers:
            if isinstance(answer, Fault):
                return answer.reason
    raise AssertionError("it ended")


async def test_a_file_is_followed_however_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "backends.yaml"
    path.write_text(ONE)
    monkeypatch.setenv("THE_KEY", "sesame")
    async with aclosing(source(kind="file", path=path).watch()) as answers:
        (one,) = await heard(answers, "gpu-1")
        assert one.source == "found"
        assert one.base_url == "http://gpu-1:8000"
        path.write_text(TWO)
        await heard(answers, "gpu-1", "gpu-2")
        new = tmp_path / "new.yaml"
        new.write_text("backends: [{name: gpu-3, url: 'http://g:1', api_key: '${THE_KEY}'}]")
        new.replace(path)
        (three,) = await heard(answers, "gpu-3")
        assert three.api_key == "sesame"
        path.unlink()
        assert "cannot read it" in await fault(answers)
        path.write_text("backends: []")
        await heard(answers)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected `backends:`"),
        ("backends:", "expected `backends:`"),
        ("backends: 7", "expected `backends:`"),
        ("backends: []\nmodels: []", "nothing else"),
        ("backends: [{name: a}]", "backends[0].url: it is required"),
        ("backends: [{name: a, url: 'ftp://a'}]", "expected a URL such as"),
        (
            "backends:\n  - name: a\n    url: http://a\n    colour: red",
            "4: backends[0].colour: there is no such setting",
        ),
        ("backends: [{name: a, url: 'http://a'}, {name: a, url: 'http://b'}]", "must differ"),
        ("backends: [{name: a, url: 'http://a', api_key: '${NO_SUCH_THING}'}]", "is not set"),
        ("backends: [", "not YAML"),
        ("backends: [{name: a, url: 'http://a:x'}]", "port"),
        ("backends: [{name: a, url: 'http://a:99999'}]", "no port 99999"),
        ("#" * (1024 * 1024 + 1), "bytes"),
        ("[" * 10_000, "not YAML: maximum recursion depth"),
        ("backends: [{name: a, url: !!timestamp x}]", "not a value"),
        ("backends: [{name: a, url: 'http://a', api_key: 'Schl\u00fcssel'}]", "one line of ASCII"),
    ],
)
async def test_a_file_that_is_wrong_says_where_and_is_no_answer(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "backends.yaml"
    path.write_text(text)
    with pytest.raises(SourceError) as raised:
        await source(kind="file", path=path).fetch()
    assert said in str(raised.value)
    assert str(path) in str(raised.value) or "port" in said


async def test_addresses_of_a_host_are_members_in_one_order() -> None:
    async with dns_server(zone={("vllm.llm.svc", "A"): ["10.0.0.2", "10.0.0.1"]}) as server:
        found = source(kind="dns", host="vllm.llm.svc", port=8001, servers=[server.address])
        members = await found.fetch()
        assert [one.name for one in members] == ["10.0.0.1:8001", "10.0.0.2:8001"]
        assert members[0].base_url == "http://10.0.0.1:8001"
        server.zone["vllm.llm.svc", "A"] = ["10.0.0.1", "10.0.0.3"]
        assert names(await found.fetch()) == ["10.0.0.1:8001", "10.0.0.3:8001"]


async def test_addresses_of_the_other_family_count_where_there_are_no_others() -> None:
    async with dns_server(zone={("h", "AAAA"): ["fd00::1"]}) as server:
        (one,) = await source(kind="dns", host="h", servers=[server.address]).fetch()
        assert (one.name, one.base_url) == ("[fd00::1]:8000", "http://[fd00::1]:8000")
        server.zone["h", "A"] = ["10.0.0.1"]
        (one,) = await source(kind="dns", host="h", servers=[server.address]).fetch()
        assert one.name == "10.0.0.1:8000"


async def test_srv_records_name_members_and_their_ports() -> None:
    rows = [(1, 0, 8000, "b.h"), (1, 5, 8001, "a.h"), (2, 0, 8000, "spare.h")]
    async with dns_server(zone={("_http._tcp.h", "SRV"): rows}) as server:
        found = source(kind="srv", host="_http._tcp.h", servers=[server.address])
        assert names(await found.fetch()) == ["a.h:8001", "b.h:8000"]
        server.zone["_http._tcp.h", "SRV"] = [(0, 0, 0, "")]
        assert await found.fetch() == ()


async def test_an_answer_too_long_for_a_packet_comes_over_tcp() -> None:
    addresses = [f"10.0.{number // 200}.{number % 200}" for number in range(400)]
    async with dns_server(zone={("h", "A"): addresses}) as server:
        members = await source(kind="dns", host="h", servers=[server.address]).fetch()
        assert len(members) == 400
        assert [over for _, _, over in server.asked] == ["udp", "tcp"]


async def test_a_name_that_is_not_there_has_no_members_and_a_refusal_is_a_fault() -> None:
    async with dns_server() as server:
        found = source(kind="dns", host="h", servers=[server.address])
        assert await found.fetch() == ()
        server.code = 2
        with pytest.raises(SourceError, match="refuses with code 2"):
            await found.fetch()


async def test_a_name_server_that_is_silent_gives_way_to_the_next() -> None:
    zone = {("h", "A"): ["10.0.0.1"]}
    async with dns_server(is_silent=True) as dead, dns_server(zone=zone) as server:
        found = source(kind="dns", host="h", servers=[dead.address, server.address])
        assert names(await found.fetch()) == ["10.0.0.1:8000"]
        server.is_silent = True
        with pytest.raises(SourceError, match=r"does not answer.*does not answer"):
            await found.fetch()


def test_the_systems_file_says_whom_to_ask_and_how_names_are_completed() -> None:
    text = (
        "search llm.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10 # here\n"
        "nameserver fd00::a\noptions ndots:5 timeout:1\n; more\n\nnonsense"
    )
    known = system_servers(text)
    assert known.servers == (("10.96.0.10", 53), ("fd00::a", 53))
    assert known.spellings("vllm.llm")[0] == "vllm.llm.llm.svc.cluster.local"
    assert known.spellings("vllm.llm")[-1] == "vllm.llm"
    assert known.spellings("vllm.") == ["vllm."]
    assert system_servers("") == NameServers((("127.0.0.1", 53),))


@pytest.fixture
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "PAUSES_S", (0.0,))


def new_backend(name: str, url: str) -> Backend:
    return Backend(name, url).checked()


@asynccontextmanager
async def cluster(
    tmp_path: Path, template: BackendTemplate | None = None
) -> AsyncIterator[tuple[ApiServer, KubernetesSource]]:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("llm")
    async with api_server() as server:
        service = KubernetesService("vllm", lambda: server.url, PodAccount.of(tmp_path))
        yield (
            server,
            KubernetesSource(
                "k8s", service, template or BackendTemplate(Backend), random=Random(1)
            ),
        )


@pytest.mark.usefixtures("_no_pauses")
async def test_endpoints_of_a_service_are_listed_and_watched(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, found):
        server.put("s-1", endpoint("10.0.0.1", pod="gpu-0"))
        assert names(await found.fetch()) == ["gpu-0"]
        async with aclosing(found.watch()) as answers:
            await heard(answers, "gpu-0")
            await server.watched.wait()
            server.put("s-2", endpoint("10.0.0.2", pod="gpu-1"))
            await heard(answers, "gpu-0", "gpu-1")
            server.put("s-1", endpoint("10.0.0.1", pod="gpu-0", ready=False, terminating=True))
            await heard(answers, "gpu-1")
            server.remove("s-2")
            await heard(answers)
        assert server.asked[0] == {
            "labelSelector": "kubernetes.io/service-name=vllm",
            "limit": "500",
        }


@pytest.mark.usefixtures("_no_pauses")
async def test_a_watch_goes_on_where_it_was_also_behind_a_bookmark(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, found):
        server.put("s-1", endpoint("10.0.0.1", pod="gpu-0"))
        async with aclosing(found.watch()) as answers:
            await heard(answers, "gpu-0")
            server.version = 100
            server.bookmark()
            server.hang_up()
            await heard(answers, "gpu-0")
            assert server.asked[-1]["resourceVersion"] == "100"
            server.put("s-1", endpoint("10.0.0.9", pod="gpu-9"))
            await heard(answers, "gpu-9")
        assert [one for one in server.asked if "limit" in one] == server.asked[:1]


@pytest.mark.usefixtures("_no_pauses")
@pytest.mark.parametrize("how", ["event", "status"])
async def test_where_the_server_has_forgotten_all_is_listed_anew(tmp_path: Path, how: str) -> None:
    async with cluster(tmp_path) as (server, found):
        server.put("s-1", endpoint("10.0.0.1", pod="gpu-0"))
        async with aclosing(found.watch()) as answers:
            await heard(answers, "gpu-0")
            # What has gone meanwhile no event will tell.
            del server.slices["s-1"]
            server.slices["s-2"] = slice_of("s-2", endpoint("10.0.0.2", pod="gpu-1"))
            if how == "event":
                server.expire()
            else:
                server.version += 1
                server.oldest = server.version
                server.hang_up()
            await heard(answers, "gpu-1")


@pytest.mark.usefixtures("_no_pauses")
async def test_a_token_that_is_replaced_is_used_from_the_next_request_on(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, found):
        server.put("s-1", endpoint("10.0.0.1", pod="gpu-0"))
        async with aclosing(found.watch()) as answers:
            await heard(answers, "gpu-0")
            server.token = "second"
            server.hang_up()
            assert "401: Unauthorized" in await fault(answers)
            (tmp_path / "token").write_text("second")
            await heard(answers, "gpu-0")
        assert server.tokens[-1] == "second"


async def test_a_list_comes_in_pages(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, found):
        server.page = 2
        for number in range(5):
            server.put(f"s-{number}", endpoint(f"10.0.0.{number}", pod=f"gpu-{number}"))
        assert len(await found.fetch()) == 5
        assert len(server.asked) == 3


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"metadata": null, "items": []}', b"no"])
async def test_a_list_that_is_none_is_a_fault(tmp_path: Path, body: bytes) -> None:
    for file, text in (("token", "first"), ("namespace", "llm")):
        (tmp_path / file).write_text(text)
    async with RawServer({"*": [(response(body),)]}) as server:
        found = source(
            kind="kubernetes", service="vllm", api_url=server.url, account_folder=tmp_path
        )
        with pytest.raises(SourceError, match="not a list"):
            await found.fetch()


async def test_outside_of_a_cluster_the_source_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SourceError, match="no Kubernetes cluster"):
        await source(kind="kubernetes", service="vllm").fetch()
    found = source(
        kind="kubernetes", service="v", api_url="http://127.0.0.1:1", account_folder=tmp_path
    )
    with pytest.raises(SourceError, match=r"cannot read .*namespace"):
        await found.fetch()


@pytest.mark.usefixtures("_no_pauses")
@pytest.mark.parametrize(
    ("file", "text"), [("token", "two\nlines"), ("token", "\u00fc"), ("namespace", "a\tb")]
)
async def test_an_account_that_is_damaged_is_a_fault(tmp_path: Path, file: str, text: str) -> None:
    async with cluster(tmp_path) as (_, found):
        (tmp_path / file).write_text(text)
        async with aclosing(found.watch()) as answers:
            assert str(tmp_path / file) in await fault(answers)
            (tmp_path / file).write_text({"token": "first", "namespace": "llm"}[file])
            await heard(answers)


@pytest.mark.usefixtures("_no_pauses")
@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b'{"type": "ADDED", "object": 7}',
        b'{"type": "ERROR", "object": {"code": 500, "message": "no"}}',
        b'{"type": "ADDED", "object": {"metadata": {"name": "x"}, "addressType": "IPv4", '
        b'"endpoints": [{"addresses": ["a b:c"]}], "ports": [{"port": 1}]}}',
        b"not json",
    ],
)
async def test_events_that_are_none_are_faults_and_the_source_goes_on(
    tmp_path: Path, line: bytes
) -> None:
    async with cluster(tmp_path) as (server, found):
        server.put("s-1", endpoint("10.0.0.1", pod="gpu-0"))
        async with aclosing(found.watch()) as answers:
            await heard(answers, "gpu-0")
            server.raw(line)
            server.hang_up()
            server.remove("s-1")
            found._version = ""
            server.put("s-2", endpoint("10.0.0.2", pod="gpu-1"))
            await heard(answers, "gpu-1")


@pytest.mark.usefixtures("_no_pauses")
async def test_an_endpoint_that_can_be_no_backend_is_a_fault_until_it_is_mended(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, BackendTemplate(new_backend)) as (server, found):
        server.put("s-1", endpoint("10.0.0.1", pod="gpu-0"))
        async with aclosing(found.watch()) as answers:
            await heard(answers, "gpu-0")
            server.put("s-2", endpoint("a:b", pod="gpu-1"))
            assert "gpu-1 at a:b:8000 cannot be a backend" in await fault(answers)
            server.put("s-2", endpoint("10.0.0.2", pod="gpu-1"))
            await heard(answers, "gpu-0", "gpu-1")


async def test_the_api_server_is_believed_by_the_accounts_certificate_only(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path, "127.0.0.1")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    one = slice_of("s-1", endpoint("10.0.0.1", pod="gpu-0"))
    body = orjson.dumps({"metadata": {"resourceVersion": "1"}, "items": [one]})
    for file, text in (("token", "first"), ("namespace", "llm")):
        (tmp_path / file).write_text(text)
    async with RawServer({"*": [(response(body),)]}, tls=tls) as server:
        service = KubernetesService("vllm", lambda: server.url, PodAccount.of(tmp_path))
        found = KubernetesSource("k8s", service, BackendTemplate(Backend))
        with pytest.raises(SourceError, match=r"cannot read .*ca\.crt"):
            await found.fetch()
        (tmp_path / "ca.crt").write_bytes(certificate.read_bytes())
        assert names(await found.fetch()) == ["gpu-0"]
        other = tmp_path / "other"
        other.mkdir()
        (tmp_path / "ca.crt").write_bytes(self_signed(other, "127.0.0.1").read_bytes())
        with pytest.raises(SourceError, match=r"does not answer: .*certificate"):
            await found.fetch()
