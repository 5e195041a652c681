"""Every field of the Response object, at every stage that a response has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
from openai.types.responses import ResponseError

from gateway.engine.outcome import VIOLATIONS, violated
from tests.conformance.asking import BREAKS_OFF, BRIEF, ENDLESS, FUNCTION, MODEL, created, path_of
from tests.fakes.http_client import http_client
from tests.fakes.stream import parse_stream, stream

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx2

    from tests.conformance.checking import Json
    from tests.fakes.gateway import RunningGateway

requirement = pytest.mark.requirement

STATUSES = {"queued", "in_progress", "completed", "failed", "incomplete", "cancelled"}
ASKED: Json = {
    "instructions": "Be brief.",
    "max_output_tokens": 3000,
    "max_tool_calls": 2,
    "metadata": {"a": "b"},
    "parallel_tool_calls": False,
    "prompt_cache_key": "cache",
    "safety_identifier": "safe",
    "temperature": 0.5,
    "top_p": 0.25,
    "truncation": "auto",
    "user": "somebody",
}


@pytest.fixture(scope="module")
async def stages(gateway: RunningGateway) -> dict[str, Json]:
    """A body of each status, and those in the events of a stream; `full` had every parameter."""
    async with http_client(gateway.url, headers=gateway.headers) as client:
        events = await stream(client, {"model": MODEL, "input": BRIEF})
        first, full = [
            await created(client, BRIEF, **fields) for fields in ({}, {"tools": [FUNCTION]} | ASKED)
        ]
        broken = await stream(client, {"model": MODEL, "input": BREAKS_OFF})
        running = await created(client, ENDLESS, background=True)
        path = path_of(running)
        seen = running
        while seen["status"] == "queued":
            seen = (await client.get(path)).json()
        return {
            "created": events[0]["response"],
            "in progress": events[1]["response"],
            "streamed": events[-1]["response"],
            "completed": first,
            "full": full,
            "continued": await created(client, BRIEF, previous_response_id=first["id"]),
            "unstored": await created(client, BRIEF, store=False),
            "incomplete": await created(client, "[[sim tokens=99]] x", max_output_tokens=50),
            "failed": broken[-1]["response"],
            "queued": running,
            "running": seen,
            "cancelled": (await client.post(f"{path}/cancel")).json(),
        }


def text_or_null(value: object) -> bool:
    return value is None or isinstance(value, str)


def whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        pytest.param("id", lambda it: it.startswith("resp_"), marks=requirement("response.id")),
        pytest.param("object", lambda it: it == "response", marks=requirement("response.object")),
        pytest.param("created_at", whole, marks=requirement("response.created-at")),
        pytest.param("status", STATUSES.__contains__, marks=requirement("response.status")),
        pytest.param(
            "background", lambda it: isinstance(it, bool), marks=requirement("response.background")
        ),
        pytest.param("instructions", text_or_null, marks=requirement("response.instructions")),
        pytest.param(
            "max_output_tokens",
            lambda it: it is None or whole(it),
            marks=requirement("response.max-output-tokens"),
        ),
        pytest.param(
            "max_tool_calls",
            lambda it: it is None or whole(it),
            marks=requirement("response.max-tool-calls"),
        ),
        pytest.param(
            "metadata", lambda it: isinstance(it, dict), marks=requirement("response.metadata")
        ),
        pytest.param("model", MODEL.__eq__, marks=requirement("response.model")),
        pytest.param(
            "output", lambda it: isinstance(it, list), marks=requirement("response.output")
        ),
        pytest.param(
            "parallel_tool_calls",
            lambda it: isinstance(it, bool),
            marks=requirement("response.parallel-tool-calls"),
        ),
        pytest.param(
            "previous_response_id", text_or_null, marks=requirement("response.previous-response-id")
        ),
        pytest.param(
            "prompt_cache_key", text_or_null, marks=requirement("response.prompt-cache-key")
        ),
        pytest.param(
            "reasoning",
            lambda it: it == {"effort": "medium", "summary": None},
            marks=requirement("response.reasoning"),
        ),
        pytest.param(
            "safety_identifier", text_or_null, marks=requirement("response.safety-identifier")
        ),
        pytest.param("service_tier", "default".__eq__, marks=requirement("response.service-tier")),
        pytest.param("store", lambda it: isinstance(it, bool), marks=requirement("response.store")),
        pytest.param(
            "temperature", lambda it: isinstance(it, float), marks=requirement("response.sampling")
        ),
        pytest.param(
            "top_p", lambda it: isinstance(it, float), marks=requirement("response.sampling")
        ),
        pytest.param(
            "presence_penalty", lambda it: it == 0, marks=requirement("response.penalties")
        ),
        pytest.param(
            "frequency_penalty", lambda it: it == 0, marks=requirement("response.penalties")
        ),
        pytest.param(
            "text",
            lambda it: it == {"format": {"type": "text"}},
            marks=requirement("response.text"),
        ),
        pytest.param("tool_choice", "auto".__eq__, marks=requirement("response.tool-choice")),
        pytest.param("tools", lambda it: isinstance(it, list), marks=requirement("response.tools")),
        pytest.param(
            "top_logprobs",
            lambda it: whole(it) and it == 0,
            marks=requirement("response.top-logprobs"),
        ),
        pytest.param(
            "truncation",
            {"auto", "disabled"}.__contains__,
            marks=requirement("response.truncation"),
        ),
        pytest.param("user", text_or_null, marks=requirement("response.user")),
    ],
)
def test_a_field_is_there_at_every_stage(
    stages: dict[str, Json], name: str, allowed: Callable[[Any], bool]
) -> None:
    wrong = {
        stage: body.get(name, ...) for stage, body in stages.items() if not allowed(body[name])
    }
    assert wrong == {}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["output_text"], marks=requirement("response.output-text")),
        pytest.param(["conversation"], marks=requirement("response.conversation")),
        pytest.param(["prompt"], marks=requirement("response.prompt")),
        pytest.param(
            ["prompt_cache_retention", "prompt_cache_options", "prompt_cache_diagnostics"],
            marks=requirement("response.prompt-cache-options"),
        ),
        pytest.param(
            ["tool_usage", "moderation", "image", "input_transformations", "access_programs"],
            marks=requirement("response.optional-fields"),
        ),
    ],
)
def test_what_does_not_apply_is_left_out(stages: dict[str, Json], names: list[str]) -> None:
    assert [stage for stage, body in stages.items() if {*names} & body.keys()] == []


@requirement("response.instructions")
@requirement("response.max-output-tokens")
@requirement("response.max-tool-calls")
@requirement("response.metadata")
@requirement("response.parallel-tool-calls")
@requirement("response.prompt-cache-key")
@requirement("response.safety-identifier")
@requirement("response.sampling")
@requirement("response.truncation")
@requirement("response.user")
def test_what_was_asked_for_is_echoed(stages: dict[str, Json]) -> None:
    assert {name: stages["full"][name] for name in ASKED} == ASKED
    unasked = {name for name in ASKED if stages["completed"][name] == stages["full"][name]}
    assert unasked == set()


@requirement("response.tools")
@requirement("traps.tools-echo")
def test_a_function_is_echoed_with_all_its_keys(stages: dict[str, Json]) -> None:
    nothing = {"description": None, "parameters": None, "strict": None}
    assert stages["full"]["tools"] == [FUNCTION | nothing]


@requirement("response.previous-response-id")
@requirement("response.store")
@requirement("response.background")
def test_where_it_comes_from_and_how_it_is_kept(stages: dict[str, Json]) -> None:
    assert stages["continued"]["previous_response_id"] == stages["completed"]["id"]
    assert stages["completed"]["previous_response_id"] is None
    assert not stages["unstored"]["store"]
    assert {stage for stage, body in stages.items() if body["background"]} == {
        *("queued", "running", "cancelled")
    }


@requirement("response.completed-at")
@requirement("response.error")
@requirement("response.incomplete-details")
@requirement("response.usage")
@requirement("status.transitions")
def test_the_status_says_what_is_null(stages: dict[str, Json]) -> None:
    for stage, body in stages.items():
        status = body["status"]
        assert whole(body["completed_at"]) == (status == "completed"), stage
        assert (body["error"] is None) == (status != "failed"), stage
        assert (body["incomplete_details"] is None) == (status != "incomplete"), stage
        if status in {"queued", "in_progress"}:
            assert body["usage"] is None, stage


@pytest.mark.parametrize(
    ("stage", "status"),
    [
        pytest.param("queued", "queued", marks=requirement("status.queued")),
        pytest.param("running", "in_progress", marks=requirement("status.in-progress")),
        pytest.param("in progress", "in_progress", marks=requirement("status.in-progress")),
        pytest.param("completed", "completed", marks=requirement("status.completed")),
        pytest.param("failed", "failed", marks=requirement("status.failed")),
        pytest.param("incomplete", "incomplete", marks=requirement("status.incomplete")),
        pytest.param("cancelled", "cancelled", marks=requirement("status.cancelled")),
    ],
)
def test_each_status_is_met(stages: dict[str, Json], stage: str, status: str) -> None:
    body = stages[stage]
    assert body["status"] == status
    shown = {
        "completed": {"completed_at"},
        "failed": {"error"},
        "incomplete": {"incomplete_details"},
    }
    names = {"completed_at", "error", "incomplete_details"}
    assert {name for name in names if body[name] is not None} == shown.get(status, set())


@requirement("status.foreground-starts-in-progress")
@requirement("response.output")
def test_what_begins_has_no_output(stages: dict[str, Json]) -> None:
    for stage in ("created", "in progress"):
        assert (stages[stage]["status"], stages[stage]["output"]) == ("in_progress", [])
    assert stages["queued"]["output"] == []


@requirement("status.failed")
@requirement("response.error")
@requirement("error-code.backend")
def test_what_failed_keeps_what_it_had_said(stages: dict[str, Json]) -> None:
    failed = stages["failed"]
    assert failed["output"]
    assert {type(failed["error"][key]) for key in ("code", "message")} == {str}
    assert failed["error"]["code"] == "server_error"


@requirement("status.incomplete")
@requirement("response.incomplete-details")
def test_what_is_incomplete_says_why(stages: dict[str, Json]) -> None:
    cut = stages["incomplete"]
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}
    assert cut["output"][-1]["status"] == "incomplete"


@requirement("usage.details")
@requirement("usage.adds-up")
def test_usage_has_all_its_details(stages: dict[str, Json]) -> None:
    for stage in ("completed", "streamed", "incomplete", "failed"):
        usage = stages[stage]["usage"]
        assert set(usage["input_tokens_details"]) == {"cached_tokens", "cache_write_tokens"}
        assert set(usage["output_tokens_details"]) == {"reasoning_tokens"}
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@requirement("usage.reasoning")
async def test_reasoning_is_counted_apart(client: httpx2.AsyncClient) -> None:
    thought = await created(client, "[[sim think=40 say=ok]] x")
    silent = await created(client, "[[sim think=none say=ok]] x")
    counted = [
        one["usage"]["output_tokens_details"]["reasoning_tokens"] for one in (thought, silent)
    ]
    assert counted == [40, 0]


@requirement("status.ends-on-calls")
async def test_a_response_that_ends_with_a_call_is_completed(client: httpx2.AsyncClient) -> None:
    called = await created(client, "[[sim call=f]]", tools=[FUNCTION])
    assert (called["status"], called["output"][-1]["type"]) == ("completed", "function_call")


@requirement("response.conversation")
async def test_a_conversation_is_shown_to_who_used_it(client: httpx2.AsyncClient) -> None:
    conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    for used in (conversation, {"id": conversation}):
        response = await created(client, BRIEF, conversation=used)
        assert response["conversation"] == {"id": conversation}


@requirement("response.model")
async def test_the_model_has_its_own_name(client: httpx2.AsyncClient) -> None:
    response = await created(client, model=f"openai/{MODEL}")
    assert response["model"] == MODEL


@requirement("error-code.documented")
def test_codes_are_documented() -> None:
    openais = get_args(ResponseError.model_fields["code"].annotation)
    assert {"server_error", "rate_limit_exceeded"} <= set(openais)
    page = (Path(__file__).parents[2] / "docs" / "control.md").read_text("utf-8")
    shown = {violated(rule, 0).code for rule in VIOLATIONS}
    assert {code for code in shown if code not in openais and f"`{code}`" not in page} == set()


@requirement("status.queued")
@requirement("background.queued-first")
async def test_a_background_stream_begins_in_the_queue(client: httpx2.AsyncClient) -> None:
    body = {"model": MODEL, "input": BRIEF, "background": True, "stream": True}
    events = parse_stream((await client.post("/v1/responses", json=body)).text)
    begun = [(event["type"], event["response"]["status"]) for event in events[:3]]
    assert begun == [
        ("response.created", "queued"),
        ("response.queued", "queued"),
        ("response.in_progress", "in_progress"),
    ]
