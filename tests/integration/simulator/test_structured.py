"""The simulator's structured output, logprobs and malformed output over the wire."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.harmony_oracle import vocabulary
from tests.fakes.raw_http import ask, complete, completion_body, request_bytes, without_stream
from tests.fakes.simulated_conversation import WEATHER, developer, prompt_of, user
from tests.fakes.simulator import RunningSimulator, simulator
from tests.fakes.turn_tags import call, json_of, turn
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = Path(__file__).parents[2] / "data" / "vllm_structured_captures.json"
CAPTURES: dict[str, dict[str, Any]] = json.loads(DATA.read_text("utf-8"))
REFUSED = sorted(name for name, capture in CAPTURES.items() if capture["status"] >= 400)
CITY = {
    "type": "object",
    "properties": {"location": {"type": "string", "enum": ["Rome", "Oslo"]}},
    "required": ["location"],
    "additionalProperties": False,
}
TAG = turn(call("get_weather", json_of(CITY)))
STRUCTURED = {"structural_tag": json.dumps(TAG)}


@pytest.fixture(scope="module")
def tiny() -> Iterator[RunningSimulator]:
    with simulator(WaywardOptions(models=("gpt-oss-tiny",), context_length=8192)) as running:
        yield running


@pytest.fixture(scope="module")
def sglang() -> Iterator[RunningSimulator]:
    with simulator(WaywardOptions(engine="sglang", context_length=8192)) as running:
        yield running


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_held_to_is_refused_word_for_word(name: str, tiny: RunningSimulator) -> None:
    response = complete(tiny.port, CAPTURES[name]["request"])
    assert (response.status, response.json) == (CAPTURES[name]["status"], CAPTURES[name]["body"])


@pytest.mark.parametrize("name", ["cmpl_logprobs", "cmpl_logprobs_tokid"])
def test_logprobs_have_the_recorded_form(name: str, tiny: RunningSimulator) -> None:
    (there,) = CAPTURES[name]["body"]["choices"]
    (here,) = complete(tiny.port, CAPTURES[name]["request"]).json["choices"]
    assert list(here) == list(there)
    assert list(here["logprobs"]) == list(there["logprobs"])
    assert [len(top) for top in here["logprobs"]["top_logprobs"]] == [3, 3, 3]
    assert [type(one) for one in here["logprobs"]["tokens"]] == [str, str, str]


def _weather(directives: str = "", **fields: Any) -> dict[str, Any]:
    text = f"Weather in Berlin {directives}"
    prompt = prompt_of(developer(WEATHER), user(text))
    return completion_body("", prompt=prompt, **fields)


def _arguments(ids: list[int]) -> Any:
    return json.loads(vocabulary().decode(ids[len(ids) - ids[::-1].index(200008) :]))


def test_a_structural_tag_is_obeyed(backend: RunningSimulator) -> None:
    response = complete(backend.port, _weather(structured_outputs=STRUCTURED))
    assert _arguments(response.ids)["location"] in {"Rome", "Oslo"}
    assert (response.finish_reasons, response.terminated) == (["stop"], True)
    assert response.choices[-1]["stop_reason"] == 200012
    free = complete(backend.port, _weather())
    assert _arguments(free.ids) == {"location": "Berlin"}


def test_streamed_or_not_the_same_is_obeyed(backend: RunningSimulator) -> None:
    streamed = complete(backend.port, _weather(structured_outputs=STRUCTURED))
    body = _weather(structured_outputs=STRUCTURED, stream=False, stream_options=None)
    assert complete(backend.port, body).json["choices"][0]["token_ids"] == streamed.ids


def test_antics_end_after_their_times(backend: RunningSimulator) -> None:
    body = _weather("[[sim drift=truncated times=2]]")
    replies = [complete(backend.port, body).ids for _ in range(3)]
    assert replies[0] == replies[1]
    with pytest.raises(json.JSONDecodeError):
        _arguments(replies[0])
    assert _arguments(replies[2]) == {"location": "Berlin"}


def test_a_turn_that_is_begun_anew_is_another_attempt(backend: RunningSimulator) -> None:
    body = _weather("[[sim attack=call:other times=1]]")
    first = complete(backend.port, body)
    assert "functions.other" in vocabulary().decode(first.ids)
    header = vocabulary().encode(" to=functions.")
    again = complete(backend.port, {**body, "prompt": [*body["prompt"], *header]})
    assert vocabulary().decode(again.ids).startswith("get_weather")


def test_it_tells_what_the_output_was_held_to(backend: RunningSimulator) -> None:
    fields: dict[str, Any] = {"priority": -1, "top_k": 40, "min_p": 0.1, "seed": 7, "logprobs": 2}
    complete(backend.port, _weather(structured_outputs=STRUCTURED, **fields))
    (row,) = backend.requests()
    assert row["demand"] == {"kind": "structural_tag", "value": TAG}
    assert (row["priority"], row["logprobs"]) == (-1, 2)
    assert row["sampling"] == {"top_k": 40, "min_p": 0.1, "seed": 7}
    complete(backend.port, without_stream("Hello"))
    assert [row["demand"] for row in backend.requests()] == [row["demand"], None]


def test_a_bad_grammar_is_found_when_a_stream_has_begun(backend: RunningSimulator) -> None:
    response = complete(backend.port, _weather(structured_outputs={"grammar": "root ::= "}))
    error = {"type": "BadRequestError", "param": None, "code": 400}
    refusal = {"error": {"message": "Invalid grammar specification.", **error}}
    assert (response.status, response.events) == (200, [refusal, "[DONE]"])
    tag = {"type": "structural_tag", "format": {"type": "grammar", "grammar": "root ::= nope"}}
    body = _weather(structured_outputs={"structural_tag": json.dumps(tag)})
    assert complete(backend.port, body).status == 400


def test_a_grammar_that_the_matcher_does_not_take_is_a_400(backend: RunningSimulator) -> None:
    tag = {"type": "structural_tag", "format": json_of({"type": "nope"})}
    body = _weather(structured_outputs={"structural_tag": json.dumps(tag)})
    response = complete(backend.port, body)
    assert response.status == 400
    assert response.json["error"]["message"].startswith("Grammar error: ")


def test_sglang_is_found_by_its_server_info(sglang: RunningSimulator) -> None:
    assert ask(sglang.port, request_bytes("GET", "/version")).status == 404
    assert ask(sglang.port, request_bytes("GET", "/metrics")).status == 404
    info = ask(sglang.port, request_bytes("GET", "/server_info")).json
    assert (info["version"], info["context_length"]) == ("0.5.23", 8192)
    assert ask(sglang.port, request_bytes("GET", "/get_server_info")).json == info
    assert ask(sglang.port, request_bytes("GET", "/ready")).status == 200
    model = ask(sglang.port, request_bytes("GET", "/model_info")).json
    assert model["served_model_name"] == "gpt-oss-20b"
    rows = ask(sglang.port, request_bytes("GET", "/v1/models")).json["data"]
    assert [row["max_model_len"] for row in rows] == [8192, 8192]


def test_vllm_has_no_server_info(backend: RunningSimulator) -> None:
    assert ask(backend.port, request_bytes("GET", "/server_info")).status == 404


def test_sglang_streams_in_its_own_words(sglang: RunningSimulator) -> None:
    body = completion_body("Hello", rid="mine", logprobs=2, structured_outputs={"regex": "("})
    response = complete(sglang.port, body)
    assert {event["id"] for event in response.events[:-1]} == {"mine"}
    assert all("stop_reason" not in choice for choice in response.choices)
    assert [choice["logprobs"] for choice in response.choices if choice["logprobs"]] == []
    assert response.choices[-1]["matched_stop"] == response.ids[-1] == 200002
    assert [event["usage"] for event in response.events[:-2]] == [None] * len(response.choices)
    usage = response.events[-2]["usage"]
    assert (usage["completion_tokens"], usage["reasoning_tokens"]) == (len(response.ids), 0)
    assert "system_fingerprint" not in response.events[-2]


def test_sglang_obeys_the_tag_of_its_response_format(sglang: RunningSimulator) -> None:
    response = complete(sglang.port, _weather(response_format=TAG))
    assert _arguments(response.ids)["location"] in {"Rome", "Oslo"}
    assert response.choices[-1]["matched_stop"] == 200012


def test_sglangs_errors_are_flat_but_not_in_a_stream(sglang: RunningSimulator) -> None:
    refused = complete(sglang.port, completion_body("Hello", max_tokens=0))
    assert (refused.status, refused.json["object"], refused.json["code"]) == (400, "error", 400)
    failed = complete(sglang.port, completion_body("[[sim error_after=2]]"))
    assert failed.events[-2]["error"]["object"] == "error"
    assert complete(sglang.port, completion_body("[[sim status=503]]")).json["code"] == 503
