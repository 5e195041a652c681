"""Streams over HTTP: frames, beginning and end, and the order of events for each kind of item."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from tests.conformance.asking import BREAKS_OFF, FUNCTION, MODEL
from tests.conformance.checking import TERMINAL
from tests.fakes.event_grammar import check_stream
from tests.fakes.stream import as_events, stream

if TYPE_CHECKING:
    import httpx2

    from tests.conformance.checking import Document, Json

requirement = pytest.mark.requirement

NOTE: Json = {"type": "custom", "name": "note", "description": "Keeps a text."}
HOSTED: list[Json] = [
    {"type": "web_search"},
    {"type": "file_search", "vector_store_ids": ["vs"]},
    {"type": "code_interpreter", "container": "c"},
    {"type": "mcp", "server_label": "s", "server_url": "https://mcp.example"},
    {"type": "image_generation"},
]
TEXT: Json = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


async def events_of(client: httpx2.AsyncClient, asked: str, /, **fields: Any) -> list[Json]:
    return await stream(client, {"model": MODEL, "input": asked, **fields})


def between(events: list[Json], kind: str) -> list[str]:
    """The types of the events of the first item of a kind, each as often as it stands in a row."""
    index = next(
        event["output_index"]
        for event in events
        if event["type"] == "response.output_item.added" and event["item"]["type"] == kind
    )
    types = [event["type"] for event in events if event.get("output_index") == index]
    assert (types[0], types[-1]) == ("response.output_item.added", "response.output_item.done")
    return [
        name.removeprefix("response.")
        for at, name in enumerate(types[1:-1])
        if name != types[at] or not name.endswith(".delta")
    ]


@pytest.mark.parametrize(
    ("text", "fields", "kind", "order"),
    [
        pytest.param(
            "[[sim think=none tokens=30]]",
            {},
            "message",
            "content_part.added output_text.delta output_text.done content_part.done",
            marks=requirement("order.message"),
        ),
        pytest.param(
            "Greet me. [[sim drift=refusal grammar_ids=none]]",
            {"text": {"format": TEXT}},
            "message",
            "content_part.added refusal.delta refusal.done content_part.done",
            marks=requirement("order.refusal"),
        ),
        pytest.param(
            "[[sim think=30 say=ok]]",
            {},
            "reasoning",
            "content_part.added reasoning_text.delta reasoning_text.done content_part.done",
            marks=requirement("order.reasoning"),
        ),
        pytest.param(
            "[[sim call=f]]",
            {"tools": [FUNCTION]},
            "function_call",
            "function_call_arguments.delta function_call_arguments.done",
            marks=requirement("order.function-call"),
        ),
        pytest.param(
            "Keep it.",
            {"tools": [NOTE], "tool_choice": {"type": "custom", "name": "note"}},
            "custom_tool_call",
            "custom_tool_call_input.delta custom_tool_call_input.done",
            marks=requirement("order.custom-tool-call"),
        ),
        pytest.param(
            "Run it.",
            {"tools": [{"type": "apply_patch"}], "tool_choice": {"type": "apply_patch"}},
            "apply_patch_call",
            "",
            marks=requirement("order.nothing-between"),
        ),
        pytest.param(
            "Run it.",
            {"tools": [{"type": "local_shell"}], "tool_choice": {"type": "local_shell"}},
            "local_shell_call",
            "",
            marks=requirement("order.nothing-between"),
        ),
    ],
)
async def test_the_events_of_an_item_have_their_order(
    client: httpx2.AsyncClient, text: str, fields: Json, kind: str, order: str
) -> None:
    events = await events_of(client, text, **fields)
    check_stream(as_events(events))
    assert between(events, kind) == order.split()


@requirement("order.summary")
async def test_a_summary_stands_within_its_reasoning(client: httpx2.AsyncClient) -> None:
    events = await events_of(client, "[[sim think=30 say=ok]]", reasoning={"summary": "detailed"})
    kinds = dict.fromkeys(name for name in between(events, "reasoning") if "summary" in name)
    assert list(kinds) == [
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
    ]
    check_stream(as_events(events))


@requirement("order.shell-call")
async def test_every_command_of_a_shell_is_announced(client: httpx2.AsyncClient) -> None:
    shell = {"tools": [{"type": "shell"}], "tool_choice": {"type": "shell"}}
    events = await events_of(client, "Run it.", **shell)
    check_stream(as_events(events))
    steps = [name.removeprefix("shell_call_command.") for name in between(events, "shell_call")]
    assert steps == ["added", "delta", "done"] * (len(steps) // 3)
    assert steps


@requirement("order.compaction")
async def test_a_compaction_is_said_to_be_compacting(client: httpx2.AsyncClient) -> None:
    asked = [{"role": "user", "content": "My bicycle is red."}, {"type": "compaction_trigger"}]
    events = await stream(client, {"model": MODEL, "input": asked})
    assert between(events, "compaction") == ["compaction.compacting"]


@requirement("order.hosted")
async def test_tools_of_servers_have_no_events(client: httpx2.AsyncClient) -> None:
    events = await events_of(client, "Search the web.", tools=HOSTED)
    parts = {event["type"].split(".")[1] for event in events if event["type"] != "error"}
    assert parts <= {
        *("created", "in_progress", "completed", "output_item", "content_part"),
        *("output_text", "reasoning_text"),
    }


@requirement("stream.kind-is-known-first")
@requirement("stream.item-envelope")
async def test_an_item_is_added_empty_under_its_kind(client: httpx2.AsyncClient) -> None:
    events = await events_of(client, "Give me a preamble and use f", tools=[FUNCTION])
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in added] == ["reasoning", "message", "function_call"]
    assert [(item["type"], item["id"]) for item in added] == [
        (item["type"], item["id"]) for item in done
    ]
    assert {item["status"] for item in added} == {"in_progress"}
    assert {item["status"] for item in done} == {"completed"}
    assert [item.get("content", item.get("arguments")) for item in added] == [[], [], ""]
    assert done == events[-1]["response"]["output"]


@requirement("stream.output-index")
@requirement("stream.part-indexes")
@requirement("stream.item-id")
async def test_indexes_are_those_of_the_end(client: httpx2.AsyncClient) -> None:
    events = await events_of(client, "Give me a preamble and use f", tools=[FUNCTION])
    output = events[-1]["response"]["output"]
    shown = {event["output_index"] for event in events if "output_index" in event}
    assert shown == set(range(len(output)))
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == output[event["output_index"]]["id"]
        assert event.get("content_index", 0) == 0


@requirement("stream.headers")
@requirement("stream.frames")
@requirement("stream.end")
async def test_a_stream_is_not_kept_back_and_has_an_end(client: httpx2.AsyncClient) -> None:
    body = {"model": MODEL, "input": "[[sim think=2 say=ok]]", "stream": True}
    answer = await client.post("/v1/responses", json=body)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"].startswith("req_")
    *frames, done, nothing = answer.text.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    assert "\r" not in answer.text
    for frame in frames:
        name, data = frame.split("\n")
        assert name.startswith("event: response.")
        assert data.startswith('data: {"type":')


@requirement("stream.begins")
@requirement("stream.numbers")
@requirement("stream.one-end")
@requirement("stream.end-has-all-items")
async def test_a_stream_has_a_beginning_and_one_end(client: httpx2.AsyncClient) -> None:
    events = await events_of(client, "[[sim think=2 say=ok]]")
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    for event in events[:2]:
        assert (event["response"]["output"], event["response"]["usage"]) == ([], None)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events if event["type"] in TERMINAL] == [events[-1]["type"]]
    stored = await client.get(f"/v1/responses/{events[-1]['response']['id']}")
    assert events[-1]["response"] == stored.json()


@requirement("events.documented")
@requirement("open-responses.parts-are-wrapped")
async def test_every_event_is_documented(client: httpx2.AsyncClient, checker: Document) -> None:
    events = await events_of(client, "Give me a preamble and use f", tools=[FUNCTION])
    for event in events:
        EVENT.validate_python(event, strict=True)
    checker.stream(events)
    opened: set[str] = set()
    for event in events:
        kind, _, step = event["type"].rpartition(".")
        if kind == "response.content_part":
            opened ^= {event["item_id"]}
        elif step == "delta" and "content_index" in event:
            assert event["item_id"] in opened
    assert opened == set()


@requirement("accept.recordings")
async def test_a_stream_has_the_structure_of_a_recorded_one(client: httpx2.AsyncClient) -> None:
    """The order of OpenAI's own, in which the text of reasoning was empty."""
    events = await events_of(client, "[[sim think=30 tokens=30]]")
    types = [event["type"].removeprefix("response.") for event in events]
    shown = [name for name in types if "reasoning" not in name]
    assert [name for at, name in enumerate(shown) if name != shown[at - 1]] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done", "completed"),
    ]


@requirement("order.truncation")
@requirement("stream.one-end")
async def test_what_the_bound_cuts_off_is_closed(client: httpx2.AsyncClient) -> None:
    asked = "[[sim think=none tokens=200]]"
    events = await events_of(client, asked, max_output_tokens=40)
    check_stream(as_events(events))
    assert [event["type"].removeprefix("response.") for event in events[-4:]] == [
        *("output_text.done", "content_part.done", "output_item.done", "incomplete")
    ]
    (item,) = events[-1]["response"]["output"]
    assert item["status"] == "incomplete"
    said = "".join(event["delta"] for event in events if event["type"].endswith("text.delta"))
    assert said == item["content"][0]["text"] != ""


@requirement("stream-error.before")
@pytest.mark.parametrize("fields", [{"temperature": 3}, {"model": "gpt-9"}])
async def test_what_is_refused_is_no_stream(client: httpx2.AsyncClient, fields: Json) -> None:
    body = {"model": MODEL, "input": "x", "stream": True, **fields}
    answer = await client.post("/v1/responses", json=body)
    assert answer.status_code in {400, 404}
    assert answer.headers["content-type"] == "application/json"


@requirement("stream-error.after")
async def test_a_failure_has_both_shapes(client: httpx2.AsyncClient) -> None:
    *_, error, failed = await events_of(client, BREAKS_OFF)
    assert (error["type"], failed["type"]) == ("error", "response.failed")
    assert set(error["error"]) == {"type", "code", "message", "param"}
    assert {name: error[name] for name in ("code", "message", "param")} == {
        name: error["error"][name] for name in ("code", "message", "param")
    }
    assert isinstance(error["code"], str)
    assert failed["response"]["error"]["code"] == error["code"]
    assert failed["sequence_number"] == error["sequence_number"] + 1


@requirement("padding.deltas-only")
@requirement("padding.default")
@requirement("padding.size")
async def test_only_deltas_are_padded(client: httpx2.AsyncClient) -> None:
    events = await events_of(client, "[[sim think=2 tokens=20]]")
    padded = [event for event in events if "obfuscation" in event]
    assert padded == [event for event in events if "delta" in event]
    for event in padded:
        assert event["obfuscation"]
        assert (len(event["delta"]) + len(event["obfuscation"])) % 16 == 0


@requirement("padding.off")
@requirement("replay.snapshots")
@requirement("stream.numbers-on-replay")
async def test_a_replay_without_padding_is_the_same_otherwise(client: httpx2.AsyncClient) -> None:
    body = {"model": MODEL, "input": "[[sim think=2 say=ok]]", "background": True}
    events = await stream(client, body)
    path = f"/v1/responses/{events[-1]['response']['id']}"
    again = await client.get(f"{path}?stream=true&include_obfuscation=false")
    assert '"obfuscation"' not in again.text
    for event in events:
        event.pop("obfuscation", None)
    replayed = [line[6:] for line in again.text.split("\n") if line.startswith("data: {")]
    assert [EVENT.validate_json(one) for one in replayed] == [
        EVENT.validate_python(one) for one in events
    ]
    assert events[0]["response"]["output"] == []


@requirement("gpt-oss.reasoning-is-streamed")
async def test_reasoning_is_streamed_under_openais_names(client: httpx2.AsyncClient) -> None:
    types = {event["type"] for event in await events_of(client, "[[sim think=20 say=ok]]")}
    assert {"response.reasoning_text.delta", "response.reasoning_text.done"} <= types
    assert not {name for name in types if name.startswith("response.reasoning.")}
