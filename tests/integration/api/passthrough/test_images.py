"""Images of a request: shown to models that see, fetched under the rules of tools."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from tests.fakes.chat_server import MODEL, ChatServer, chatml, write_model
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving
from tests.fakes.stream import texts
from tests.fakes.text_server import Said, TextServer, text
from tests.integration.api.bodies import create, refused
from tests.integration.api.following import ended

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx2

    from tests.integration.api.passthrough.conftest import Passing

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
DATA_URL = f"data:image/png;base64,{b64encode(PNG).decode()}"


def shown(url: str, **fields: Any) -> list[dict[str, Any]]:
    image = {"type": "input_image", "image_url": url, **fields}
    return [{"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, image]}]


@pytest.fixture
async def site() -> AsyncIterator[str]:
    async def picture(_: object) -> Response:
        return Response(PNG, media_type="image/png")

    async def page(_: object) -> Response:
        return Response("<p>", media_type="text/html")

    async def moved(_: object) -> Response:
        return RedirectResponse("/picture.png")

    routes = [Route("/picture.png", picture), Route("/page", page), Route("/moved", moved)]
    async with serving(Starlette(routes=routes)) as url:
        yield url


async def test_a_data_url_goes_to_the_server_as_it_is(passing: Passing) -> None:
    made = await create(passing.client, model="toy-ollama", input=shown(DATA_URL, detail="low"))
    assert made["status"] == "completed"
    image = {"type": "image_url", "image_url": {"url": DATA_URL, "detail": "low"}}
    content = passing.servers["toy-ollama"].asked[0]["messages"][0]["content"]
    assert content == [{"type": "text", "text": "What is it?"}, image]
    again = await create(
        passing.client, model="toy-ollama", input="And?", previous_response_id=made["id"]
    )
    assert again["status"] == "completed"
    first, _, last = passing.servers["toy-ollama"].asked[1]["messages"]
    assert (first["content"], last["content"]) == (content, "And?")


async def test_only_what_a_model_that_sees_is_not_shown_is_named_as_dropped(
    passing: Passing,
) -> None:
    body: dict[str, Any] = {"model": "toy-ollama", "input": shown(DATA_URL)}
    seen = await passing.client.post("/v1/responses", json=body)
    assert "x-gateway-dropped-input" not in seen.headers
    body["input"][0]["content"].append({"type": "input_file", "file_id": "f"})
    answer = await passing.client.post("/v1/responses", json=body)
    assert answer.headers["x-gateway-dropped-input"] == "input_file;count=1"


@pytest.mark.parametrize("path", ["/picture.png", "/moved"])
async def test_a_url_is_fetched_by_the_gateway(passing: Passing, site: str, path: str) -> None:
    await create(passing.client, model="toy-vllm", input=shown(site + path))
    content = passing.servers["toy-vllm"].asked[0]["messages"][0]["content"]
    assert content[1]["image_url"]["url"] == DATA_URL


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("data:image/png;base64,AAAA", "its data is no image/png"),
        ("data:image/tiff;base64,AAAA", "it is no image of"),
        ("data:image/png;base64,%%%", "no base64"),
        ("ftp://example.com/x.png", "neither of http"),
        ("http://169.254.169.254/latest", "not fetched"),
        ("http://[x#y", "not fetched"),
        ("{site}/page", "leads to is none of"),
        ("{site}/none", "answered 404"),
    ],
)
async def test_what_is_no_image_is_refused(passing: Passing, site: str, url: str, why: str) -> None:
    body = shown(url.format(site=site))
    error = await refused(passing.client, 400, model="toy-vllm", input=body)
    assert (error["code"], error["param"]) == ("invalid_image", "input[0].content[1]")
    assert why in error["message"]


async def test_what_a_tool_returned_is_shown_behind_its_result(passing: Passing) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    output = {
        "type": "function_call_output",
        "call_id": "c",
        "output": [{"type": "input_image", "image_url": DATA_URL}],
    }
    await create(passing.client, model="toy-vllm", input=[call, output])
    _, result, image = passing.servers["toy-vllm"].asked[0]["messages"]
    assert (result["role"], image["role"]) == ("tool", "user")
    assert image["content"][0]["image_url"]["url"] == DATA_URL


async def test_a_model_that_sees_nothing_is_told_that_an_image_is_missing(passing: Passing) -> None:
    await create(passing.client, model="toy-tgi", input=shown(DATA_URL))
    content = passing.servers["toy-tgi"].asked[0]["messages"][0]["content"]
    assert content.endswith("[image omitted: this model reads text only]")


@pytest.mark.slow
async def test_an_operator_may_have_it_refused_instead(database_url: str) -> None:
    server = TextServer(lambda _: text("?"))
    async with serving(server.app) as url:
        settings = gateway_settings(
            database_url,
            [url],
            models=[{"id": server.model, "format": "passthrough"}],
            input={"media": "reject"},
        )
        async with (
            running_gateway(settings) as running,
            http_client(running.url, headers=running.headers) as client,
        ):
            error = await refused(client, 400, model=server.model, input=shown(DATA_URL))
            assert error["param"] == "input[0].content[1].type"
            part = {"type": "image_url", "image_url": {"url": DATA_URL}}
            body = {"model": server.model, "messages": [{"role": "user", "content": [part]}]}
            chat = await client.post("/v1/chat/completions", json=body)
    assert chat.status_code == 400
    assert chat.json()["error"]["param"] == "messages[0].content[0].type"


@dataclass
class Seeing:
    """A client of a model with a chat template that sees: its server is asked by ids, or, where
    there is an image, by messages, which `eyes` answer.
    """

    client: httpx2.AsyncClient
    server: ChatServer
    eyes: TextServer


@pytest.fixture
async def seeing(database_url: str, tmp_path: Path) -> AsyncIterator[Seeing]:
    server, eyes = ChatServer(lambda _: "By ids."), TextServer(lambda _: text("A cat."), "vllm")
    eyes.model = MODEL
    app = server.app
    app.routes.append(next(one for one in eyes.app.routes if "chat" in getattr(one, "path", "")))
    async with serving(app) as url:
        settings = gateway_settings(
            database_url,
            [url],
            models=[
                {
                    "id": MODEL,
                    "format": "chat",
                    "tokenizer": str(write_model(tmp_path)),
                    "reasoning": "think",
                    "calls": "hermes",
                    "modalities": ["text", "image"],
                }
            ],
        )
        async with (
            running_gateway(settings) as running,
            http_client(running.url, headers=running.headers) as client,
        ):
            yield Seeing(client, server, eyes)


@pytest.mark.slow
async def test_a_chat_model_that_sees_is_asked_at_its_chat_endpoint(seeing: Seeing) -> None:
    """With an image as messages, without one as ids; and one goes on behind the other."""
    client = seeing.client
    plain = await create(client, model=MODEL, input="Hi.")
    seen = await create(
        client, model=MODEL, input=shown(DATA_URL), previous_response_id=plain["id"]
    )
    likely = await create(
        client, model=MODEL, input=shown(DATA_URL), include=["message.output_text.logprobs"]
    )
    background = await create(client, model=MODEL, input=shown(DATA_URL), background=True)
    told = (await client.get("/v1/models")).json()["data"][0]["capabilities"]
    replayed = await client.get(f"/v1/responses/{seen['id']}")
    assert (texts(plain), texts(seen)) == (["By ids."], ["A cat."])
    assert len(seeing.server.asked) == 1
    roles = [one["role"] for one in seeing.eyes.asked[0]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert "vision" in told
    logprobs = likely["output"][-1]["content"][0]["logprobs"]
    assert "".join(one["token"] for one in logprobs) == "A cat."
    assert replayed.json() == seen
    assert background["status"] in {"queued", "in_progress", "completed"}


def said_of(response: dict[str, Any]) -> list[str]:
    return [part["text"] for item in response["output"] for part in item["content"]]


@pytest.mark.slow
@pytest.mark.parametrize("background", [False, True])
async def test_a_thought_that_the_template_opens_is_none_of_the_answer(
    seeing: Seeing, background: bool
) -> None:
    """What its server says begins within the thought."""
    client, eyes = seeing.client, seeing.eyes
    seeing.server.template = partial(chatml, opens_thoughts=True)
    eyes.script = lambda _: text("It has whiskers.\n</think>\n\nA cat.")
    asked = {"model": MODEL, "input": shown(DATA_URL), "background": background}
    seen = await ended(client, (await create(client, **asked))["id"])
    assert said_of(seen) == ["It has whiskers.", "A cat."]
    assert [item["type"] for item in seen["output"]] == ["reasoning", "message"]
    eyes.script = lambda _: [Said("thought", "It has whiskers."), *text("A cat.")]
    seen = await ended(client, (await create(client, **asked))["id"])
    assert said_of(seen) == ["It has whiskers.", "A cat."]
    eyes.script = lambda _: text("A cat.")
    seen = await ended(client, (await create(client, **asked, reasoning={"effort": "none"}))["id"])
    assert said_of(seen) == ["A cat."]
