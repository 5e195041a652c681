"""Items and parts of the input: which shapes are taken, which are named, which are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.stream import texts

if TYPE_CHECKING:
    import httpx2

    from tests.conformance.checking import Document, Json

requirement = pytest.mark.requirement

MODEL = "gpt-oss-20b"
FUNCTION: Json = {"type": "function", "name": "f"}
CALL: Json = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT: Json = {"type": "function_call_output", "call_id": "c", "output": "1"}
ANNOTATIONS: list[Json] = [
    {"type": "url_citation", "url": "https://x", "title": "t", "start_index": 0, "end_index": 1},
    {"type": "file_citation", "file_id": "f", "filename": "n", "index": 0},
    {
        "type": "container_file_citation",
        "container_id": "c",
        "file_id": "f",
        "filename": "n",
        "start_index": 0,
        "end_index": 1,
    },
    {"type": "file_path", "file_id": "f", "index": 0},
]


async def created(client: httpx2.AsyncClient, said: Any, /, **fields: Any) -> Json:
    answer = await client.post("/v1/responses", json={"model": MODEL, "input": said, **fields})
    assert answer.status_code == 200, answer.text
    response: Json = answer.json()
    assert response["status"] == "completed", response["error"]
    return response


async def listed(client: httpx2.AsyncClient, response: Json) -> list[Json]:
    """What it was asked, in its order."""
    page = await client.get(f"/v1/responses/{response['id']}/input_items?order=asc&limit=100")
    items: list[Json] = page.json()["data"]
    return items


def user(*content: Json) -> Json:
    return {"role": "user", "content": list(content)}


def said_by_the_assistant(*content: Json, **fields: Any) -> Json:
    return {"type": "message", "role": "assistant", "content": list(content), **fields}


def text(kind: str = "input_text", said: str = "My name is Ada.") -> Json:
    return {"type": kind, "text": said}


QUESTION: Json = {"role": "user", "content": "What is my name?"}


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(
            {"role": "user", "content": "My name is Ada."}, marks=requirement("items.easy-message")
        ),
        pytest.param(
            {"type": "message", "role": "user", "content": [text()], "status": "incomplete"},
            marks=[requirement("items.input-message"), requirement("items.status-is-ignored")],
        ),
        pytest.param(user(text()), marks=requirement("items.easy-message")),
        pytest.param(
            user({**text(), "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}}),
            marks=requirement("parts.input-text"),
        ),
        pytest.param(
            user({**text(), "a_key_of_tomorrow": True}), marks=requirement("items.unknown-keys")
        ),
        pytest.param(
            {"role": "system", "content": "The user's name is Ada."},
            marks=requirement("items.input-message"),
        ),
        pytest.param(
            {"role": "developer", "content": [text(said="The user's name is Ada.")]},
            marks=requirement("items.input-message"),
        ),
    ],
)
async def test_a_message_has_several_shapes(client: httpx2.AsyncClient, message: Json) -> None:
    response = await created(client, [message, QUESTION])
    first = (await listed(client, response))[0]
    assert (first["type"], first["role"], first["status"]) == (
        *("message", message["role"]),
        "completed",
    )
    (part,) = first["content"]
    assert (part["type"], "Ada" in part["text"]) == ("input_text", True)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(
            {"role": "assistant", "content": "Hello Ada."},
            marks=requirement("items.output-message"),
        ),
        pytest.param(
            said_by_the_assistant(text("input_text", "Hello Ada.")),
            marks=requirement("items.output-message"),
        ),
        pytest.param(
            said_by_the_assistant(
                {**text("output_text", "Hello Ada."), "annotations": [], "logprobs": []},
                id="msg_1",
                status="completed",
            ),
            marks=requirement("items.output-message"),
        ),
        pytest.param(
            said_by_the_assistant({**text("output_text"), "annotations": ANNOTATIONS}),
            marks=requirement("parts.annotations"),
        ),
        pytest.param(
            said_by_the_assistant({"type": "refusal", "refusal": "No."}),
            marks=requirement("parts.refusal"),
        ),
    ],
)
async def test_an_answer_is_history_in_every_shape(
    client: httpx2.AsyncClient, message: Json
) -> None:
    first = {"role": "user", "content": "Hello"}
    response = await created(client, [first, message, QUESTION])
    answer = (await listed(client, response))[1]
    assert (answer["role"], answer["status"]) == ("assistant", "completed")
    assert {part["type"] for part in answer["content"]} <= {"output_text", "refusal"}
    assert answer["id"] == message.get("id", answer["id"])


@requirement("items.phase")
@requirement("harmony.commentary")
@requirement("harmony.final")
@pytest.mark.parametrize("phase", ["commentary", "final_answer"])
async def test_a_phase_is_kept(client: httpx2.AsyncClient, phase: str) -> None:
    history = [user(text()), said_by_the_assistant(text("output_text"), phase=phase), QUESTION]
    response = await created(client, history)
    kept = (await listed(client, response))[1]
    assert kept["phase"] == phase
    assert response["output"][-1]["phase"] == "final_answer"


@requirement("items.phase")
@requirement("traps.no-nulls")
async def test_what_is_unknown_is_left_out(client: httpx2.AsyncClient) -> None:
    response = await created(client, [user(text()), said_by_the_assistant(text()), QUESTION])
    assert "phase" not in (await listed(client, response))[1]

    def nulls(value: Any) -> list[str]:
        match value:
            case dict():
                inner = [name for each in value.values() for name in nulls(each)]
                return [name for name, each in value.items() if each is None] + inner
            case list():
                return [name for each in value for name in nulls(each)]
            case _:
                return []

    assert nulls(response["output"]) == []


@requirement("items.reasoning")
@requirement("harmony.empty-reasoning")
@pytest.mark.parametrize(
    "reasoning",
    [
        {"content": [text("reasoning_text", "The name is Ada.")]},
        {"content": [text("reasoning_text")], "id": "rs_1", "status": "completed", "a_key": 1},
        {"content": [], "summary": []},
    ],
)
async def test_reasoning_is_given_back(client: httpx2.AsyncClient, reasoning: Json) -> None:
    items = [user(text()), {"type": "reasoning", "summary": [], **reasoning}, CALL, OUTPUT]
    response = await created(client, items, tools=[FUNCTION])
    kinds = [item["type"] for item in await listed(client, response)]
    shown = ["reasoning"] if reasoning["content"] else []
    assert kinds == ["message", *shown, "function_call", "function_call_output"]


@requirement("items.output-of-a-call")
@requirement("control.items-of-every-kind")
@pytest.mark.parametrize(
    "output",
    [
        "sunny",
        "",
        [text(said="sunny")],
        [{"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}],
        [{"type": "input_file", "file_data": "AA==", "filename": "a.bin"}],
    ],
)
async def test_the_output_of_a_call_is_a_text_or_parts(
    client: httpx2.AsyncClient, output: Any
) -> None:
    items = [user(text()), CALL, {**OUTPUT, "output": output}]
    response = await created(client, items, tools=[FUNCTION])
    assert (await listed(client, response))[2]["output"] == output


@pytest.mark.parametrize(
    ("item", "code", "param"),
    [
        ({**CALL, "call_id": "c" * 65}, "string_above_max_length", "input[0].call_id"),
        ({**CALL, "call_id": ""}, "empty_string", "input[0].call_id"),
        ({**CALL, "name": "a b"}, "invalid_value", "input[0].name"),
        ({"role": "user", "id": "a b", "content": "x"}, "invalid_value", "input[0].id"),
        (
            {"role": "user", "id": "x" * 513, "content": "x"},
            "string_above_max_length",
            "input[0].id",
        ),
    ],
)
@requirement("items.limits")
@requirement("http.ids-of-clients")
async def test_ids_and_names_are_bounded(
    client: httpx2.AsyncClient, item: Json, code: str, param: str
) -> None:
    answer = await client.post("/v1/responses", json={"model": MODEL, "input": [item]})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param)


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(
            {"type": "input_image", "image_url": "https://x/y.png", "detail": "original"},
            marks=requirement("parts.input-image"),
        ),
        pytest.param(
            {"type": "input_image", "file_id": "file_1"}, marks=requirement("parts.input-image")
        ),
        pytest.param(
            {"type": "input_file", "file_url": "https://x/y.pdf"},
            marks=requirement("parts.input-file"),
        ),
        pytest.param(
            {"type": "input_file", "file_data": "AA==", "filename": "y"},
            marks=requirement("parts.input-file"),
        ),
    ],
)
async def test_what_the_model_cannot_read_is_no_obstacle(
    client: httpx2.AsyncClient, part: Json
) -> None:
    response = await created(client, [user(part, text()), QUESTION])
    assert "Ada" in texts(response)[-1]
    (shown, _) = (await listed(client, response))[0]["content"]
    assert {name: shown[name] for name in part} == part


@requirement("parts.input-audio")
async def test_audio_is_refused(client: httpx2.AsyncClient) -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
    body = {"model": MODEL, "input": [user(audio)]}
    answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "input[0].content[0].type")


@requirement("parts.output-text")
@requirement("parts.reasoning-text")
@requirement("kinds.message")
@requirement("kinds.reasoning")
@requirement("open-responses.output-phase-schema")
@requirement("harmony.return")
async def test_an_answer_has_its_parts(client: httpx2.AsyncClient, checker: Document) -> None:
    response = await created(client, "[[sim think=2 say=ok]]")
    checker.completed(response)
    reasoning, message = response["output"]
    assert {name: reasoning[name] for name in ("summary", "status")} == {
        "summary": [],
        "status": "completed",
    }
    assert [part["type"] for part in reasoning["content"]] == ["reasoning_text"]
    assert (message["status"], message["phase"]) == ("completed", "final_answer")
    nothing: Json = {"annotations": [], "logprobs": []}
    assert message["content"] == [{"type": "output_text", "text": "ok", **nothing}]


@requirement("kinds.reasoning")
@requirement("harmony.analysis")
async def test_there_is_no_reasoning_without_content(client: httpx2.AsyncClient) -> None:
    response = await created(client, "[[sim think=none say=ok]]")
    assert [item["type"] for item in response["output"]] == ["message"]


@requirement("parts.summary-text")
async def test_a_summary_is_a_part_of_its_reasoning(client: httpx2.AsyncClient) -> None:
    response = await created(client, "[[sim think=20 say=ok]]", reasoning={"summary": "auto"})
    (part,) = response["output"][0]["summary"]
    assert (set(part), part["type"]) == ({"type", "text"}, "summary_text")


@requirement("parts.logprobs-are-whole")
async def test_every_logprob_is_whole(client: httpx2.AsyncClient) -> None:
    response = await created(client, "x", include=["message.output_text.logprobs"])
    (part,) = response["output"][-1]["content"]
    assert part["logprobs"]
    assert {frozenset(entry) for entry in part["logprobs"]} == {
        frozenset({"token", "logprob", "bytes", "top_logprobs"})
    }


@requirement("kinds.function-call")
async def test_arguments_are_a_string(client: httpx2.AsyncClient) -> None:
    response = await created(client, "[[sim call=f arguments={}]]", tools=[FUNCTION])
    call = response["output"][-1]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "f", "{}")
    assert call["call_id"] != call["id"]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        pytest.param("web_search_call", {"action": {}}, marks=requirement("kinds.hosted-calls")),
        pytest.param("file_search_call", {"queries": []}, marks=requirement("kinds.hosted-calls")),
        pytest.param("code_interpreter_call", {}, marks=requirement("kinds.hosted-calls")),
        pytest.param("image_generation_call", {}, marks=requirement("kinds.hosted-calls")),
        pytest.param("mcp_list_tools", {"tools": []}, marks=requirement("kinds.hosted-calls")),
        pytest.param("mcp_call", {}, marks=requirement("kinds.hosted-calls")),
        pytest.param("mcp_approval_request", {}, marks=requirement("kinds.hosted-calls")),
        pytest.param("mcp_approval_response", {}, marks=requirement("kinds.hosted-calls")),
        pytest.param("computer_call", {}, marks=requirement("kinds.computer")),
        pytest.param("computer_call_output", {}, marks=requirement("kinds.computer")),
        pytest.param("tool_search_call", {}, marks=requirement("kinds.computer")),
        pytest.param("tool_search_output", {}, marks=requirement("kinds.additions-of-2026")),
        pytest.param("additional_tools", {}, marks=requirement("kinds.additions-of-2026")),
        pytest.param("configuration_update", {}, marks=requirement("kinds.additions-of-2026")),
        pytest.param("program", {}, marks=requirement("kinds.additions-of-2026")),
        pytest.param("program_output", {}, marks=requirement("kinds.additions-of-2026")),
    ],
)
async def test_items_that_are_not_served_are_refused_by_their_type(
    client: httpx2.AsyncClient, kind: str, fields: Json
) -> None:
    item = {"type": kind, "id": "x_1", **fields}
    answer = await client.post("/v1/responses", json={"model": MODEL, "input": [item, QUESTION]})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "input[0].type")
    assert kind in error["message"]


@pytest.mark.parametrize(
    "tool",
    [
        pytest.param({"type": "computer"}, marks=requirement("kinds.computer")),
        pytest.param(
            {
                "type": "computer_use_preview",
                "display_height": 1,
                "display_width": 1,
                "environment": "linux",
            },
            marks=requirement("kinds.computer"),
        ),
        pytest.param(
            {"type": "tool_search", "execution": "client"},
            marks=[requirement("kinds.computer"), requirement("kinds.programmatic-tools")],
        ),
        pytest.param(
            {"type": "programmatic_tool_calling"}, marks=requirement("kinds.programmatic-tools")
        ),
        pytest.param({"type": "web_search"}, marks=requirement("control.hosted-tools")),
        pytest.param(
            {"type": "web_search_preview_2025_03_11"}, marks=requirement("control.hosted-tools")
        ),
        pytest.param(
            {"type": "file_search", "vector_store_ids": []},
            marks=requirement("control.hosted-tools"),
        ),
        pytest.param({"type": "image_generation"}, marks=requirement("control.hosted-tools")),
        pytest.param(
            {"type": "mcp", "server_label": "s"}, marks=requirement("control.hosted-tools")
        ),
        pytest.param(
            {"type": "code_interpreter", "container": {"type": "auto"}},
            marks=requirement("control.hosted-tools"),
        ),
    ],
)
async def test_tools_that_are_not_served_are_dropped_and_named(
    client: httpx2.AsyncClient, tool: Json
) -> None:
    body = {"model": MODEL, "input": "[[sim think=2 say=ok]]", "tools": [tool, FUNCTION]}
    answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-gateway-dropped-tools"] == tool["type"]
    assert [shown["type"] for shown in answer.json()["tools"]] == ["function"]


@requirement("kinds.item-reference")
async def test_a_reference_needs_no_type(client: httpx2.AsyncClient) -> None:
    first = await created(client, "My name is Ada.")
    asked = (await listed(client, first))[0]["id"]
    for reference in (
        {"type": "item_reference", "id": asked},
        {"type": None, "id": asked},
        {"id": asked},
    ):
        assert "Ada" in texts(await created(client, [reference, QUESTION]))[-1]


@requirement("harmony.call")
@requirement("harmony.end")
@requirement("harmony.analysis")
@requirement("harmony.calls")
@requirement("harmony.commentary")
async def test_channels_become_items(client: httpx2.AsyncClient) -> None:
    response = await created(client, "Give me a preamble and use f", tools=[FUNCTION])
    shown = [(item["type"], item.get("phase") or item.get("name")) for item in response["output"]]
    assert shown == [("reasoning", None), ("message", "commentary"), ("function_call", "f")]


@requirement("harmony.bad-arguments")
async def test_arguments_that_are_no_json_are_passed_on(client: httpx2.AsyncClient) -> None:
    response = await created(client, '[[sim call=f arguments={"a": ]]', tools=[FUNCTION])
    assert response["output"][-1]["arguments"].strip() == '{"a":'
