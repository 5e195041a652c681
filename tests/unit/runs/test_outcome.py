"""How a run's end is told: to the client what to do, never what broke."""

from __future__ import annotations

import pytest

from gateway.errors import (
    ContextOverflow,
    NoUpstreamAvailable,
    UpstreamFailed,
    UpstreamLost,
    UpstreamRejected,
    UpstreamUnavailable,
)
from gateway.runs.outcome import broken


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (UpstreamUnavailable("x", upstream="u"), "server_error", "could take the request"),
        (UpstreamLost("x", upstream="u"), "server_error", "could take the request"),
        (NoUpstreamAvailable("m", "x"), "server_error", "could take the request"),
        (UpstreamRejected("x", upstream="u"), "server_error", "refused the request"),
        (ContextOverflow("x", upstream="u"), "context_length_exceeded", "context window"),
        (UpstreamFailed("x", upstream="u"), "server_error", "broke off"),
        (RuntimeError("x"), "server_error", "had an error"),
    ],
)
def test_each_failure_has_its_words(error: Exception, code: str, words: str) -> None:
    finished = broken(error, 7)
    assert (finished.status, finished.at, finished.code) == ("failed", 7, code)
    assert words in (finished.message or "")
