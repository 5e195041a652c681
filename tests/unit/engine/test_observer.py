"""How loud it is told that a run failed."""

from __future__ import annotations

import pytest

from gateway.engine.observer import Observer
from gateway.errors import NoUpstreamAvailable, Overloaded
from gateway.telemetry import logs
from gateway.telemetry.metrics import Metrics
from tests.fakes.staged_run import run_spec


@pytest.mark.parametrize(
    ("error", "level"), [(Overloaded, "warning"), (NoUpstreamAvailable, "error")]
)
def test_a_request_that_an_overload_refuses_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, error: type[NoUpstreamAvailable], level: str
) -> None:
    told: list[tuple[str, object]] = []
    # Whatever tests before have made of the logs of this process.
    monkeypatch.setattr(logs.outlet, "take", lambda least, event: told.append((least, event)))
    monkeypatch.setattr(logs.outlet, "least", 0)
    Observer(Metrics()).failed(run_spec(), error("m", "full"))
    ((told_as, event),) = told
    assert told_as == level
    assert "a response failed" in str(event)
