"""How loud it is told that a run failed."""

from __future__ import annotations

import json

import pytest

from gateway.engine.observer import Observer
from gateway.errors import NoUpstreamAvailable, Overloaded
from gateway.telemetry.metrics import Metrics
from tests.fakes.staged_run import run_spec


@pytest.mark.parametrize(
    ("error", "level"), [(Overloaded, "warning"), (NoUpstreamAvailable, "error")]
)
def test_a_request_that_an_overload_refuses_is_no_fault(
    capsys: pytest.CaptureFixture[str], error: type[NoUpstreamAvailable], level: str
) -> None:
    Observer(Metrics()).failed(run_spec(), error("m", "full"))
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["level"]) == ("a response failed", level)
