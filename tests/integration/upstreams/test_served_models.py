"""What the pool makes of what backends say: names, adapters, and what it cannot use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import orjson
import pytest

from gateway.errors import ModelNotFound, ModelNotServed, NoUpstreamAvailable
from gateway.upstreams.backend import Backend
from gateway.upstreams.ejection import EjectionPolicy
from gateway.upstreams.pool import ModelInfo
from tests.fakes.completion_stream import turn
from tests.fakes.fleet import BUSY, MISSING, REQUEST, backend_server, fleet, listing
from tests.fakes.logs import captured_logs
from tests.fakes.raw_server import Act, RawServer, Script, response

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

ADAPTERS = [
    {"id": "base", "parent": None, "max_model_len": 8192},
    {"id": "ad", "parent": "base", "max_model_len": None},
]


def sglang(*turns: Script, rows: Sequence[object] = ADAPTERS, **said: object) -> RawServer:
    told = {"version": "0.5.23", "frontend": "python", **said}
    return RawServer(
        {
            "/v1/completions": turns or [turn([1])],
            "/v1/models": [(response(orjson.dumps({"data": rows})),)],
            "/server_info": [(response(orjson.dumps(told)),)],
            "/ready": [(response(b""),)],
            "*": [MISSING],
        }
    )


def bodies(server: RawServer) -> list[dict[str, Any]]:
    """The completions that it was asked for."""
    posts = [request for request in server.requests if request.path == "/v1/completions"]
    return [orjson.loads(request.body) for request in posts]


async def test_an_adapter_of_sglang_is_asked_for_as_one() -> None:
    async with fleet(sglang()) as known:
        assert known.pool.models == (ModelInfo("base", 8192), ModelInfo("ad", 8192, "base"))
        for model in ("ad", "base"):
            await known.ids(replace(REQUEST, model=model))
    asked = [(body["model"], body.get("lora_path")) for body in bodies(known.servers[0])]
    assert asked == [("base", "ad"), ("base", None)]


async def test_an_adapter_of_that_name_of_another_base_model_is_not_used() -> None:
    rows = [
        {"id": "other", "parent": None, "max_model_len": 4096},
        {"id": "ad", "parent": "other", "max_model_len": None},
    ]
    async with fleet(sglang(), sglang(rows=rows), sglang()) as known:
        for _ in range(4):
            await known.ids(replace(REQUEST, model="ad"))
        assert known.served() == [2, 0, 2]
        assert known.pool.parent_of("ad") == "base"
        assert known.pool.models[1] == ModelInfo("ad", 8192, "base")
        assert any("gpu-1: its ad is an adapter of other" in one for one in known.pool.warnings)
        await known.ids(replace(REQUEST, model="other"))
        assert known.served() == [2, 1, 2]


async def test_an_sglang_that_schedules_by_priority_is_always_sent_one() -> None:
    prioritised = sglang(enable_priority_scheduling=True)
    async with fleet(prioritised, sglang(enable_priority_scheduling=False)) as known:
        for _ in range(2):
            await known.ids(replace(REQUEST, model="base"))
    sent = [body.get("priority") for server in known.servers for body in bodies(server)]
    assert sent == [0, None]


async def test_a_model_that_is_not_listed_is_not_asked_for() -> None:
    """SGLang would answer with its base model."""
    backends = [Backend("gpu-0", "", {"m": "m"}, context_lengths={"m": 9000})]
    async with fleet(sglang(), backends=backends) as known:
        with pytest.raises(ModelNotServed):
            await known.ids()
        assert bodies(known.servers[0]) == []


async def test_before_it_has_said_what_it_serves_a_backend_is_asked_for_nothing() -> None:
    backends = [Backend("gpu-0", "", {"m": "m"}, context_lengths={"m": 9000})]
    async with fleet(backend_server(models=[BUSY]), backends=backends) as known:
        with pytest.raises(NoUpstreamAvailable, match="what it serves"):
            await known.ids()
        assert known.served() == [0]


@pytest.mark.parametrize(
    "refusal",
    [
        response(b'{"error":{"message":"The model `m` does not exist."}}', status=404),
        response(
            b'{"object":"error","message":"Got LoRA adapter that has never been loaded: m"}',
            status=400,
        ),
    ],
)
async def test_a_model_that_is_gone_is_asked_of_another_backend(refusal: bytes) -> None:
    ejection = EjectionPolicy(failures_max=1)
    gone = backend_server((refusal,))
    async with fleet(gone, backend_server(turn([7])), ejection=ejection) as known:
        for _ in range(3):
            assert await known.ids() == [7]
        assert known.served() == [1, 3]
        assert [state.healthy for state in known.pool.members()] == [True, True]


async def test_a_model_that_its_last_backend_has_lost_is_told() -> None:
    backends = [Backend("gpu-0", "", {"m": "m"})]
    gone = backend_server((response(b'{"error":"no model `m`"}', status=404),))
    async with fleet(gone, backends=backends) as known:
        with pytest.raises(ModelNotFound):
            await known.ids()
        (warning,) = known.pool.warnings
        assert "no backend serves the model 'm': gpu-0 serves nothing" in warning


async def test_a_404_of_a_proxy_without_backends_takes_no_model_away() -> None:
    """An ingress says so while all that is behind it starts anew."""
    proxy = backend_server(
        (response(b"default backend - 404", status=404),), turn([7]), models=[listing("m")]
    )
    async with fleet(proxy) as known:
        with pytest.raises(NoUpstreamAvailable, match="answered 404"):
            await known.ids()
        assert known.pool.models == (ModelInfo("m", 8192),)
        assert await known.ids() == [7]


async def test_a_model_that_is_gone_stays_so_when_another_backend_is_described() -> None:
    gone = backend_server((response(b'{"error":"no model `m`"}', status=404),))
    late = backend_server(turn([7]), models=[BUSY, listing("m")], health=[(response(b""),)])
    async with fleet(gone, backend_server(turn([7])), late) as known:
        await known.ids()
        await known.ids()
        assert known.served() == [1, 2, 0]
        await known.pool.poll()
        for _ in range(6):
            await known.ids()
        assert known.served() == [1, 5, 3]


@pytest.mark.parametrize(
    ("wanted", "listed"),
    [("gpt-oss-120b", "openai/gpt-oss-120b"), ("openai/gpt-oss-120b", "gpt-oss-120b")],
)
async def test_a_model_may_be_listed_with_its_maker(wanted: str, listed: str) -> None:
    backends = [Backend("gpu-0", "", {"m": wanted})]
    async with fleet(backend_server(models=[listing(listed)]), backends=backends) as known:
        assert known.pool.models == (ModelInfo("m", 8192),)
        assert known.pool.warnings == ()
        await known.ids()
    assert bodies(known.servers[0])[0]["model"] == listed


async def test_each_backend_is_asked_under_the_name_that_it_lists() -> None:
    backends = [Backend(name, "", {"m": "gpt-oss-20b"}) for name in ("gpu-0", "gpu-1")]
    listed = ["gpt-oss-20b", "openai/gpt-oss-20b"]
    servers = [backend_server(turn([1]), models=[listing(name)]) for name in listed]
    async with fleet(*servers, backends=backends) as known:
        assert known.pool.warnings == ()
        for _ in range(4):
            await known.ids()
    assert [{body["model"] for body in bodies(one)} for one in known.servers] == [
        {name} for name in listed
    ]


async def test_a_backend_that_is_not_used_for_what_it_may_serve_is_told_once() -> None:
    backends = [Backend(f"gpu-{number}", "", {"m": "m"}) for number in range(3)]
    servers = [
        backend_server(models=[listing(name)], health=[MISSING, (response(b""),)] * 3)
        for name in ("m", "a/m", "b/m")
    ]
    with captured_logs() as log:
        async with fleet(*servers, backends=backends) as known:
            for _ in range(3):
                await known.pool.poll()
            warnings = known.pool.warnings
    told = [event for event in log if event["event"] == "a backend is not used"]
    assert {event["upstream"] for event in told} == {"gpu-1", "gpu-2"}
    assert {event["reason"] for event in told} == set(warnings)
    assert len(told) == len(warnings) == 2
    assert "gpu-1 is not used as it could be: it serves 'a/m'" in warnings[0]


async def test_what_might_be_two_models_of_the_fleet_is_neither() -> None:
    backends = [Backend(name, "", {"m": "m"}) for name in ("gpu-0", "gpu-1")]
    servers = [backend_server(models=[listing(f"{maker}/m")]) for maker in ("a", "b")]
    async with fleet(*servers, backends=backends) as known:
        with pytest.raises(ModelNotServed):
            await known.ids()
        (warning,) = known.pool.warnings
        assert "gpu-0 serves 'a/m'; gpu-1 serves 'b/m'" in warning


async def test_a_model_that_nobody_serves_is_told_once() -> None:
    backends = [Backend("gpu-0", "", {"m": "m"})]
    server = backend_server(models=[listing("x", "y")], health=[MISSING, (response(b""),)] * 3)
    with captured_logs() as log:
        async with fleet(
            server, backends=backends, ejection=EjectionPolicy(failures_max=1)
        ) as known:
            for _ in range(6):
                await known.pool.poll()
            assert known.pool.models == ()
            (warning,) = known.pool.warnings
    told = [event for event in log if event["event"] == "no backend serves a model"]
    assert [event["reason"] for event in told] == [warning]
    assert warning == (
        "no backend serves the model 'm': gpu-0 serves 'x', 'y'. "
        "Set served_as of this model to its name at the backend."
    )


async def test_a_backend_that_is_too_old_is_not_used_and_told_once() -> None:
    what_to_do = "Upgrade it to 0.5.3"
    with captured_logs() as log:
        async with fleet(
            sglang(version="0.5.2"), backend_server(turn([7]), models=[listing("base")])
        ) as known:
            await known.pool.start()
            for _ in range(3):
                assert await known.ids(replace(REQUEST, model="base")) == [7]
            unused, used = known.pool.members()
            assert (unused.healthy, unused.models, used.healthy) == (False, {}, True)
            assert known.metric("upstream_up", upstream="gpu-0") == 0
            (warning,) = known.pool.warnings
    assert what_to_do in warning
    (told,) = [event for event in log if event["event"] == "backend is not used"]
    assert (told["upstream"], told["url"]) == ("gpu-0", known.servers[0].url)
    assert what_to_do in told["reason"]


async def test_nothing_is_known_of_a_backend_that_has_not_answered() -> None:
    server = backend_server(models=[BUSY, listing("m")], health=[BUSY, (response(b""),)])
    async with fleet(server) as known:
        up = {"upstream": "gpu-0"}
        for _ in range(2):
            assert known.pool.members()[0].healthy is None
            assert known.metrics.registry.get_sample_value("gateway_upstream_up", up) is None
            await known.pool.poll()
        assert known.pool.members()[0].healthy
        assert known.metric("upstream_up", **up) == 1


async def test_a_backend_that_never_answered_is_unhealthy_after_a_while() -> None:
    server = backend_server(models=[BUSY], health=[(Act.RESET,)])
    async with fleet(server, ejection=EjectionPolicy(failures_max=2)) as known:
        for healthy in (None, None, False):
            assert known.pool.members()[0].healthy is healthy
            await known.pool.poll()


async def test_a_backend_that_is_down_is_told_with_its_url_and_cause_and_when_it_is_back() -> None:
    down: Script = (response(b"", status=503),)
    odd: Script = (response(b"", status=500),)
    server = backend_server(health=[down, down, odd, odd, (response(b""),)])
    with captured_logs() as log:
        async with fleet(server, ejection=EjectionPolicy(failures_max=1)) as known:
            for _ in range(5):
                await known.pool.poll()
            url = known.servers[0].url
    told = [(event["event"], event.get("reason")) for event in log if event.get("url") == url]
    assert told == [
        ("backend is unreachable", "GET /health answered 503"),
        ("backend is unreachable", "GET /health answered 500"),
        ("backend is back", None),
    ]


async def test_an_unknown_model_is_not_found_whatever_is_down() -> None:
    backends = [Backend(name, "", {"m": "m"}) for name in ("gpu-0", "gpu-1")]
    async with fleet(backend_server(), backend_server(models=[BUSY]), backends=backends) as known:
        with pytest.raises(ModelNotFound):
            raise known.pool.absence("other")
