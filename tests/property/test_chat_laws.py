"""Laws of chat completions: a stream and a body say the same, and what the response says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway.eventlog.fold.fold import Fold
from gateway.protocol.chat_answers import SEPARATOR, ChatAdapter, CompletionAdapter
from gateway.protocol.responses.response_object import ResponseHead
from tests.fakes.chat_streams import as_assembled, assembled_chat
from tests.fakes.fold_formats import parsed_by
from tests.fakes.response_heads import CREATED_AT, ECHO, UUID_OF_TEST
from tests.fakes.toy_logs import FRAMING, apply_all, steered_logs
from tests.fakes.toy_parser import ToyParser

if TYPE_CHECKING:
    from gateway.constraints.output_rules import OutputRules
    from gateway.entries import Entry
    from gateway.protocol.stream_events import Event

    Json = dict[str, Any]
    Case = tuple[OutputRules, list[Entry]]

laws = settings(deadline=None)
adapters = st.builds(
    ChatAdapter, logprobs=st.booleans(), is_deprecated=st.booleans(), include_usage=st.just(True)
)
formats = st.sampled_from(["text", "json_object", "json_schema"])


def told(case: Case, format_type: str) -> tuple[list[Event], Json]:
    """All events of a case, and the Response object at its end."""
    rules, log = case
    echo = {**ECHO, "text": {"format": {"type": format_type}}}
    head = ResponseHead(UUID_OF_TEST, CREATED_AT, False, echo)
    fold = Fold(head, parsed_by(ToyParser, FRAMING), rules, bytes.hex)
    events = apply_all(fold, log)
    return events, orjson.loads(orjson.dumps(fold.response()))


def shown(events: list[Event], adapter: ChatAdapter | CompletionAdapter) -> list[Json]:
    chunks = adapter.chunks()
    return [orjson.loads(chunk) for event in events for chunk in chunks.from_event(event)]


@pytest.mark.slow
@laws
@given(steered_logs(), adapters, formats)
def test_a_stream_says_what_the_body_says(
    case: Case, adapter: ChatAdapter, format_type: str
) -> None:
    events, response = told(case, format_type)
    # Who sends deprecated functions has no custom tools.
    kinds = {item["type"] for item in response["output"]}
    assume(not (adapter.is_deprecated and "custom_tool_call" in kinds))
    streamed = shown(events, adapter)
    if response["status"] in {"failed", "cancelled"}:
        assert [list(chunk) for chunk in streamed if "error" in chunk] == [["error"]]
        assert list(streamed[-1]) == ["error"]
        return
    body, stream = as_assembled(adapter.body(response)), assembled_chat(streamed)
    # Where not all of a text is spelled, its body has no logprobs at all.
    if not body["logprobs"]:
        stream["logprobs"] = []
    if len(body["logprobs"]) == len(stream["logprobs"]):
        assert stream == body
    else:
        assert {**stream, "logprobs": []} == {**body, "logprobs": []}


@pytest.mark.slow
@laws
@given(steered_logs(), formats)
def test_a_body_says_what_the_response_says(case: Case, format_type: str) -> None:
    _, response = told(case, format_type)
    if response["status"] in {"failed", "cancelled"}:
        return
    body = ChatAdapter(include_usage=False).body(response)
    message = body["choices"][0]["message"]
    parts = [
        (item, part)
        for item in response["output"]
        if item["type"] in {"message", "reasoning"}
        for part in item["content"]
    ]
    texts: dict[str, list[str]] = {"content": [], "refusal": [], "reasoning_content": []}
    for item, part in parts:
        aside = item["type"] == "reasoning" or (
            format_type != "text" and item["phase"] == "commentary"
        )
        name = "refusal" if part["type"] == "refusal" else "content"
        texts["reasoning_content" if aside else name].append(
            part[name if name == "refusal" else "text"]
        )
    for name, said in texts.items():
        assert (message.get(name) or "") == SEPARATOR.join(said)
    calls = [item for item in response["output"] if item["type"] in _CALLS]
    assert [call["id"] for call in message.get("tool_calls", ())] == [
        call["call_id"] for call in calls
    ]
    assert body["usage"]["completion_tokens"] == response["usage"]["output_tokens"]


@pytest.mark.slow
@laws
@given(steered_logs(), formats)
def test_a_completion_is_the_content_of_the_chat(case: Case, format_type: str) -> None:
    events, response = told(case, format_type)
    if response["status"] in {"failed", "cancelled"}:
        return
    adapter = CompletionAdapter(include_usage=False)
    body = adapter.body(response)
    streamed = shown(events, adapter)
    chat = ChatAdapter(include_usage=False).body(response)
    text = chat["choices"][0]["message"]["content"] or ""
    assert body["choices"][0]["text"] == text
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == text
    assert streamed[-1]["choices"][0]["finish_reason"] == body["choices"][0]["finish_reason"]
    assert {chunk["id"] for chunk in streamed} == {body["id"]}


_CALLS = {"function_call", "custom_tool_call"}
