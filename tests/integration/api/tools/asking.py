"""A request asked in every way there is, all answers to which must agree, by OpenAI's own types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.fakes.event_grammar import check_stream
from tests.fakes.stream import as_events, parse_stream
from tests.integration.api.bodies import MODEL
from tests.integration.api.following import created, listed, resumed
from tests.integration.api.tools.recounting import check_bill

if TYPE_CHECKING:
    import httpx2

    from gateway.store.postgres.database import Database
    from tests.fakes.observation import Backends

Json = dict[str, Any]

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
CALLS = (
    "function_call",
    "custom_tool_call",
    "local_shell_call",
    "shell_call",
    "apply_patch_call",
    "tool_search_call",
)


@dataclass(frozen=True)
class Told:
    """One response: all events of its stream, and what it is at the end."""

    events: list[Json]
    response: Json

    @property
    def calls(self) -> list[Json]:
        """The calls in it."""
        return calls_of(self.response)

    @property
    def announced(self) -> list[Json]:
        """The calls that a client of the stream saw begin."""
        added = [event["item"] for event in self.events if event["type"].endswith("item.added")]
        return [item for item in added if item["type"] in CALLS]

    @property
    def code(self) -> str | None:
        """Why it failed; None unless it did."""
        error: Json | None = self.response["error"]
        return error["code"] if error else None

    @property
    def text(self) -> str:
        """All that was answered."""
        messages = [item for item in self.response["output"] if item["type"] == "message"]
        return "".join(part.get("text", "") for item in messages for part in item["content"])


@dataclass(frozen=True)
class Asker:
    """A client, and what is behind its gateway. `holds`: a backend knows grammars."""

    client: httpx2.AsyncClient
    backends: Backends
    database: Database
    holds: bool

    async def stream(self, **body: Any) -> Told:
        """A stream in the background. Its replay has the same bytes, `GET` shows the same end, and
        it costs what it should.
        """
        frames = await listed(created(self.client, **body))
        events = parse_stream("".join(frames))
        response = check_stream(as_events(events)).response
        for event in events:
            assert EVENT.validate_python(_as_openai_fails(event)).type == event["type"]
        assert (await self.client.get(f"/v1/responses/{response['id']}")).json() == response
        assert await listed(resumed(self.client, response["id"])) == frames
        await check_bill(response, self.database, self.backends)
        return Told(events, response)

    async def body(self, **body: Any) -> Json:
        """The response as one body."""
        answer = await self.client.post("/v1/responses", json={"model": MODEL, **body})
        response: Json = answer.json()
        assert answer.status_code == 200, answer.text
        Response.model_validate(_as_openai_fails({"response": response})["response"], strict=True)
        return response

    async def ask(self, text: str, /, **body: Any) -> Told:
        """The same as a stream and as a body, which say the same."""
        told = await self.stream(input=text, **body)
        # A backend counts how often a prompt went wrong (`times=`), so that it must be another one.
        whole = await self.body(input=f"{text} ", **body)
        assert content_of(whole) == content_of(told.response)
        return told

    async def refusal(self, status: int, **body: Any) -> Json:
        """The error of a request that is not served."""
        answer = await self.client.post("/v1/responses", json={"model": MODEL, **body})
        assert answer.status_code == status, answer.text
        error: Json = answer.json()["error"]
        return error


def calls_of(response: Json) -> list[Json]:
    """The calls in a response."""
    return [item for item in response["output"] if item["type"] in CALLS]


def content_of(response: Json) -> Json:
    """What two responses that say the same have in common."""
    output = [
        {key: value for key, value in item.items() if key not in {"id", "call_id"}}
        for item in response["output"]
    ]
    tokens = response["usage"]["output_tokens"]
    return {"output": output, "tokens": tokens, **{k: response[k] for k in ("status", "error")}}


def _as_openai_fails(event: Json) -> Json:
    """With a code that OpenAI's types know, if it shows a response that failed."""
    if not (event.get("response") or {}).get("error"):
        return event
    response = event["response"]
    error = {**response["error"], "code": "server_error"}
    return {**event, "response": {**response, "error": error}}
