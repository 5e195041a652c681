"""Bodies of items, and the delta events that are spliced instead of encoded."""

from __future__ import annotations

import orjson
import pytest

from gateway.generation import SegmentKind
from gateway.output.items import OpenItem
from gateway.output.lifecycle import ENVELOPES


def open_item(kind: SegmentKind) -> OpenItem:
    return OpenItem(ENVELOPES[kind], "id_1", 3, call_id="call_1", name="get_weather")


@pytest.mark.parametrize("kind", SegmentKind)
def test_a_spliced_delta_is_what_encoding_it_would_give(kind: SegmentKind) -> None:
    item = open_item(kind)
    text = 'say "hi"\n\\ \x00\u2028\U0001f600'
    data = item.write(text, 4711)
    body = orjson.loads(data)
    assert data == orjson.dumps(body)
    assert (body["type"], body["sequence_number"]) == (item.envelope.delta, 4711)
    assert (body["item_id"], body["output_index"], body["delta"]) == ("id_1", 3, text)


def test_text_deltas_have_an_empty_list_of_logprobs() -> None:
    assert orjson.loads(open_item(SegmentKind.FINAL).write("a", 0))["logprobs"] == []


def test_a_message_has_its_phase() -> None:
    item = open_item(SegmentKind.COMMENTARY)
    item.write("I will ", 0)
    item.write("look.", 1)
    item.close("completed")
    part = {"type": "output_text", "text": "I will look.", "annotations": [], "logprobs": []}
    assert item.body() == {
        "id": "id_1",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [part],
        "phase": "commentary",
    }


def test_reasoning_has_its_text_and_an_empty_summary() -> None:
    item = open_item(SegmentKind.REASONING)
    item.write("Hm.", 0)
    assert item.body() == {
        "id": "id_1",
        "type": "reasoning",
        "status": "in_progress",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
    }


def test_a_call_is_announced_with_empty_arguments() -> None:
    item = open_item(SegmentKind.FUNCTION_CALL)
    assert item.body() == {
        "id": "id_1",
        "type": "function_call",
        "status": "in_progress",
        "call_id": "call_1",
        "name": "get_weather",
        "arguments": "",
    }
    assert item.lacks_delta


def test_a_message_is_announced_without_content() -> None:
    assert open_item(SegmentKind.FINAL).body()["content"] == []


def test_an_item_is_closed_once() -> None:
    item = open_item(SegmentKind.FINAL)
    item.close("incomplete")
    with pytest.raises(ValueError, match="cannot follow incomplete"):
        item.close("completed")
