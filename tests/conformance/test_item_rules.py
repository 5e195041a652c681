"""Items and parts of the input: which shapes are taken, which are named, which are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.asking import FUNCTION, created, listed, refused, user
from tests.fakes.stream import texts

if TYPE_CHECKING:
    import httpx2

    from tests.conformance.checking import Json

requirement = pytest.mark.requirement

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


def message(*content: Json) -> Json:
    return {"role": "user", "content": list(content)}


def said_by_the_assistant(*content: Json, **fields: Any) -> Json:
    return {"type": "message", "role": "assistant", "content": list(content), **fields}


def text(kind: str = "input_text", said: str = "My name is Ada.") -> Json:
    return {"type": kind, "text": said}


QUESTION = user("What is my name?")


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
        pytest.param(message(text()), marks=requirement("items.easy-message")),
        pytest.param(
            message({**text(), "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}}),
            marks=requirement("parts.input-text"),
        ),
        pytest.param(
            message({**text(), "a_key_of_tomorrow": True}), marks=requirement("items.unknown-keys")
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
    history = [message(text()), said_by_the_assistant(text("output_text"), phase=phase), QUESTION]
    response = await created(client, history)
    kept = (await listed(client, response))[1]
    assert kept["phase"] == phase
    assert response["output"][-1]["phase"] == "final_answer"


@requirement("items.phase")
@requirement("traps.no-nulls")
async def test_what_is_unknown_is_left_out(client: httpx2.AsyncClient) -> None:
    response = await created(client, [message(text()), said_by_the_assistant(text()), QUESTION])
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
    items = [message(text()), {"type": "reasoning", "summary": [], **reasoning}, CALL, OUTPUT]
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
    items = [message(text()), CALL, {**OUTPUT, "output": output}]
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
    error = await refused(client, [item])
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
    response = await created(client, [message(part, text()), QUESTION])
    assert "Ada" in texts(response)[-1]
    (shown, _) = (await listed(client, response))[0]["content"]
    assert {name: shown[name] for name in part} == part


@requirement("parts.input-audio")
async def test_audio_is_refused(client: httpx2.AsyncClient) -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
    error = await refused(client, [message(audio)])
    assert (error["code"], error["param"]) == ("invalid_value", "input[0].content[0].type")
