"""Bodies of items, and the delta events that are spliced instead of encoded."""

from __future__ import annotations

import tracemalloc
from typing import Final

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.eventlog.fold.items import (
    SUMMARY_CHARACTERS_MAX,
    OpenItem,
    SummaryReader,
    WholeItem,
    spelled_units,
)
from gateway.eventlog.fold.lifecycle import ENVELOPES
from gateway.generation import SegmentKind, SegmentText
from tests.fakes.cases import each

CALL: Final = {"call_id": "call_1", "name": "get_weather"}
STREAMED: Final = [kind for kind in SegmentKind if ENVELOPES[kind].delta]
ENTRY: Final = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}


def open_item(kind: SegmentKind) -> OpenItem:
    return OpenItem(ENVELOPES[kind], "id_1", 3, call=CALL)


@each("kind", STREAMED)
def test_a_spliced_delta_is_what_encoding_it_would_give(kind: SegmentKind) -> None:
    item = open_item(kind)
    text = 'say "hi"\n\\ \x00\u2028\U0001f600'
    data = item.write(text, 4711).data
    body = orjson.loads(data)
    assert data == orjson.dumps(body)
    assert (body["type"], body["sequence_number"]) == (item.envelope.delta, 4711)
    assert (body["item_id"], body["output_index"], body["delta"]) == ("id_1", 3, text)


def test_events_that_wait_take_no_more_memory_than_they_need() -> None:
    item = open_item(SegmentKind.FINAL)
    tracemalloc.start()
    try:
        waiting = [item.write("a", number) for number in range(100)]
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(waiting) == 100
    assert used < 100 * 1024


def test_text_deltas_have_an_empty_list_of_logprobs() -> None:
    assert orjson.loads(open_item(SegmentKind.FINAL).write("a", 0).data)["logprobs"] == []


def test_logprobs_are_in_the_delta_and_in_the_part() -> None:
    item = open_item(SegmentKind.FINAL)
    data = item.write("a", 7, [ENTRY]).data
    assert data == orjson.dumps(orjson.loads(data))
    assert orjson.loads(data)["logprobs"] == [ENTRY]
    assert item.body()["content"][0]["logprobs"] == [ENTRY]
    assert item.fields("response.output_text.done")["logprobs"] == [ENTRY]


def test_a_text_that_is_spelled_in_part_has_no_logprobs() -> None:
    item = open_item(SegmentKind.FINAL)
    item.write("a", 7, [ENTRY])
    item.write("b", 8)
    item.write("a", 9, [ENTRY])
    assert item.body()["content"][0]["logprobs"] == []


class Spelled:
    """Each id spells the piece at its own position."""

    pieces = (b"a", "é".encode()[:1], "é".encode()[1:], b" b")

    def piece(self, token: int) -> bytes:
        return self.pieces[token]

    def token_at(self, position: int) -> tuple[int, None]:
        return position, None


def test_a_text_is_cut_where_an_id_and_a_character_end() -> None:
    text = SegmentText("aé b", (0, 1, 2, 3))
    assert list(spelled_units(text, Spelled())) == [
        SegmentText("a", (0,)),
        SegmentText("é", (1, 2)),
        SegmentText(" b", (3,)),
    ]


@pytest.mark.requirement("order.refusal")
def test_a_refusal_is_a_message_with_another_part() -> None:
    item = open_item(SegmentKind.REFUSAL)
    item.write("I can't.", 0)
    assert item.body()["content"] == [{"type": "refusal", "refusal": "I can't."}]
    assert item.body()["phase"] == "final_answer"


def test_a_summary_is_shown_beside_the_text() -> None:
    item = OpenItem(ENVELOPES[SegmentKind.REASONING], "id_1", 3, call={}, summary="detailed")
    item.write("Hm.", 0)
    assert item.body()["summary"] == []
    assert item.summarize("Hm.") == "Hm."
    added = item.summary_fields("response.reasoning_summary_part.added", "")
    assert added["part"] == {"type": "summary_text", "text": ""}
    item.close("incomplete")
    done = item.summary_fields("response.reasoning_summary_part.done", item.summary)
    assert (done["part"]["text"], done["status"]) == ("Hm.", "incomplete")
    assert item.body()["summary"] == [{"type": "summary_text", "text": "Hm."}]


def test_sealed_reasoning_says_so() -> None:
    item = open_item(SegmentKind.REASONING)
    item.encrypted_content = "hgw1.x"
    assert item.body()["encrypted_content"] == "hgw1.x"


def test_the_commands_of_a_shell_call_come_one_after_the_other() -> None:
    call = {"call_id": "call_1", "action": {"commands": ("ls", "pwd"), "timeout_ms": None}}
    item = WholeItem(ENVELOPES[SegmentKind.SHELL_CALL], "id_1", 3, call=call)
    assert item.added()["item"]["action"] == {"commands": [], "timeout_ms": None}
    assert list(item.commands())[3:] == [
        (
            "response.shell_call_command.added",
            {"output_index": 3, "command_index": 1, "command": ""},
        ),
        (
            "response.shell_call_command.delta",
            {"output_index": 3, "command_index": 1, "delta": "pwd"},
        ),
        (
            "response.shell_call_command.done",
            {"output_index": 3, "command_index": 1, "command": "pwd"},
        ),
    ]
    assert item.body() == {
        "id": "id_1",
        "type": "shell_call",
        "status": "completed",
        "call_id": "call_1",
        "action": {"commands": ["ls", "pwd"], "timeout_ms": None},
    }


@pytest.mark.requirement("items.phase")
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


@pytest.mark.requirement("kinds.reasoning")
@pytest.mark.requirement("parts.reasoning-text")
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


@pytest.mark.requirement("kinds.function-call")
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


def test_a_message_is_announced_without_content() -> None:
    assert open_item(SegmentKind.FINAL).body()["content"] == []


def test_an_item_is_closed_once() -> None:
    item = open_item(SegmentKind.FINAL)
    item.close("incomplete")
    with pytest.raises(ValueError, match="cannot follow incomplete"):
        item.close("completed")


laws = settings(deadline=None)


def summary(texts: list[str], *, detailed: bool = False) -> str:
    reader = SummaryReader(detailed=detailed)
    return "".join([*map(reader.feed, texts), reader.finish()])


def test_no_summary_is_made_unless_it_was_asked_for() -> None:
    assert not open_item(SegmentKind.REASONING).is_summarized


def test_a_detailed_summary_is_the_text() -> None:
    assert summary(["One.\n\n", "Two."], detailed=True) == "One.\n\nTwo."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One.\nStill one.\n \nTwo.", "One.\nStill one."),
        ("\n\n  One.", "One."),
        ("", ""),
        ("word " * 100, ("word " * 60).rstrip()),
        ("x" * 299 + " yz", "x" * 299),
        ("x" * 400, "x" * SUMMARY_CHARACTERS_MAX),
        ("x" * 300 + " y", "x" * 300),
    ],
)
def test_a_concise_summary_is_the_first_paragraph_cut_at_a_word(text: str, expected: str) -> None:
    assert summary([text]) == expected
    assert summary(list(text)) == expected


@pytest.mark.slow
@laws
@given(st.text(alphabet="ab \n", max_size=20), st.integers(280, 310), st.data())
def test_the_cut_of_the_text_changes_nothing(text: str, size: int, data: st.DataObject) -> None:
    text = "c" * size + text
    cut = data.draw(st.integers(0, len(text)))
    assert summary([text[:cut], text[cut:]]) == summary([text])
    assert len(summary([text])) <= SUMMARY_CHARACTERS_MAX
