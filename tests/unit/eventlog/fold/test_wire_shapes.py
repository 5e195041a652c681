"""Every event against the two published descriptions of the API: OpenAI's SDK and Open Responses.

Where the SDK's types and the API's documentation differ, the difference is pinned here as data.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx2
import jsonschema
import openai
import orjson
import pytest
from openai import BaseModel, omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.constraints.output_rules import OutputRules
from gateway.entries import (
    Alive,
    Compacted,
    Entry,
    Finished,
    Hop,
    Queued,
    Tokens,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from gateway.eventlog.fold.lifecycle import ENVELOPES, EVENT_FIELDS
from gateway.generation import FinishReason
from tests.fakes.event_grammar import check_stream
from tests.fakes.toy_logs import ANSWER, ENDINGS, TOOL_RULES, apply_all, logprob_of, new_fold
from tests.fakes.toy_parser import CALL, COMMENTARY, END, FINAL, PIECES, REASONING, TEXT, call, say
from tests.fakes.toy_tools import APPROVED, GRANTS, HOSTED, LISTED, NOT_LISTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gateway.entries import ToolOutcome
    from gateway.protocol.stream_events import Event

BEYOND_THE_SDK: Final = {"response.function_call_arguments.done": {"name"}, "error": {"error"}}
"""Fields of events that the SDK's types do not know: its `error` is flat, and `name` is new."""
BEYOND_THE_SDK_MODELS: Final = {
    # Only Open Responses knows these; the API sends `store`, too.
    "Response": {"presence_penalty", "frequency_penalty", "store"},
    # In a part they have it; Open Responses wants it in deltas as well.
    "Logprob": {"bytes"},
    "LogprobTopLogprob": {"bytes"},
    # The API sends it; only the SDK's model of an item of `input_items` has it.
    "ResponseCustomToolCall": {"status"},
    # vLLM has it.
    "OutputTokensDetails": {"tool_output_tokens"},
}
"""Fields of parts of events that the SDK's types do not know."""
BEYOND_OPEN_RESPONSES: Final = {
    *("custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call"),
    "tool_search_call",
    *("custom_tool_call_input", "shell_call_command", "compaction"),
    *("web_search_call", "code_interpreter_call", "code_interpreter_call_code"),
    *("mcp_call", "mcp_call_arguments", "mcp_list_tools", "mcp_approval_request"),
}
"""Items, and what events are named after, that Open Responses leaves to each provider."""
RENAMED_BY_OPEN_RESPONSES: Final = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}
"""The one place where the two cannot both be served; see the conflict table of the reference."""
OPEN_RESPONSES: Final = (
    Path(__file__).parents[5] / "shared/corpus/openresponses-2026-04-24.openapi.json"
)
_TEXTS: Final = tuple(range(TEXT, TEXT + len(PIECES)))
_PLAIN: Final = (TEXT, TEXT + 1)
_TOOLS: Final = {**TOOL_RULES, **HOSTED}
_RULES: Final = OutputRules(_TOOLS, frozenset(_TOOLS), answer=ANSWER, summary="detailed")
_GRANTS: Final = replace(GRANTS, approved=APPROVED)
_SDK: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def story(ending: Finished, *, background: bool = False) -> list[Event]:
    """A stream in which every kind of item and event occurs."""
    queue: list[Entry] = [Queued(), Alive()] if background else []
    calls = (
        *(call("strict"), say('{"'), END),
        *(call("custom"), say('{"input":"'), *_PLAIN, say('"}'), END),
        *(call("local_shell"), say('{"command":["ls"]}'), END),
        *(call("shell"), say('{"commands":["ls","pwd"]}'), END),
        *(call("tool_search"), say('{"query":"x"}'), END),
        *(call("apply_patch"), say('{"operation":{"type":"delete_file","path":"a"}}'), END),
    )
    log: list[Entry] = [
        *queue,
        Compacted((1, 2), "hgw1.seal", 30, 10, 20, 5),
        LISTED,
        NOT_LISTED,
        *_run(0, b'{"output":"1"}'),
        *_turn(REASONING, *_TEXTS, END, call("builtin:browser.search"), *_TEXTS, END),
        ToolStarted(1, shown=b'{"action":{"type":"search"}}'),
        ToolEnded(1, (3, 4), shown=b'{"action":{"type":"search","query":"q","queries":["q"]}}'),
        *_turn(call("builtin:browser.open"), END),
        *_run(2, b'{"action":{"type":"open_page","url":"https://a.example/"}}', "timeout"),
        *_turn(call("builtin:python"), *_TEXTS, END),
        *_run(3, b'{"outputs":[{"type":"logs","logs":"1"}]}'),
        *_turn(call("srv.add"), *_TEXTS, END),
        *_run(
            4,
            b'{"error":{"type":"mcp_tool_execution_error","content":[{"type":"text","text":"no"}]}}',
            "tool_error",
        ),
        *_turn(COMMENTARY, *_TEXTS, say("【1†L2-L3】"), *_TEXTS, END),
        TurnStarted(20),
        _told((REASONING, *_TEXTS, END, COMMENTARY, *_TEXTS)),
        Alive(),
        Hop("backend", 40),
        _told((*_TEXTS, END, CALL, END, CALL, *_TEXTS, END, *calls)),
        TurnEnded(FinishReason.CUT, 10),
        TurnStarted(0),
        _told((FINAL, say("I'm"), say(" sorry"), END, FINAL, say("{"), *_TEXTS)),
        TurnEnded(FinishReason.LENGTH),
        ending,
    ]
    return apply_all(new_fold(background=background, rules=_RULES, grants=_GRANTS), log)


def asked() -> list[Event]:
    """A stream that ends with a question to the user."""
    log = [*_turn(call("srv.ask"), say("{"), say("}"), END), ENDINGS[0]]
    return apply_all(new_fold(rules=_RULES, grants=GRANTS), log)


def _turn(*ids: int) -> list[Entry]:
    return [TurnStarted(20), _told(ids), TurnEnded(FinishReason.STOP, 10)]


def _run(ordinal: int, shown: bytes, outcome: ToolOutcome = "ok") -> list[Entry]:
    return [ToolStarted(ordinal), ToolEnded(ordinal, (3, 4), outcome, shown)]


def _told(ids: tuple[int, ...]) -> Tokens:
    return Tokens(ids, tuple(map(logprob_of, ids)))


@pytest.fixture(params=ENDINGS, ids=lambda ending: ending.status)
def events(request: pytest.FixtureRequest) -> list[Event]:
    """A whole stream, for every way in which it can end."""
    return story(request.param, background=request.param.status == "cancelled")


def test_the_story_holds_every_event_there_is(events: list[Event]) -> None:
    stream = check_stream(events)
    used = {
        name
        for envelope in ENVELOPES.values()
        for name in (
            *(*envelope.opening, envelope.delta, *envelope.closing),
            *(*envelope.running, *envelope.completed, *envelope.failed),
        )
    }
    assert {name for name in EVENT_FIELDS if name not in stream.types()} == set()
    assert used - {""} <= set(stream.types())
    assert {item["type"] for item in stream.items} == {
        *("compaction", "mcp_list_tools"),
        *({envelope.item_type for envelope in ENVELOPES.values()} - {"mcp_approval_request"}),
    }
    assert {item.get("phase") for item in stream.items} == {"commentary", "final_answer", None}


@pytest.mark.slow
@pytest.mark.requirement("events.documented")
@pytest.mark.requirement("accept.recordings")
def test_events_are_strictly_those_of_the_openai_sdk(events: list[Event]) -> None:
    for event in events:
        parsed = _SDK.validate_json(event.data, strict=True)
        assert parsed.type == event.type
        unknown = BEYOND_THE_SDK.get(event.type, set())
        assert set(parsed.model_extra) == unknown
        for name, model in _models_in(parsed):
            extra = set(model.model_extra or ())
            assert extra <= BEYOND_THE_SDK_MODELS.get(name, set()), name


def test_a_question_to_the_user_is_strictly_of_the_openai_sdk() -> None:
    stream = check_stream(asked())
    assert [item["type"] for item in stream.items] == ["mcp_approval_request"]
    for event in asked():
        parsed = _SDK.validate_json(event.data, strict=True)
        assert not parsed.model_extra


@pytest.mark.slow
@pytest.mark.requirement("stream.end-has-all-items")
def test_the_accumulator_of_the_openai_sdk_accepts_the_stream() -> None:
    events = story(ENDINGS[0])
    state = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in events:
        state.handle_event(_SDK.validate_json(event.data))
    final = state._completed_response
    assert final is not None
    output = check_stream(events).response["output"]
    assert [
        item.model_dump(
            exclude={"content": {0: {"parsed"}}, "parsed_arguments": True}, exclude_unset=True
        )
        for item in final.output
    ] == output


@pytest.mark.slow
def test_the_openai_client_ends_with_the_final_response() -> None:
    events = story(ENDINGS[0])
    with _client(events) as client, client.responses.stream(model="m", input="hi") as stream:
        final = stream.get_final_response()
    said, link = "".join(PIECES), "([The one page](https://a.example/one%20%281%29))"
    assert final.output_text == f"{said}{link}{said}{said}{said}"
    assert final.usage is not None
    assert final.usage.input_tokens_details.cached_tokens == 70
    assert final.tool_usage is not None
    assert final.tool_usage.web_search.num_requests == 1


def test_the_openai_client_raises_for_an_error_event() -> None:
    failed = ENDINGS[2]
    with (
        _client(story(failed)) as client,
        client.responses.create(model="m", input="hi", stream=True) as stream,
        pytest.raises(openai.APIError) as caught,
    ):
        list(stream)
    assert caught.value.message == failed.message
    assert caught.value.code == failed.code


@pytest.mark.requirement("open-responses.union")
def test_events_are_those_of_open_responses(
    events: list[Event], open_responses: jsonschema.Draft202012Validator
) -> None:
    for event in events:
        body = orjson.loads(event.data)
        body["type"] = RENAMED_BY_OPEN_RESPONSES.get(event.type, event.type)
        if "response" in body:
            output = body["response"]["output"]
            known = [item for item in output if item["type"] not in BEYOND_OPEN_RESPONSES]
            body["response"]["output"] = known
        name = event.type.removeprefix("response.").partition(".")[0]
        kind = body["item"]["type"] if "item" in body else name
        if kind not in BEYOND_OPEN_RESPONSES:
            open_responses.validate(body)


@pytest.mark.requirement("traps.no-nulls")
def test_nothing_is_null_that_open_responses_wants_absent(events: list[Event]) -> None:
    absent = {"phase", "content", "encrypted_content", "logprobs", "obfuscation"}
    for event in events:
        for key, value in _pairs_in(orjson.loads(event.data)):
            assert not (key in absent and value is None)


@pytest.fixture(scope="module")
def open_responses() -> jsonschema.Draft202012Validator:
    """A validator of its stream events; the document is not part of this project."""
    if not OPEN_RESPONSES.exists():
        pytest.skip(f"{OPEN_RESPONSES.name} is not here")
    document = orjson.loads(OPEN_RESPONSES.read_bytes())
    answer = document["paths"]["/responses"]["post"]["responses"]["200"]["content"]
    by_type = {}
    for reference in answer["text/event-stream"]["schema"]["oneOf"]:
        schema = document["components"]["schemas"][reference["$ref"].rpartition("/")[2]]
        by_type[schema["properties"]["type"]["enum"][0]] = reference
    # One branch for each type, so that a failure names the field and not only the union.
    branches = [
        {"if": {"properties": {"type": {"const": name}}}, "then": reference}
        for name, reference in by_type.items()
    ]
    known = {"properties": {"type": {"enum": list(by_type)}}}
    schema = {"allOf": [known, *branches], "components": document["components"]}
    return jsonschema.Draft202012Validator(schema)


def _client(events: list[Event]) -> openai.OpenAI:
    """A client whose server answers with this stream."""
    frames = b"".join(
        b"event: %b\ndata: %b\n\n" % (event.type.encode(), event.data) for event in events
    )

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=frames)

    transport = httpx2.Client(transport=httpx2.MockTransport(answer))
    return openai.OpenAI(api_key="k", base_url="http://test/v1", http_client=transport)


def _models_in(value: object) -> Iterator[tuple[str, BaseModel]]:
    """Every SDK model below a model, with the name of its class."""
    children = value if isinstance(value, list) else getattr(value, "__dict__", {}).values()
    for child in children:
        if isinstance(child, BaseModel):
            yield type(child).__name__, child
        if isinstance(child, BaseModel | list):
            yield from _models_in(child)


def _pairs_in(value: object) -> Iterator[tuple[str, object]]:
    children: Iterable[object] = ()
    if isinstance(value, dict):
        yield from value.items()
        children = value.values()
    elif isinstance(value, list):
        children = value
    for child in children:
        yield from _pairs_in(child)
