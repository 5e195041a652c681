"""What operators are told of a backend, and how often."""

from __future__ import annotations

from gateway.upstreams.member import FaultReport
from tests.fakes.logs import captured_logs

URL = "http://gpu-1:8000"


def told(log: list[dict[str, object]]) -> list[tuple[object, ...]]:
    return [(one["level"], one["event"], one.get("reason")) for one in log]


def test_a_cause_is_told_once_with_the_url_and_its_end_too() -> None:
    with captured_logs() as log:
        troubles = FaultReport("gpu-1", URL)
        for _ in range(3):
            troubles.begin("check", "refused")
        worst = [troubles.worst]
        for _ in range(2):
            troubles.clear("check")
            worst.append(troubles.worst)
    assert worst == ["refused", None, None]
    assert told(log) == [
        ("warning", "backend is unreachable", "refused"),
        ("info", "backend is back", None),
    ]
    assert {(one["upstream"], one["url"]) for one in log} == {("gpu-1", URL)}


def test_another_cause_is_told_again() -> None:
    with captured_logs() as log:
        troubles = FaultReport("gpu-1", URL)
        for cause in ("refused", "no answer", "refused"):
            troubles.begin("check", cause)
    assert [one["reason"] for one in log] == ["refused", "no answer", "refused"]


def test_the_same_cause_from_two_sources_is_one_trouble() -> None:
    with captured_logs() as log:
        troubles = FaultReport("gpu-1", URL)
        troubles.begin("models", "refused")
        troubles.begin("check", "refused")
        troubles.clear("check")
        troubles.clear("models")
    assert told(log) == [
        ("warning", "backend does not say what it serves", "refused"),
        ("info", "backend is back", None),
    ]


def test_of_two_causes_the_weightier_one_is_told_and_then_what_is_left() -> None:
    with captured_logs() as log:
        troubles = FaultReport("gpu-1", URL)
        troubles.begin("engine", "too old")
        troubles.begin("request", "answered 503")
        troubles.clear("engine")
    assert [one["reason"] for one in log] == ["too old", "answered 503"]
