from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.models.harmony.tokenizer import CHANNEL, RETURN
from gateway.simulator.completion_wire import (
    Ending,
    EventTails,
    EventWriter,
    alternatives,
    logprob_of,
)
from tests.fakes.harmony_oracle import vocabulary
from tests.fakes.wayward_engine.options import WaywardOptions
from tests.fakes.wayward_engine.strict_requests import read_request

HEAD = {"id": "cmpl-1"}
IDS = [CHANNEL, *vocabulary().encode("Hello, naïve 👋🏽 world"), RETURN]


def _logprobs(cuts: int, **fields: Any) -> list[dict[str, Any]]:
    body = {"prompt": [1], "stream": True, "return_token_ids": True, **fields}
    options = WaywardOptions()
    request = read_request(json.dumps(body).encode(), options)
    writer = EventWriter(HEAD, request, EventTails(vocabulary()), options)
    data = writer.events(IDS, cuts, Ending("stop")).decode()
    choices = [json.loads(event[6:])["choices"][0] for event in data.split("\n\n") if event]
    assert [one for choice in choices for one in choice["token_ids"]] == IDS
    for choice in choices:
        sizes = {len(values) for values in choice["logprobs"].values()}
        assert sizes == {len(choice["token_ids"])}
    return [choice["logprobs"] for choice in choices]


def _joined(events: list[dict[str, Any]], name: str) -> list[Any]:
    return [one for event in events for one in event[name]]


@pytest.mark.parametrize("cuts", [1, 2, 5, 100])
def test_each_id_has_its_logprobs_however_events_are_cut(cuts: int) -> None:
    events = _logprobs(cuts, logprobs=3, return_tokens_as_token_ids=True)
    assert _joined(events, "tokens") == [f"token_id:{one}" for one in IDS]
    assert _joined(events, "token_logprobs") == [logprob_of(one) for one in IDS]
    tops = _joined(events, "top_logprobs")
    assert [top[f"token_id:{one}"] for top, one in zip(tops, IDS, strict=True)] == [
        logprob_of(one) for one in IDS
    ]
    offsets = _joined(events, "text_offset")
    assert offsets[:3] == [0, 15, 15 + len(f"token_id:{IDS[1]}")]


def test_without_ids_tokens_are_named_by_their_text() -> None:
    tokens = _joined(_logprobs(4, logprobs=0), "tokens")
    assert tokens[:3] == ["<|channel|>", "Hello", ","]


@given(st.integers(0, 201_087), st.integers(0, 20))
def test_the_id_itself_comes_first_and_then_the_likeliest(token: int, count: int) -> None:
    (first, own), *others = alternatives(token, count).items()
    assert (first, own) == (token, logprob_of(token))
    assert len(others) + 1 == max(count, 1) or (count, len(others)) == (1, 1)
    assert all(better[1] >= worse[1] for better, worse in pairwise(others))
