"""The simulator against responses recorded from vLLM 0.32.0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.harmony_oracle import vocabulary
from tests.fakes.raw_http import RawResponse, ask, request_bytes
from tests.fakes.simulator import RunningSimulator, simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = Path(__file__).parents[2] / "data" / "vllm_captures.json"
CAPTURES: dict[str, dict[str, Any]] = json.loads(DATA.read_text("utf-8"))
GUARDED = sorted(name for name in CAPTURES if name.startswith("a_"))
REFUSED = sorted(
    name for name, capture in CAPTURES.items() if capture["status"] >= 400 and name not in GUARDED
)
EXACT = ["get_health", "get_ping", "get_version", "get_load", "get_get_notfound", *REFUSED]
OPTIONS: dict[str, Any] = {"models": ("gpt-oss-tiny",), "context_length": 8192}


@pytest.fixture(scope="module")
def tiny() -> Iterator[RunningSimulator]:
    with simulator(WaywardOptions(**OPTIONS)) as running:
        yield running


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningSimulator]:
    with simulator(WaywardOptions(**OPTIONS, api_key="k1")) as running:
        yield running


def _replay(running: RunningSimulator, capture: dict[str, Any], **faults: Any) -> RawResponse:
    request = capture["request"]
    if request is not None:
        request = {**request, "prompt": _prompt(request), **faults}
        request = {name: value for name, value in request.items() if value is not None}
    body = b"" if request is None else json.dumps(request).encode()
    return ask(
        running.port, request_bytes(capture["method"], capture["path"], body, capture["headers"])
    )


def _prompt(request: dict[str, Any]) -> Any:
    prompt = request.get("prompt")
    return [prompt["repeat"]] * prompt["times"] if isinstance(prompt, dict) else prompt


@pytest.mark.parametrize("name", EXACT)
def test_probes_and_refusals_are_answered_word_for_word(name: str, tiny: RunningSimulator) -> None:
    capture = CAPTURES[name]
    response = _replay(tiny, capture)
    assert response.status == capture["status"]
    assert response.headers.get("content-type") == capture["content_type"]
    assert (response.json if response.body else None) == capture["body"]


@pytest.mark.parametrize("name", [name for name in GUARDED if name != "a_cached_2"])
def test_a_key_guards_what_it_guards_at_vllm(name: str, guarded: RunningSimulator) -> None:
    response = _replay(guarded, CAPTURES[name])
    assert response.status == CAPTURES[name]["status"]
    assert (response.json if response.body else None) == CAPTURES[name]["body"]


def test_the_right_key_is_let_in(guarded: RunningSimulator) -> None:
    response = _replay(guarded, CAPTURES["a_cached_2"])
    assert response.status == 200
    assert response.events[-1] == "[DONE]"


@pytest.mark.parametrize("name", ["cmpl_stream", "cmpl_stream_token_ids", "a_cached_2"])
def test_events_have_the_recorded_members_in_the_recorded_order(
    name: str, tiny: RunningSimulator
) -> None:
    capture = CAPTURES[name]
    response = _replay(tiny, capture)
    assert response.headers["content-type"] == capture["content_type"]
    recorded = [event for event in capture["events"] if event != "[DONE]"]
    events = [event for event in response.events if event != "[DONE]"]
    for here, there in ((events[0], recorded[0]), (events[-1], recorded[-1])):
        assert _shape(here) == _shape(there)
    assert response.events[-1] == "[DONE]"
    assert response.terminated


def _shape(event: dict[str, Any]) -> Any:
    """Names in order, whether values are null, and not what they are."""
    ours = {name: value for name, value in event.items() if name != "metrics"}
    if "usage" in ours:
        ours["usage"] = {k: v for k, v in ours["usage"].items() if k != "prompt_tokens_details"}
    return [(name, _shape_of(value)) for name, value in ours.items()]


def _shape_of(value: Any) -> Any:
    if isinstance(value, dict):
        return [(name, _shape_of(one)) for name, one in value.items()]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return _shape_of(value[0])
    return type(value).__name__


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d_eos_call_stream", "d_eos_return_stream"])
def test_a_stop_id_is_said_and_named_as_recorded(name: str, tiny: RunningSimulator) -> None:
    recorded = CAPTURES[name]["events"][0]["choices"][0]
    text = "call now" if recorded["stop_reason"] else "Hello"
    request = CAPTURES[name]["request"]
    prompt = [*_with_tool(), *request["prompt"][:-2], *_user(text)]
    last = _replay(tiny, CAPTURES[name], prompt=prompt, max_tokens=200).choices[-1]
    assert last["token_ids"] == recorded["token_ids"]
    assert last["finish_reason"] == recorded["finish_reason"]
    assert last["stop_reason"] == recorded["stop_reason"]
    assert last["text"] == recorded["text"]


def _with_tool() -> list[int]:
    text = "# Tools\n\n## functions\n\nnamespace functions {\n\ntype now = () => any;\n\n"
    return _message("developer", f"{text}}} // namespace functions")


def _user(text: str) -> list[int]:
    return [*_message("user", text), 200006, 173781]


def _message(role: str, text: str) -> list[int]:
    encode = vocabulary().encode
    return [200006, *encode(role), 200008, *encode(text), 200007]


def test_a_whole_response_has_the_recorded_members_in_the_recorded_order(
    tiny: RunningSimulator,
) -> None:
    capture = CAPTURES["cmpl_token_ids"]
    response = _replay(tiny, capture)
    ours, theirs = response.json, capture["body"]
    assert list(ours) == list(theirs)
    assert list(ours["choices"][0]) == list(theirs["choices"][0])
    assert ours["choices"][0]["prompt_token_ids"] == capture["request"]["prompt"]
    assert len(ours["choices"][0]["token_ids"]) == ours["usage"]["completion_tokens"] == 8
    assert set(ours["usage"]) == set(theirs["usage"])


def test_models_are_listed_as_recorded(tiny: RunningSimulator) -> None:
    (row,) = _replay(tiny, CAPTURES["get_models"]).json["data"]
    (recorded,) = CAPTURES["get_models"]["body"]["data"]
    assert list(row) == list(recorded)
    assert (row["id"], row["max_model_len"]) == (recorded["id"], recorded["max_model_len"])


@pytest.mark.parametrize(
    ("name", "directive"),
    [
        ("k_engine9_stream", "error_after=5"),
        ("k_api9_stream", "die_after=5"),
        ("k_term_stream", "abort_after=5"),
        ("x_abort_cmpl_stream", "abort_after=0"),
    ],
)
def test_a_fault_ends_a_stream_as_recorded(
    name: str, directive: str, tiny: RunningSimulator
) -> None:
    capture = CAPTURES[name]
    response = _replay(tiny, capture, prompt=_user(f"[[sim {directive}]]"), max_tokens=100)
    recorded, events = capture["events"], response.events
    assert (events[-1] == "[DONE]") == (recorded[-1] == "[DONE]")
    assert response.terminated == (recorded[-1] == "[DONE]")
    if name == "k_engine9_stream":
        assert events[-2] == recorded[-2]
    assert response.finish_reasons == (["abort"] if "abort" in directive else [])
