from __future__ import annotations

import pytest

from gateway.models.harmony.tokenizer import RETURN
from tests.fakes.raw_http import complete, completion_body, plain_prompt, without_stream
from tests.fakes.simulated_conversation import continuation
from tests.fakes.simulator import RunningSimulator, simulator
from tests.fakes.wayward_engine.directives import Attempts
from tests.fakes.wayward_engine.engine_errors import ENGINE_BUSY
from tests.fakes.wayward_engine.options import WaywardOptions


def _body(directive: str) -> dict[str, object]:
    return completion_body(f"Hello [[sim {directive}]]")


@pytest.mark.parametrize("count", [0, 1, 12])
def test_a_server_that_dies_ends_its_stream_without_a_last_chunk(
    count: int, backend: RunningSimulator
) -> None:
    response = complete(backend.port, _body(f"die_after={count}"))
    assert (response.status, response.terminated) == (200, False)
    assert len(response.ids) == count
    assert response.finish_reasons == []
    assert "[DONE]" not in response.events
    assert backend.until("die")[0]["sent_tokens"] == count


def test_a_server_that_dies_answers_nothing_to_who_does_not_stream(
    backend: RunningSimulator,
) -> None:
    response = complete(backend.port, without_stream("[[sim die_after=3]]"))
    assert (response.status, response.body) == (0, b"")


def test_a_break_after_the_last_id_comes_before_the_finish_reason(
    backend: RunningSimulator,
) -> None:
    text = "Hello [[sim say=x die_after=9999 think=none]]"
    whole = complete(backend.port, completion_body("[[sim die_after=9999 think=none say=x]]"))
    assert whole.finish_reasons == ["stop"]
    directive = f"[[sim die_after={len(whole.ids)} think=none say=x]]"
    response = complete(backend.port, completion_body(directive))
    assert response.ids == whole.ids
    assert response.ids[-1] == RETURN
    assert (response.finish_reasons, response.terminated) == ([], False)
    assert complete(backend.port, completion_body(text)).terminated


def test_a_stalled_stream_says_no_more_and_ends_without_an_end() -> None:
    with simulator(WaywardOptions(stall_max_s=0.05)) as backend:
        response = complete(backend.port, _body("stall_after=5"))
        assert (len(response.ids), response.terminated) == (5, False)
        assert backend.until("stall")


@pytest.mark.parametrize("count", [0, 1, 7])
def test_an_aborted_stream_is_well_formed_and_says_so(
    count: int, backend: RunningSimulator
) -> None:
    response = complete(backend.port, _body(f"abort_after={count}"))
    assert response.terminated
    assert len(response.ids) == count
    assert response.finish_reasons == ["abort"]
    assert response.events[-2]["usage"]["completion_tokens"] == count
    assert response.events[-1] == "[DONE]"


def test_an_aborted_response_is_a_200(backend: RunningSimulator) -> None:
    response = complete(backend.port, without_stream("[[sim abort_after=7]]"))
    assert response.status == 200
    assert response.json["choices"][0]["finish_reason"] == "abort"
    assert len(response.json["choices"][0]["token_ids"]) == 7


def test_a_stream_can_end_properly_without_a_reason(backend: RunningSimulator) -> None:
    response = complete(backend.port, _body("end_after=4"))
    assert (response.terminated, len(response.ids)) == (True, 4)
    assert (response.finish_reasons, response.events[-1] == "[DONE]") == ([], False)


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_a_status_is_answered_instead_of_a_stream(status: int, backend: RunningSimulator) -> None:
    response = complete(backend.port, _body(f"status={status}"))
    assert response.status == status
    assert response.json["error"]["code"] == status
    assert backend.requests()[-1]["outcome"] == "rejected"


def test_an_error_can_be_the_first_event_of_a_200(backend: RunningSimulator) -> None:
    response = complete(backend.port, _body("first_event_error=503"))
    assert (response.status, response.terminated) == (200, True)
    error, done = response.events
    assert error["error"]["code"] == 503
    assert error["error"]["message"] == ENGINE_BUSY
    assert done == "[DONE]"


def test_the_engines_death_is_an_event_in_a_stream_and_a_500_without_one(
    backend: RunningSimulator,
) -> None:
    response = complete(backend.port, _body("error_after=3"))
    assert (len(response.ids), response.events[-2]["error"]["code"]) == (3, 500)
    assert complete(backend.port, without_stream("[[sim error_after=3]]")).status == 500


def test_a_slow_answer_comes(backend: RunningSimulator) -> None:
    response = complete(backend.port, _body("slow_accept_s=0.01 first_token_delay_s=0.01"))
    assert response.finish_reasons == ["stop"]


@pytest.mark.slow
def test_a_cut_turn_is_finished_by_another_instance() -> None:
    attempts = Attempts(prompts_max=100)
    one = simulator(WaywardOptions(name="one"), attempts)
    two = simulator(WaywardOptions(name="two"), attempts)
    body = completion_body("Hello [[sim die_after=12 times=1]]")
    with one as first, two as second:
        broken = complete(first.port, body)
        rest = complete(second.port, {**body, "prompt": [*plain_prompt_of(body), *broken.ids]})
        assert second.requests()[0]["prefilled_ids"] == 12
    assert [*broken.ids, *rest.ids] == continuation(plain_prompt_of(body))
    assert rest.finish_reasons == ["stop"]


def plain_prompt_of(body: dict[str, object]) -> list[int]:
    prompt = body["prompt"]
    assert isinstance(prompt, list)
    return prompt


def test_without_times_every_attempt_breaks(backend: RunningSimulator) -> None:
    prompt = plain_prompt("Hello [[sim die_after=2]]")
    for attempt in range(3):
        response = complete(backend.port, completion_body("", prompt=prompt))
        prompt += response.ids
        assert (len(response.ids), response.terminated) == (2, False), attempt


def test_a_fault_for_another_instance_does_nothing_here(backend: RunningSimulator) -> None:
    assert complete(backend.port, _body("status=503 only=two")).status == 200
    assert complete(backend.port, _body("status=503 only=one")).status == 503


def test_the_fault_plan_of_an_instance_can_be_changed_while_it_runs(
    backend: RunningSimulator,
) -> None:
    backend.set_faults("status=503 health=503")
    assert complete(backend.port, completion_body("Hello")).status == 503
    assert backend.call("GET", "/health")[0] == 503
    backend.set_faults("")
    assert complete(backend.port, completion_body("Hello")).status == 200
    assert backend.call("GET", "/health")[0] == 200
    assert backend.call("PUT", "/simulator/faults", b"status=9")[0] == 400


def test_an_unknown_directive_is_a_400(backend: RunningSimulator) -> None:
    response = complete(backend.port, _body("dye_after=3"))
    assert response.status == 400
    assert "dye_after=3" in response.json["error"]["message"]
