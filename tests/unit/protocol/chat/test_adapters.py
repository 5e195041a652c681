"""Bodies and chunks, as literal values; that the two agree is a law (`test_chat_laws`)."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import TypeAdapter

from gateway.entries import Finished, Tokens, TurnEnded, TurnStarted
from gateway.generation import FinishReason
from gateway.protocol.chat_answers import SEPARATOR, ChatAdapter, CompletionAdapter, failure_of
from tests.fakes.toy_logs import RULES, apply_all, logprob_of, new_fold
from tests.fakes.toy_parser import CALL, COMMENTARY, END, FINAL, REASONING, RETURN, TEXT, call, say

Json = dict[str, Any]

A, B = TEXT, TEXT + 1
"""Ids that say `a` and `b`."""
DONE = Finished("completed", 9)
CUT = Finished("incomplete", 9, reason="max_output_tokens")
FAILED = Finished("failed", 9, code="server_error", message="It broke off.")
ANSWERED = [REASONING, A, END, COMMENTARY, B, END, FINAL, A, RETURN]
CALLED = [REASONING, A, END, CALL, say('{"'), say('"}'), END]


def told(ids: list[int], ending: Finished, rules: int = 0) -> tuple[list[Any], Json]:
    """The events of a turn that says `ids`, one an entry, and the Response object."""
    fold = new_fold(rules=RULES[rules])
    said = [Tokens((one,), (logprob_of(one),)) for one in ids]
    ended = [TurnEnded(FinishReason.STOP, cached_tokens=3)]
    events = apply_all(fold, [TurnStarted(4, ()), *said, *ended, ending])
    return events, orjson.loads(orjson.dumps(fold.response()))


def body(ids: list[int], ending: Finished = DONE, form: ChatAdapter | None = None) -> Json:
    shown = (form or ChatAdapter()).body(told(ids, ending)[1])
    TypeAdapter(ChatCompletion).validate_python(shown)
    return shown


def chunks(
    ids: list[int], ending: Finished = DONE, form: ChatAdapter | None = None, rules: int = 0
) -> list[Json]:
    stream = (form or ChatAdapter()).chunks()
    events, _ = told(ids, ending, rules)
    shown = [orjson.loads(chunk) for event in events for chunk in stream.from_event(event)]
    for chunk in shown:
        # The SDK's type of chunks does not know custom tools yet.
        if "error" not in chunk and "custom" not in json.dumps(chunk):
            TypeAdapter(ChatCompletionChunk).validate_python(chunk)
    return shown


def deltas(shown: list[Json]) -> list[Json]:
    return [chunk["choices"][0]["delta"] for chunk in shown]


def text_of(delta: Json) -> str:
    """Its only text, without what joins it to one before."""
    match delta:
        case {"tool_calls": [{"function": {"arguments": text}}]}:
            return str(text)
        case _:
            (text,) = {*delta.values()}
            return str(text).removeprefix(SEPARATOR)


def test_a_body_has_every_member() -> None:
    shown = body(ANSWERED)
    fingerprint = shown.pop("system_fingerprint")
    assert fingerprint.startswith("fp_")
    assert shown == {
        "id": "chatcmpl-019aa0b0c0d07e0f8102030405060708",
        "object": "chat.completion",
        "created": 1_795_000_000,
        "model": "gpt-oss-20b",
        "service_tier": "default",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "b\n\na",
                    "refusal": None,
                    "annotations": [],
                    "reasoning_content": "a",
                    "reasoning": "a",
                },
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 4,
            "completion_tokens": 9,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": 3, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": shown["usage"]["completion_tokens_details"]["reasoning_tokens"],
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
        "metadata": {"purpose": "test"},
    }


def test_a_call_leaves_the_content_null() -> None:
    choice = body(CALLED)["choices"][0]
    (shown,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert (shown["type"], shown["function"]["arguments"]) == ("function", '{""}')
    assert shown["id"].startswith("call_")


def test_a_deprecated_call_has_no_id() -> None:
    choice = body(CALLED, form=ChatAdapter(is_deprecated=True))["choices"][0]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"]["arguments"] == '{""}'
    assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize("ids", [[REASONING, A], []])
def test_an_answer_that_was_cut_off_before_it_began_is_empty(ids: list[int]) -> None:
    choice = body(ids, CUT)["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == ""
    assert deltas(chunks(ids, CUT))[-1] == {"content": ""}


def test_a_call_that_was_cut_off_is_no_reason_to_make_it() -> None:
    assert body(CALLED[:-1], CUT)["choices"][0]["finish_reason"] == "length"


def test_an_answer_that_a_filter_ended_was_not_too_long() -> None:
    filtered = Finished("incomplete", 9, reason="content_filter")
    for answer in (body(ANSWERED, filtered), chunks(ANSWERED, filtered)[-1]):
        assert answer["choices"][0]["finish_reason"] == "content_filter"


def test_a_stream_opens_with_the_role_and_ends_with_the_reason() -> None:
    shown = chunks(ANSWERED)
    assert deltas(shown) == [
        {"role": "assistant", "content": None, "refusal": None},
        {"reasoning_content": "a", "reasoning": "a"},
        {"content": "b"},
        {"content": "\n\na"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in shown] == [None] * 4 + ["stop"]
    assert {chunk["created"] for chunk in shown} == {1_795_000_000}
    assert all("usage" not in chunk for chunk in shown)


def test_calls_are_numbered_from_zero_without_gaps() -> None:
    shown = deltas(chunks([*CALLED, CALL, say('"}'), END]))
    calls = [delta["tool_calls"][0] for delta in shown if "tool_calls" in delta]
    assert [call["index"] for call in calls] == [0, 0, 0, 1, 1]
    opened, more = {"index", "id", "type", "function"}, {"index", "function"}
    assert [set(call) for call in calls] == [opened, more, more, opened, more]
    assert calls[1]["function"] == {"arguments": '{"'}


def test_a_custom_call_streams_its_input() -> None:
    said = [call("custom"), say('{"input":"'), A, say('"}'), END]
    shown = deltas(chunks(said, rules=1))
    opened, *more = [delta["tool_calls"][0] for delta in shown if "tool_calls" in delta]
    assert (opened["type"], opened["custom"]) == ("custom", {"name": "patch", "input": ""})
    assert more == [{"index": 0, "custom": {"input": "a"}}]


def test_only_the_first_deprecated_call_is_streamed() -> None:
    shown = deltas(chunks([*CALLED, *CALLED[3:]], form=ChatAdapter(is_deprecated=True)))
    calls = [delta["function_call"] for delta in shown if "function_call" in delta]
    assert [call["arguments"] for call in calls] == ["", '{"', '"}']
    assert "name" in calls[0]


def test_a_refusal_is_shown_in_the_place_of_the_answer() -> None:
    events, response = told([FINAL, say("I'm"), say(" sorry"), RETURN], DONE, rules=2)
    adapter = ChatAdapter(logprobs=True, include_usage=False)
    (choice,) = adapter.body(response)["choices"]
    assert (choice["message"]["refusal"], choice["message"]["content"]) == ("I'm sorry", None)
    assert choice["logprobs"] == {"content": None, "refusal": None}
    stream = adapter.chunks()
    shown = deltas([orjson.loads(chunk) for event in events for chunk in stream.from_event(event)])
    assert "".join(delta.get("refusal") or "" for delta in shown) == "I'm sorry"


def test_logprobs_are_those_of_the_content() -> None:
    form = ChatAdapter(logprobs=True)
    choice = body(ANSWERED, form=form)["choices"][0]
    entries = choice["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["b", "a"]
    assert entries[0]["bytes"] == [98]
    told_of = [chunk["choices"][0]["logprobs"] for chunk in chunks(ANSWERED, form=form)]
    assert told_of[:2] + told_of[4:] == [None, None, None]
    assert told_of[2:4] == [{"content": [entry], "refusal": None} for entry in entries]


def test_what_fails_ends_with_an_error() -> None:
    *_, last = chunks([FINAL, A], FAILED)
    assert last == {
        "error": {
            "message": "It broke off.",
            "type": "server_error",
            "param": None,
            "code": "server_error",
        }
    }


def test_what_is_cancelled_ends_with_an_error() -> None:
    *_, last = chunks([FINAL, A], Finished("cancelled", 9))
    assert last["error"]["message"] == "The response was cancelled."


def test_a_failure_is_told_in_the_words_of_the_chat() -> None:
    error = {"code": "context_length_exceeded", "message": "Raise max_output_tokens."}
    assert failure_of({"status": "failed", "error": error}) == {
        "message": "Raise max_completion_tokens.",
        "type": "invalid_request_error",
        "param": None,
        "code": "context_length_exceeded",
    }


def test_the_usage_is_in_a_last_chunk_without_choices() -> None:
    stream = ChatAdapter(include_usage=True).chunks()
    events, response = told(ANSWERED, DONE)
    *before, last = [orjson.loads(chunk) for event in events for chunk in stream.from_event(event)]
    assert all(chunk["usage"] is None for chunk in before)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == response["usage"]["output_tokens"]


def test_each_delta_is_one_chunk_with_as_much_text() -> None:
    stream = ChatAdapter(include_usage=False).chunks()
    events, _ = told([*ANSWERED, *CALLED], DONE)
    shown = [[orjson.loads(chunk) for chunk in stream.from_event(event)] for event in events]
    lengths = [
        (event.delta_length, [len(text_of(delta)) for delta in deltas(chunks)])
        for event, chunks in zip(events, shown, strict=True)
        if event.delta_length
    ]
    assert len(lengths) == 6
    assert all([length] == told_of for length, told_of in lengths)


def test_a_completion_is_the_answer_alone() -> None:
    events, response = told(ANSWERED, DONE)
    adapter = CompletionAdapter(include_usage=True)
    shown = adapter.body(response)
    TypeAdapter(Completion).validate_python(shown)
    assert shown["id"] == "cmpl-019aa0b0c0d07e0f8102030405060708"
    assert shown["object"] == "text_completion"
    (choice,) = shown["choices"]
    assert choice == {"text": "b\n\na", "index": 0, "logprobs": None, "finish_reason": "stop"}
    stream = adapter.chunks()
    streamed = [orjson.loads(chunk) for event in events for chunk in stream.from_event(event)]
    texts = [chunk["choices"][0]["text"] for chunk in streamed[:-1]]
    assert texts == ["b", "\n\na", ""]
    assert (streamed[-1]["choices"], streamed[-1]["usage"]) == ([], shown["usage"])
    assert streamed[-2]["choices"][0]["finish_reason"] == "stop"


def test_a_completion_does_not_show_calls() -> None:
    events, _ = told([*ANSWERED, *CALLED], DONE)
    stream = CompletionAdapter(include_usage=False).chunks()
    streamed = [orjson.loads(chunk) for event in events for chunk in stream.from_event(event)]
    assert [chunk["choices"][0]["text"] for chunk in streamed] == ["b", "\n\na", ""]


def test_a_completion_that_said_nothing_is_empty() -> None:
    _, response = told([REASONING, A], CUT)
    (choice,) = CompletionAdapter(include_usage=False).body(response)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("", "length")
