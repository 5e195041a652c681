from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.models.harmony.tokenizer import CALL, CHANNEL, RETURN
from gateway.simulator.completion_wire import Ending, EventTails, EventWriter
from tests.fakes.examples import examples
from tests.fakes.harmony_oracle import vocabulary
from tests.fakes.wayward_engine.options import WaywardOptions
from tests.fakes.wayward_engine.strict_requests import read_request

HEAD = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "gpt-oss-20b"}
TEXT = 'Plain, naïve 👩‍👩‍👧 ⌈m/2⌉ नमस्ते "quoted"\n'
STOP = Ending("stop")


def _writer(**fields: Any) -> EventWriter:
    body = {"prompt": [1, 2], "stream": True, "return_token_ids": True, **fields}
    options = WaywardOptions()
    request = read_request(json.dumps(body).encode(), options)
    return EventWriter(HEAD, request, EventTails(vocabulary()), options)


def _choices(data: bytes) -> list[dict[str, Any]]:
    events = data.decode().split("\n\n")
    assert events.pop() == ""
    return [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]


@given(st.integers(1, 7), st.lists(st.integers(1, 9), max_size=9))
@settings(deadline=None, max_examples=examples(60))
def test_ids_and_text_are_the_same_however_they_are_cut(size: int, cuts: list[int]) -> None:
    ids = [CHANNEL, *vocabulary().encode(TEXT), RETURN]
    writer = _writer()
    data, start = b"", 0
    for cut in cuts:
        end = min(start + cut, len(ids) - 1)
        data += writer.events(ids[start:end], size, None)
        start = end
    choices = _choices(data + writer.events(ids[start:], size, STOP))
    assert [one for choice in choices for one in choice["token_ids"]] == ids
    assert "".join(choice["text"] for choice in choices) == TEXT
    assert all(len(choice["token_ids"]) <= size for choice in choices)
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    assert [choice["prompt_token_ids"] for choice in choices if choice["prompt_token_ids"]] == [
        [1, 2]
    ]
    assert choices[-1]["finish_reason"] == "stop"
    assert choices[0]["prompt_token_ids"] == [1, 2]


def test_half_a_character_is_no_text_until_it_is_whole() -> None:
    first, second, *_ = vocabulary().encode("💖")
    writer = _writer()
    texts = [_choices(writer.events([one], 1, None))[0]["text"] for one in (13225, first, second)]
    assert texts == ["Hello", "", "💖"]


def test_half_a_character_at_the_end_is_replaced() -> None:
    first = vocabulary().encode("💖")[0]
    (choice,) = _choices(_writer().events([first], 1, Ending("length")))
    assert choice["text"] == "\N{REPLACEMENT CHARACTER}"


def test_markers_and_the_stop_id_are_text_only_when_asked_for() -> None:
    ids = [CHANNEL, 13225, CALL]
    shown = {"skip_special_tokens": False}
    ending = Ending("stop", CALL)
    text = [
        "".join(choice["text"] for choice in _choices(_writer(**fields).events(ids, 1, ending)))
        for fields in ({}, shown, {**shown, "include_stop_str_in_output": True})
    ]
    assert text == ["Hello", "<|channel|>Hello", "<|channel|>Hello<|call|>"]


def test_without_return_token_ids_there_are_none() -> None:
    (choice,) = _choices(_writer(return_token_ids=False).events([13225], 1, STOP))
    assert (choice["token_ids"], choice["prompt_token_ids"]) == (None, None)


def test_an_ending_without_ids_is_an_event_of_its_own() -> None:
    (choice,) = _choices(_writer().events([], 1, Ending("abort")))
    assert (choice["token_ids"], choice["finish_reason"]) == ([], "abort")
