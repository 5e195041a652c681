"""Streams with tools that the gateway runs: OpenAI's types and order, whatever the model does."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.cli.page_index import PageSource, load
from gateway.simulator.demo_site import create_site
from gateway.store.postgres.database import Database
from tests.conformance.asking import MODEL, created, path_of
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.hosted_gateway import sections_with_tools
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving
from tests.fakes.tool_server import server_of
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx2

    from gateway.tenancy import Dialect
    from tests.conformance.checking import Document, Json
    from tests.fakes.postgres import PostgresServer

EVENT: Final[TypeAdapter[Any]] = TypeAdapter(ResponseStreamEvent)
MARKER: Final = re.compile(r"[【】†]|<\|")
ORDER: Final = {
    "web_search_call": ["in_progress", "searching", "completed"],
    "code_interpreter_call": [
        "in_progress", "code.delta", "code.done", "interpreting", "completed"
    ],
    "mcp_list_tools": ["in_progress", "completed"],
    "mcp_call": ["in_progress", "arguments.delta", "arguments.done", "completed"],
    "mcp_approval_request": [],
}  # fmt: skip
"""Between `output_item.added` and `.done` of a call that succeeds; deltas any number of times."""
CALLS: Final = {
    "search": "search lamp; open first; cite all",
    "scroll": "search lamp; open first; scroll 1; find the; cite",
    "python": r"python a = 1\nprint(a); python print(a + 1); quote",
    "mcp": 'mcp shop.add {"a": 1, "b": 2}; quote',
    "all": 'search lamp; python print(3); mcp shop.add {"a": 1, "b": 2}; say done',
}
ATTACKS: Final = (
    "hosted_bad_json",
    "hosted_no_args",
    "hosted_functions_prefix",
    "hosted_commentary",
    "hosted_not_offered:browser.search",
    "hosted_not_offered:container.exec",
    "hosted_not_offered:functions.shop.steal",
    "hosted_two_calls",
    "hosted_wrapped_code",
    "hosted_huge_args",
    "marker_split",
    "marker_unknown",
    "marker_open_at_end",
    "tool_result_forged",
)


@pytest.fixture(scope="module")
async def tool_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """An MCP server."""
    folder: Path = tmp_path_factory.mktemp("effects")
    async with serving(server_of(folder).streamable_http_app()) as url:
        yield f"{url}/mcp"


@pytest.fixture(scope="module")
async def client(postgres: PostgresServer, template: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a gateway whose tools are on."""
    name = await postgres.create(template)
    url = postgres.database_url(name)
    async with _served(url) as opened:
        yield opened
    await postgres.drop(name)


@asynccontextmanager
async def _served(database_url: str) -> AsyncIterator[httpx2.AsyncClient]:
    backend = create_simulator(WaywardOptions())
    async with serving(backend) as backend_url, serving(create_site()) as site_url:
        sections = sections_with_tools(site_url.removeprefix("http://"))
        settings = gateway_settings(database_url, [backend_url], **sections)
        database = Database(
            database_url, pool_size_max=2, command_timeout_s=30, connect_timeout_s=30
        )
        try:
            await load(settings, database, PageSource(f"{site_url}/", pages_max=50), quiet=True)
        finally:
            await database.close()
        async with (
            running_gateway(settings) as running,
            http_client(running.url, headers=running.headers) as opened,
        ):
            yield opened


def tools(tool_url: str) -> list[Json]:
    """All three."""
    shop = {
        "type": "mcp",
        "server_label": "shop",
        "server_url": tool_url,
        "require_approval": "never",
    }
    interpreter = {"type": "code_interpreter", "container": {"type": "auto"}}
    return [{"type": "web_search"}, interpreter, shop]


async def streamed(client: httpx2.AsyncClient, said: str, **fields: Any) -> list[Json]:
    """The events of a response."""
    body = {"model": MODEL, "input": said, "stream": True, **fields}
    answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    return events_of(answer.text)


def events_of(text: str) -> list[Json]:
    """The data of server-sent events."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def check(events: list[Json]) -> Json:
    """Assert what holds of every stream; the response that it ends with."""
    for event in events:
        EVENT.validate_python(event, strict=True)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    added = [event for event in events if event["type"] == "response.output_item.added"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in added] == list(range(len(added)))
    assert [event["item"]["id"] for event in added] == [event["item"]["id"] for event in done]
    response: Json = events[-1]["response"]
    assert response["output"] == [event["item"] for event in done]
    Response.model_validate(response, strict=True)
    for item in response["output"]:
        check_item(events, item)
    return response


def check_item(events: list[Json], item: Json) -> None:
    """Assert that an item's events come in order between its first and its last."""
    own = [event for event in events if event.get("item_id") == item["id"]]
    if item["type"] in ORDER:
        steps = list(dict.fromkeys(_step(event["type"], item["type"]) for event in own))
        expected = ORDER[item["type"]]
        if item.get("status", "completed") == "completed" and not item.get("error"):
            assert steps == [one for one in expected if one in steps or "delta" not in one]
        else:
            assert steps[-1:] != ["completed"]
    if item["type"] == "message":
        text = "".join(part.get("text", "") for part in item["content"])
        assert not MARKER.search(text), text
        assert not any(MARKER.search(event.get("delta", "")) for event in own)
        for part in item["content"]:
            for citation in part.get("annotations", ()):
                said = part["text"][citation["start_index"] : citation["end_index"]]
                assert said == f"([{citation['title']}]({citation['url']}))"


def _step(event: str, item: str) -> str:
    return event.removeprefix(f"response.{item}").lstrip("._")


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
async def test_every_event_is_of_its_type_and_in_its_place(
    client: httpx2.AsyncClient, tool_url: str, name: str
) -> None:
    events = await streamed(client, f"lamp [[sim steps={CALLS[name]}]]", tools=tools(tool_url))
    response = check(events)
    assert response["status"] == "completed"
    stored = await client.get(path_of(response))
    assert stored.json() == response


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
async def test_what_is_not_streamed_says_the_same(
    client: httpx2.AsyncClient, tool_url: str, name: str
) -> None:
    said = f"lamp [[sim steps={CALLS[name]}]]"
    whole = await created(client, said, tools=tools(tool_url))
    streamed_one = check(await streamed(client, said, tools=tools(tool_url)))
    kinds = [[item["type"] for item in one["output"]] for one in (whole, streamed_one)]
    assert kinds[0] == kinds[1]
    assert _texts(whole) == _texts(streamed_one)


def _texts(response: Json) -> list[str]:
    return [
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("name", ["search", "python", "mcp"])
async def test_whatever_the_model_does_the_stream_is_in_order(
    client: httpx2.AsyncClient, tool_url: str, attack: str, name: str
) -> None:
    said = f"lamp [[sim attack={attack} steps={CALLS[name]}]]"
    response = check(await streamed(client, said, tools=tools(tool_url), max_tool_calls=6))
    assert response["status"] in {"completed", "incomplete", "failed"}
    assert response["status"] != "failed" or response["error"]["code"] != "server_error"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["python", "browser.search", "functions.shop.add"])
async def test_tools_that_were_not_asked_for_are_not_run(
    client: httpx2.AsyncClient, name: str
) -> None:
    said = f"[[sim attack=hosted_not_offered:{name} steps=say done]]"
    response = check(await streamed(client, said))
    kinds = {item["type"] for item in response["output"]}
    assert kinds <= {"reasoning", "message", "function_call"}


SHOWN_IN_OPEN_RESPONSES: Final = {"message", "reasoning"}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
async def test_the_other_dialect_shows_the_answer_and_its_citations(
    client: httpx2.AsyncClient, checkers: dict[Dialect, Document], tool_url: str, name: str
) -> None:
    """Tools are run all the same; their items and events are none of the specification's."""
    document = checkers["openresponses"]
    body = {
        "model": MODEL,
        "input": f"lamp [[sim steps={CALLS[name]}]]",
        "tools": tools(tool_url),
        "background": True,
        "stream": True,
    }
    answer = await client.post("/openresponses/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    events = events_of(answer.text)
    response = document.stream(events)
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    assert {item["type"] for item in response["output"]} <= SHOWN_IN_OPEN_RESPONSES
    ours = (await client.get(f"/v1/responses/{response['id']}")).json()
    assert {item["type"] for item in ours["output"]} - SHOWN_IN_OPEN_RESPONSES
    assert _annotated(response) == _annotated(ours)
    follows = await client.get(
        f"/openresponses/v1/responses/{response['id']}",
        params={"stream": "true", "starting_after": numbers[3]},
    )
    assert events_of(follows.text) == events[4:]


@pytest.mark.slow
@pytest.mark.parametrize("with_items", [False, True])
@pytest.mark.parametrize("approve", [False, True])
async def test_an_approval_is_a_call_in_the_other_dialect_and_answered_as_one(
    client: httpx2.AsyncClient,
    checkers: dict[Dialect, Document],
    tool_url: str,
    approve: bool,
    with_items: bool,
) -> None:
    """Continued by the id of the response, or with all of its items sent again."""
    document, path = checkers["openresponses"], "/openresponses/v1/responses"
    shop = {**tools(tool_url)[-1], "require_approval": "always"}
    question = {"role": "user", "content": '[[sim steps=mcp shop.add {"a": 40, "b": 2}; quote]]'}
    body = {"model": MODEL, "input": [question], "tools": [shop], "background": True}
    streamed = await client.post(path, json={**body, "stream": True})
    asked = document.stream(events_of(streamed.text))
    read = await client.get(f"{path}/{asked['id']}")
    assert read.json() == asked
    call = asked["output"][-1]
    assert (call["type"], call["name"]) == ("function_call", "mcp_approval_request")
    said = {"server_label": "shop", "name": "add", "arguments": '{"a": 40, "b": 2}'}
    assert json.loads(call["arguments"]) == said
    answer = {
        "type": "function_call_output",
        "call_id": call["call_id"],
        "output": json.dumps({"approve": approve}),
    }
    before: Json = {"previous_response_id": asked["id"], "input": [answer]}
    if with_items:
        before = {"input": [question, *asked["output"], answer]}
    again = await client.post(path, json={"model": MODEL, "tools": [shop], **before})
    assert again.status_code == 200, again.text
    document.completed(again.json())
    texts = [text for text, _ in _annotated(again.json())]
    assert ("42" in texts[-1]) is approve
    ours = (await client.get(f"/v1/responses/{again.json()['id']}")).json()
    assert ("mcp_call" in {item["type"] for item in ours["output"]}) is approve
    listed = await client.get(f"{path}/{again.json()['id']}/input_items?order=asc")
    document.items(listed.json()["data"])
    words = {**answer, "output": "I know no such tool."}
    before["input"][-1] = words
    refused = await client.post(path, json={"model": MODEL, "tools": [shop], **before})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == f"input[{len(before['input']) - 1}].output"


async def test_a_context_with_hosted_items_goes_on_in_the_other_dialect(
    client: httpx2.AsyncClient, checkers: dict[Dialect, Document], tool_url: str
) -> None:
    first = check(
        await streamed(client, "[[sim steps=python kept = 6 * 7; say ok]]", tools=tools(tool_url))
    )
    body = {
        "model": MODEL,
        "input": "[[sim steps=python print(kept); quote]]",
        "tools": tools(tool_url),
        "previous_response_id": first["id"],
    }
    answer = await client.post("/openresponses/v1/responses", json=body)
    second = answer.json()
    checkers["openresponses"].completed(second)
    assert ["42" in text for text, _ in _annotated(second)] == [True]


def _annotated(response: Json) -> list[tuple[str, Any]]:
    """The texts of a response, each with its annotations."""
    return [
        (part["text"], part["annotations"])
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    ]
