"""How loud it is told that a run failed."""

from __future__ import annotations

import pytest

from gateway import ids
from gateway.engine.observer import MISHAPS_MAX, Observer
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


def test_the_last_repairs_are_kept_with_their_backend() -> None:
    observer, spec = Observer(Metrics()), run_spec()
    for _ in range(MISHAPS_MAX + 1):
        observer.repaired(spec, "header_not_understood", 7, "gpu-1")
    assert len(observer.repairs) == MISHAPS_MAX
    last = observer.repairs[-1]
    assert (last.code, last.backend) == ("header_not_understood", "gpu-1")
    assert last.response_id == ids.response_id(spec.head.uuid)
    assert last.stored == spec.store
