"""Ids as the Harmony messages that they are: openai-harmony's where it is well-formed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_harmony import Role

from gateway.models.format import RAW
from gateway.models.harmony.harmony_format import HarmonyFormat, transcript
from gateway.models.harmony.tokenizer import FIRST_SPECIAL, NAMED_SPECIALS, VOCABULARY_SIZE
from tests.fakes.cases import each
from tests.fakes.harmony_oracle import encoding, vocabulary

CORPUS = Path(__file__).parents[3] / "data" / "harmony_corpus.jsonl"
CASES = [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]
ANY_ID = st.one_of(
    st.sampled_from(sorted(NAMED_SPECIALS.values())),
    st.integers(0, FIRST_SPECIAL - 1),
    st.integers(FIRST_SPECIAL, VOCABULARY_SIZE + 9),
)


def ids_of(text: str) -> list[int]:
    ids: list[int] = encoding().encode(text, allowed_special="all")
    return ids


def read(text: str) -> list[dict[str, Any]]:
    return transcript(vocabulary(), ids_of(text))


def text_of(message: dict[str, Any]) -> str:
    (part,) = message["content"]
    return str(part["text"])


@each(
    ("text", "fields"),
    [
        ("<|start|>system<|message|>You<|end|>", {"role": "system"}),
        ("<|start|>user<|message|>Hi<|end|>", {"role": "user"}),
        (
            "<|start|>assistant to=python<|channel|>analysis code<|message|>1<|call|>",
            {
                "role": "assistant",
                "recipient": "python",
                "channel": "analysis",
                "content_type": "code",
            },
        ),
        (
            "<|start|>browser.search to=assistant<|channel|>analysis<|message|>found<|end|>",
            {
                "role": "tool",
                "name": "browser.search",
                "recipient": "assistant",
                "channel": "analysis",
            },
        ),
        (
            "<|start|>assistant<|channel|>analysis<|message|>Hm<|end|>",
            {"role": "assistant", "channel": "analysis"},
        ),
        (
            "<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}"
            "<|call|>",
            {
                "role": "assistant",
                "recipient": "functions.f",
                "channel": "commentary",
                "content_type": "<|constrain|>json",
            },
        ),
        (
            "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}",
            {
                "role": "assistant",
                "recipient": "functions.f",
                "channel": "commentary",
                "content_type": "<|constrain|>json",
            },
        ),
        (
            "<|start|>assistant<|channel|>commentary to=functions.f json<|message|>{}<|call|>",
            {
                "role": "assistant",
                "recipient": "functions.f",
                "channel": "commentary",
                "content_type": "json",
            },
        ),
        (
            "<|start|>functions.f to=assistant<|channel|>commentary<|message|>7<|end|>",
            {
                "role": "tool",
                "name": "functions.f",
                "recipient": "assistant",
                "channel": "commentary",
            },
        ),
    ],
)
def test_a_well_formed_message_has_its_fields(text: str, fields: dict[str, str]) -> None:
    (message,) = read(text)
    assert {name: value for name, value in message.items() if name != "content"} == fields


@each(
    "text",
    [
        "<|start|>assistant",
        "said without a header<|end|>",
        "<|start|>assistant<|channel|>thoughts<|message|>Hm<|end|>",
        "<|start|>assistant<|channel|>final<|message|>a<|channel|>b<|end|>",
        "<|start|>assistant to=f<|channel|>final to=g<|message|>a<|end|>",
        "<|start|>assistant of sorts<|message|>a<|end|>",
        "<|start|>assistant<|return|>",
        "<|start|><|endoftext|><|message|>a<|end|>",
        "<|message|><|return|>",
    ],
)
def test_what_is_no_message_is_shown_as_it_is(text: str) -> None:
    assert read(text) == [{"type": RAW, "message": text, "tokens": ids_of(text)}]


def test_ids_are_shown_where_they_are_asked_for() -> None:
    text = "<|start|>user<|message|>Hi<|end|>"
    assert transcript(vocabulary(), ids_of(text), with_ids=True) == [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}], "token_ids": ids_of(text)}
    ]


def test_an_id_that_means_nothing_is_spelled_by_its_number() -> None:
    (message,) = transcript(vocabulary(), [VOCABULARY_SIZE + 1])
    assert message["message"] == f"<|{VOCABULARY_SIZE + 1}|>"


def test_a_turn_shows_what_was_taken_back() -> None:
    said = ids_of("<|channel|>final<|message|>Yes<|return|>")
    voided = ids_of("<|channel|>nonsense")
    shown, taken_back = HarmonyFormat(vocabulary()).messages_of_turn(said, [("R1", voided)])
    assert (shown["channel"], text_of(shown)) == ("final", "Yes")
    assert taken_back == {
        "type": RAW,
        "message": "<|channel|>nonsense",
        "tokens": voided,
        "taken_back_by": "R1",
    }


@pytest.mark.slow
@given(st.lists(ANY_ID, max_size=60))
def test_any_ids_are_shown_whole_and_in_order(ids: list[int]) -> None:
    shown = transcript(vocabulary(), ids, with_ids=True)
    assert [token for one in shown for token in one.get("token_ids") or one["tokens"]] == ids
    assert json.loads(json.dumps(shown)) == shown


def test_what_openai_harmony_reads_is_read_alike(subtests: pytest.Subtests) -> None:
    """Its own exceptions are content types and recipients, which it spells otherwise."""
    for case in CASES:
        with subtests.test(case=case["id"]):
            check_messages(case)


def check_messages(case: dict[str, Any]) -> None:
    ids = case["tokens"]
    messages = HarmonyFormat(vocabulary()).messages_of_turn(ids)
    shown = [one for one in messages if one.get("type") != RAW]
    try:
        parsed = encoding().parse_messages_from_completion_tokens(ids, Role.ASSISTANT)
    except Exception:  # noqa: BLE001 - the library has no class of its own for this
        return
    theirs = [(one.channel, one.content[0].to_dict()["text"]) for one in parsed]
    ours = [(one.get("channel"), text_of(one)) for one in shown]
    assert [one for one in ours if one not in theirs] == []
