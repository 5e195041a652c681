"""How a run's end is told: to the client what to do, never what broke."""

from __future__ import annotations

import pytest

from gateway.engine.outcome import VIOLATIONS, broken, ended, violated
from gateway.engine.output_guard import BACKEND_LOST
from gateway.errors import (
    ContextOverflow,
    InvalidRequest,
    NoUpstreamAvailable,
    UpstreamFailed,
    UpstreamLost,
    UpstreamRejected,
    UpstreamUnavailable,
)
from gateway.generation import FinishReason
from tests.fakes.cases import each


@each(
    ("error", "code", "words"),
    [
        (UpstreamUnavailable("x", upstream="u"), "server_error", "could take the request"),
        (UpstreamLost("x", upstream="u"), "server_error", "could take the request"),
        (NoUpstreamAvailable("m", "x"), "server_error", "could take the request"),
        (UpstreamRejected("x", upstream="u"), "server_error", "refused the request"),
        (ContextOverflow("x", upstream="u"), "context_length_exceeded", "context window"),
        (UpstreamFailed("x", upstream="u"), "server_error", "broke off"),
        (RuntimeError("x"), "server_error", "had an error"),
        (
            InvalidRequest("Ask for less.", code="unsupported_parameter"),
            "unsupported_parameter",
            "less",
        ),
    ],
)
def test_each_failure_has_its_words(error: Exception, code: str, words: str) -> None:
    finished = broken(error, 7)
    assert (finished.status, finished.at, finished.code) == ("failed", 7, code)
    assert words in (finished.message or "")


@pytest.mark.parametrize("code", VIOLATIONS.keys() - {BACKEND_LOST})
def test_a_model_that_does_not_obey_fails_its_response_with_words_for_each_demand(
    code: str,
) -> None:
    finished = violated(code, 7)
    assert (finished.status, finished.code) == ("failed", code)
    assert "Try again" in (finished.message or "")


def test_a_lost_backend_is_a_fault_of_the_server_and_not_of_the_schema() -> None:
    finished = violated(BACKEND_LOST, 7)
    assert (finished.status, finished.code) == ("failed", "server_error")
    assert "server was lost" in (finished.message or "")
    assert "schema" not in (finished.message or "")


def test_a_turn_that_was_cut_and_is_not_followed_by_another_had_no_room_for_it() -> None:
    finished = ended(FinishReason.CUT, 7, visible=True)
    assert (finished.status, finished.reason) == ("incomplete", "max_output_tokens")
