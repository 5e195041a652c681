from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Any

import pytest

from gateway.errors import ConfigError
from tests.fakes.raw_http import (
    ask,
    complete,
    completion_body,
    completion_bytes,
    plain_prompt,
    read_response,
    request_bytes,
    without_stream,
)
from tests.fakes.simulated_conversation import continuation
from tests.fakes.simulator import RunningSimulator, simulator, simulator_process
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.engine_errors import ENGINE_BUSY
from tests.fakes.wayward_engine.options import WaywardOptions

SLOW = "Hello [[sim tokens=500 tokens_per_s=20]]"


def _open(stack: ExitStack, port: int, body: dict[str, Any]) -> socket.socket:
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
    connection.sendall(completion_bytes(body))
    return connection


def _metric(backend: RunningSimulator, name: str) -> float:
    text = backend.call("GET", "/metrics")[1].decode()
    (value,) = [line.split()[-1] for line in text.splitlines() if line.startswith(name)]
    return float(value)


@pytest.mark.parametrize(
    "directive",
    ["", "ids_per_event=4", "tokens_per_s=5000", "tokens_per_s=5000 ids_per_event=7", "tokens=500"],
)
def test_a_stream_brings_the_script_however_it_is_paced(
    directive: str, backend: RunningSimulator
) -> None:
    text = f"Hello [[sim {directive}]]" if directive else "Hello"
    response = complete(backend.port, completion_body(text))
    assert response.ids == continuation(plain_prompt(text))
    assert (response.finish_reasons, response.terminated) == (["stop"], True)


def test_events_hold_as_many_ids_as_asked_for(backend: RunningSimulator) -> None:
    response = complete(backend.port, completion_body("[[sim ids_per_event=4 tokens=30]]"))
    sizes = [len(choice["token_ids"]) for choice in response.choices]
    assert set(sizes[:-1]) == {4}


def test_streamed_or_not_the_same_is_said(backend: RunningSimulator) -> None:
    streamed = complete(backend.port, completion_body("Hello"))
    whole = complete(backend.port, without_stream("Hello")).json["choices"][0]
    assert whole["token_ids"] == streamed.ids
    assert whole["text"] == "".join(choice["text"] for choice in streamed.choices)


def test_the_prompt_comes_back_once_and_only_when_asked_for(backend: RunningSimulator) -> None:
    first, *others = complete(backend.port, completion_body("Hello")).choices
    assert first["prompt_token_ids"] == plain_prompt("Hello")
    assert all(choice["prompt_token_ids"] is None for choice in others)
    bare = complete(backend.port, completion_body("Hello", return_token_ids=False)).choices
    assert all(choice["token_ids"] is choice["prompt_token_ids"] is None for choice in bare)


def test_the_request_id_of_the_header_goes_before_that_of_the_body(
    backend: RunningSimulator,
) -> None:
    body = completion_body("Hello", request_id="from-body")
    assert complete(backend.port, body).events[0]["id"] == "cmpl-from-body"
    response = complete(backend.port, body, **{"x-request-id": "from-header"})
    assert response.events[0]["id"] == "cmpl-from-header"


def test_the_next_turn_finds_the_last_one_cached(backend: RunningSimulator) -> None:
    body = completion_body("Hello there, this is a prompt of some length", cache_salt="a")
    first = complete(backend.port, body)
    assert first.events[-2]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    longer = [*body["prompt"], *first.ids[:-1], 200007, *plain_prompt("More")]
    again = complete(backend.port, {**body, "prompt": longer})
    cached = again.events[-2]["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == (len(body["prompt"]) + len(first.ids) - 1) // 16 * 16
    other = complete(backend.port, {**body, "prompt": longer, "cache_salt": "b"})
    assert other.events[-2]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_a_client_that_hangs_up_ends_its_stream(backend: RunningSimulator) -> None:
    with ExitStack() as stack:
        connection = _open(stack, backend.port, completion_body(SLOW))
        assert connection.recv(1)
        backend.until("running")
    (row,) = backend.until("disconnected")
    assert row["aborted"]
    assert row["sent_tokens"] < 500
    assert backend.aborts() == 1
    assert _metric(backend, "vllm:num_requests_running{") == 0


@pytest.mark.parametrize(
    "body",
    [
        completion_body("[[sim slow_accept_s=60]]"),
        completion_body("[[sim first_token_delay_s=60]]"),
        completion_body("[[sim stall_after=1]]"),
        without_stream(SLOW),
    ],
)
def test_a_client_may_hang_up_at_any_time(body: dict[str, Any], backend: RunningSimulator) -> None:
    with ExitStack() as stack:
        _open(stack, backend.port, body)
        assert not backend.until("waiting", "running", "stalled")[0]["aborted"]
    assert backend.until("disconnected")[0]["aborted"]


def test_requests_wait_for_a_place_and_one_too_many_is_refused() -> None:
    options = WaywardOptions(running_max=1, queued_max=1)
    with simulator(options) as backend, ExitStack() as stack:
        running = _open(stack, backend.port, completion_body(SLOW))
        backend.until("running")
        waiting = _open(stack, backend.port, completion_body("Hello"))
        backend.until("waiting")
        assert _metric(backend, "vllm:num_requests_running{") == 1
        assert _metric(backend, "vllm:num_requests_waiting{") == 1
        assert backend.call("GET", "/load")[1] == b'{"server_load":2}'
        refused = complete(backend.port, completion_body("Hello"))
        assert (refused.status, refused.json["error"]["message"]) == (503, ENGINE_BUSY)
        running.close()
        assert read_response(waiting).finish_reasons == ["stop"]
        assert _metric(backend, "vllm:admission_rejections_total{") == 1


def test_one_too_many_may_also_be_told_in_a_stream() -> None:
    options = WaywardOptions(running_max=1, queued_max=0, overload_as_event=True)
    with simulator(options) as backend, ExitStack() as stack:
        _open(stack, backend.port, completion_body(SLOW))
        backend.until("running")
        refused = complete(backend.port, completion_body("Hello"))
        assert (refused.status, refused.events[0]["error"]["code"]) == (200, 503)
        assert complete(backend.port, without_stream("Hello")).status == 503


def test_metrics_are_true(backend: RunningSimulator) -> None:
    names = ["vllm:prompt_tokens_total{", "vllm:generation_tokens_total{",
             'vllm:request_success_total{engine="0",finished_reason="stop"',
             "vllm:time_to_first_token_seconds_count{"]  # fmt: skip
    before = [_metric(backend, name) for name in names]
    response = complete(backend.port, completion_body("Hello"))
    grown = [_metric(backend, name) - old for name, old in zip(names, before, strict=True)]
    assert grown == [len(plain_prompt("Hello")), len(response.ids), 1, 1]
    assert 0 < _metric(backend, "vllm:kv_cache_usage_perc{") < 1


def test_it_tells_what_it_was_asked(backend: RunningSimulator) -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "stop_token_ids": [200002, 200012]}
    response = complete(backend.port, completion_body("Hello", cache_salt="s", **fields))
    (row,) = backend.requests(with_ids=True)
    assert row["prompt_ids"] == plain_prompt("Hello")
    assert row["sent_ids"] == response.ids
    assert row["sampling"] == {"temperature": 0.5, "top_p": 0.9, "seed": 7}
    assert (row["cache_salt"], row["stop_token_ids"]) == ("s", [200002, 200012])
    assert (row["outcome"], row["aborted"]) == ("stop", False)
    assert row["sent_tokens"] == len(row["sent_ids"])
    assert "prompt_ids" not in backend.requests()[0]


def test_it_remembers_a_bounded_number_of_requests() -> None:
    with simulator(WaywardOptions(observed_requests_max=2)) as backend:
        for _ in range(3):
            complete(backend.port, completion_body("Hello"))
        assert [row["number"] for row in backend.requests()] == [2, 3]


def test_it_remembers_a_bounded_number_of_ids() -> None:
    with simulator(WaywardOptions(observed_ids_max=1000)) as backend:
        for text in ("[[sim tokens=600]]", "Hello", "[[sim tokens=600]]", "Hello"):
            complete(backend.port, completion_body(text))
        assert [row["number"] for row in backend.requests()] == [2, 3, 4]


def test_a_body_that_is_too_large_is_refused() -> None:
    with simulator(WaywardOptions(body_bytes_max=1000)) as backend:
        assert complete(backend.port, completion_body("Hello " * 1000)).status == 413


def test_its_front_page_says_that_it_is_scripted(backend: RunningSimulator) -> None:
    page = ask(backend.port, request_bytes("GET", "/"))
    assert b"there is no model in it" in page.body


def test_a_fault_plan_that_means_nothing_is_found_at_the_start() -> None:
    with pytest.raises(ConfigError, match="dye_after"):
        create_simulator(WaywardOptions(faults="dye_after=3"))


@pytest.mark.slow
def test_a_terminated_server_ends_its_streams_with_abort() -> None:
    with simulator_process() as backend, ExitStack() as stack:
        connection = _open(stack, backend.port, completion_body(SLOW))
        backend.until("running")
        backend.terminate()
        response = read_response(connection)
    assert response.finish_reasons == ["abort"]
    assert (response.events[-1], response.terminated) == ("[DONE]", True)


@pytest.mark.slow
def test_a_killed_server_looks_like_die_after() -> None:
    with simulator_process() as backend, ExitStack() as stack:
        connection = _open(stack, backend.port, completion_body(SLOW))
        backend.until("running")
        head = connection.recv(1, socket.MSG_PEEK)
        backend.kill()
        response = read_response(connection)
    assert head == b"H"
    assert (response.status, response.terminated, response.finish_reasons) == (200, False, [])
