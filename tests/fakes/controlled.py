"""A gateway over simulated backends of any kind, and one request sent in every way there is."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import orjson
from openai.types.responses import Response

from tests.fakes.event_grammar import check_stream
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.observation import Backends
from tests.fakes.recount import log_of, recounted, used
from tests.fakes.serving import serving
from tests.fakes.stream import as_events, parse_stream
from tests.fakes.wayward_engine.directives import Attempts
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from tests.fakes.gateway import RunningGateway
    from tests.fakes.postgres import PostgresServer

Json = dict[str, Any]

MODEL: Final = "gpt-oss-20b"
TURN: Final = WaywardOptions()
"""An engine that holds whole turns to a grammar."""
ANSWER: Final = WaywardOptions(version="0.11.0")
"""One that holds no more than an answer."""
NONE: Final = WaywardOptions(version="0.10.2")
"""One that holds nothing."""
SGLANG: Final = WaywardOptions(engine="sglang")
"""Holds whole turns."""
SGLANG_RUST: Final = WaywardOptions(engine="sglang", frontend="rust")
"""The same, asked at `/generate`."""
FLEETS: Final = {
    "grammars": (TURN, TURN),
    "answers": (ANSWER, ANSWER),
    "no grammars": (NONE, NONE),
    "sglang": (SGLANG, SGLANG),
    "sglang rust": (SGLANG_RUST, SGLANG_RUST),
    "mixed": (NONE, TURN),
}
_VARYING: Final = re.compile(r'"(?:resp|rs|msg|fc|ctc|ctco|fco|lsh|sh|apc|call)_[0-9a-zA-Z_]{16,}"')


@dataclass(frozen=True)
class Shown:
    """What became of a request. `events` are those of its stream."""

    response: Json
    events: list[Json]
    background_id: str

    @property
    def status(self) -> str:
        """Of the response, with the reason if it has one."""
        response = self.response
        details = response["error"] or response["incomplete_details"] or {}
        return " ".join([response["status"], *details.values()][:2])

    @property
    def parts(self) -> list[Json]:
        """The parts of all messages."""
        items = self.response["output"]
        return [part for item in items if item["type"] == "message" for part in item["content"]]

    @property
    def calls(self) -> list[Json]:
        """All items that a client has to do something about."""
        return [item for item in self.response["output"] if item["type"].endswith("_call")]

    @property
    def text(self) -> str:
        """That of the only part of the answer."""
        (part,) = self.response["output"][-1]["content"]
        assert part["type"] == "output_text"
        return str(part["text"])

    def deltas(self, kind: str) -> list[str]:
        """Those of `response.{kind}.delta` events."""
        return [
            event["delta"] for event in self.events if event["type"] == f"response.{kind}.delta"
        ]


@dataclass(frozen=True)
class Site:
    """A gateway, its backends (all of one kind if `is_uniform`), and a client of a tenant."""

    running: RunningGateway
    backends: Backends
    client: httpx2.AsyncClient
    is_uniform: bool

    async def post(self, **body: Any) -> Json:
        """The body of a response, however it ended."""
        answer = await self.client.post("/v1/responses", json={"model": MODEL, **body})
        assert answer.status_code == 200, answer.text
        response: Json = answer.json()
        check_model(response)
        return response

    async def refused(self, status: int = 400, **body: Any) -> Json:
        """The error of a request that is refused in every way."""
        errors = []
        for way in ({}, {"stream": True}, {"background": True}):
            if body.get("store") is False and "background" in way:
                continue
            answer = await self.client.post("/v1/responses", json={"model": MODEL, **body, **way})
            assert answer.status_code == status, answer.text
            errors.append(answer.json()["error"])
        assert all(error == errors[0] for error in errors)
        return dict(errors[0])

    async def everywhere(self, *, recounts: bool = True, **body: Any) -> Shown:
        """What a request leads to: the same as a body, a stream, in the background, and replayed.

        `recounts`: its reasoning is in messages of the analysis channel alone.
        """
        await self.forget()
        plain = await self.post(**body)
        await self.forget()
        streamed = await self._events("POST", "/v1/responses", {**body, "stream": True})
        await self.forget()
        background = {**body, "stream": True, "background": True}
        live = await self._events("POST", "/v1/responses", background)
        response_id = live[0]["response"]["id"]
        url = f"/v1/responses/{response_id}"
        replayed = await self._events("GET", f"{url}?stream=true", None)
        assert _spoken(replayed) == _spoken(live)
        got = (await self.client.get(url)).json()
        assert got == live[-1]["response"] == replayed[-1]["response"]
        stored = (await self.client.get(f"/v1/responses/{plain['id']}")).json()
        assert stored == plain
        for other in (streamed[-1]["response"], got):
            # Which of several kinds of backends goes on after a repair is a matter of turns,
            # and so is how it ends.
            assert _alike(other) == _alike(plain) or not self.is_uniform
        await self._check_usage(got, recounts=recounts)
        return Shown(streamed[-1]["response"], streamed, response_id)

    async def forget(self) -> None:
        """Faults that happen so many times begin anew; what backends saw is forgotten."""
        for url in self.backends.urls:
            await self.backends.client.post(f"{url}/simulator/reset")

    async def _check_usage(self, response: Json, *, recounts: bool) -> None:
        base = self.running.process.foundation
        (tenant,) = [one for one in await self._tenants() if one.name == "acme"]
        counted = recounted(await log_of(base.database, tenant.id, response["id"]))
        told = used(response)
        if not recounts:
            counted["reasoning_tokens"] = told["reasoning_tokens"]
        assert told == counted
        usage = response["usage"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]

    async def _tenants(self) -> Any:
        return await self.running.tenants.list()

    async def _events(self, method: str, url: str, body: Json | None) -> list[Json]:
        sent = None if body is None else {"model": MODEL, **body}
        answer = await self.client.request(method, url, json=sent)
        assert answer.status_code == 200, answer.text
        events = parse_stream(answer.text)
        check_stream(as_events(events))
        return events


def check_model(response: Json) -> None:
    """OpenAI's SDK can read it. Its list of error codes knows only those of OpenAI."""
    error = response["error"] and {**response["error"], "code": "server_error"}
    Response.model_validate({**response, "error": error}, strict=True)


@asynccontextmanager
async def site(
    postgres: PostgresServer, template: str, *fleet: WaywardOptions, **sections: Any
) -> AsyncIterator[Site]:
    """A gateway with a database of its own. The backends are called `b0`, `b1` …"""
    name = await postgres.create(template)
    attempts = Attempts(10_000)
    async with AsyncExitStack() as stack:
        urls = []
        for number, options in enumerate(fleet):
            named = replace(options, name=f"b{number}")
            urls.append(await stack.enter_async_context(serving(create_simulator(named, attempts))))
        # A machine that is busy with tests must not put a backend in doubt.
        sections = {"upstream": {"health_interval_s": 3600}, **sections}
        settings = gateway_settings(postgres.database_url(name), urls, **sections)
        running = await stack.enter_async_context(running_gateway(settings))
        client = await stack.enter_async_context(http_client(running.url, headers=running.headers))
        bare = await stack.enter_async_context(http_client())
        yield Site(running, Backends(tuple(urls), bare), client, len(set(fleet)) <= 1)
    await postgres.drop(name)


def _alike(response: Json) -> Json:
    """Without what no two responses share: ids, times, cached tokens, and being background."""
    text = orjson.dumps(response).decode()
    bare: Json = orjson.loads(_VARYING.sub('"id"', text))
    for key in ("created_at", "completed_at", "background"):
        bare.pop(key)
    if bare["usage"] is not None:
        bare["usage"]["input_tokens_details"] = {}
    for item in bare["output"]:
        item.pop("encrypted_content", None)
    return bare


def _spoken(events: list[Json]) -> list[Json]:
    """Without what pads and what the clock said."""
    return [
        {key: value for key, value in event.items() if key != "obfuscation"} for event in events
    ]
