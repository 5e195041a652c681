"""Sources of backends: real files and a real name server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from gateway.settings import Settings
from gateway.settings.sections import Discovery
from gateway.telemetry.metrics import Metrics
from gateway.upstreams.backend_sources import Membership, SourceError
from gateway.wiring.membership import sources
from tests.fakes.dns_server import dns_server

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gateway.upstreams.backend import Backend
    from gateway.upstreams.backend_sources import BackendSource

ONE = "backends:\n  - {name: gpu-1, url: 'http://gpu-1:8000'}\n"
TWO = ONE + "  - {name: gpu-2, url: 'http://gpu-2:8000'}\n"


def source(**fields: object) -> BackendSource:
    discovery = Discovery.model_validate({"name": "found", **fields})
    settings = Settings.model_validate(
        {"discovery": [discovery], "membership": {"refresh_s": 0.01}}
    )
    return sources(settings)[0]


def names(backends: Sequence[Backend]) -> list[str]:
    return [one.name for one in backends]


async def applied(changes: asyncio.Queue[Sequence[Backend]], *wanted: str) -> Sequence[Backend]:
    """The next backends of the pool that have these names."""
    async with asyncio.timeout(30):
        while names(found := await changes.get()) != list(wanted):
            pass
    return found


async def test_a_file_is_followed_however_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "backends.yaml"
    path.write_text(ONE)
    monkeypatch.setenv("THE_KEY", "sesame")
    found = source(kind="file", path=path)
    changes: asyncio.Queue[Sequence[Backend]] = asyncio.Queue()
    membership = Membership((), [found], changes.put, metrics=Metrics())
    following = asyncio.create_task(membership.run())
    (one,) = await applied(changes, "gpu-1")
    assert one.source == "found"
    assert one.base_url == "http://gpu-1:8000"
    path.write_text(TWO)
    await applied(changes, "gpu-1", "gpu-2")
    new = tmp_path / "new.yaml"
    new.write_text("backends: [{name: gpu-3, url: 'http://g:1', api_key: '${THE_KEY}'}]")
    new.replace(path)
    (three,) = await applied(changes, "gpu-3")
    assert three.api_key == "sesame"
    path.unlink()
    with pytest.raises(SourceError, match="cannot read it"):
        await found.fetch()
    assert not following.done(), "it goes on behind a fault"
    path.write_text("backends: []")
    await applied(changes)
    following.cancel()


@pytest.mark.slow
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


@pytest.mark.slow
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
        with pytest.raises(SourceError, match="SERVFAIL"):
            await found.fetch()


@pytest.mark.slow
async def test_a_name_server_that_is_silent_gives_way_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.upstreams.dns_source.ANSWER_S", 0.5)
    zone = {("h", "A"): ["10.0.0.1"]}
    async with dns_server(is_silent=True) as dead, dns_server(zone=zone) as server:
        found = source(kind="dns", host="h", servers=[dead.address, server.address])
        assert names(await found.fetch()) == ["10.0.0.1:8000"]
        server.is_silent = True
        with pytest.raises(SourceError, match=r"cannot look up h: .*expired"):
            await found.fetch()
