"""Snapshots of several replicas, added up; rates and times of one."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from gateway.console.fleet import STRIP_MAX, fleet_of
from gateway.replication.snapshots import Sample, _response, quantile, sample_between
from gateway.telemetry.metrics import FIRST_TOKEN_SECONDS, Metrics, Totals
from tests.fakes.staged_run import ScriptedTokens, Stage, run_spec


def sample(**values: float) -> dict[str, Any]:
    nothing = dict.fromkeys(Sample.__dataclass_fields__, 0.0)
    return asdict(Sample(**(nothing | values)))  # type: ignore[arg-type] # in flight is an integer


def backend(name: str, **values: Any) -> dict[str, Any]:
    known = {
        "healthy": True, "drained": False, "version": "0.32", "problem": None,
        "models": ["gpt-oss-20b"], "source": "configuration", "running": None, "waiting": None,
        "kv_used": None, "tokens_per_s": None,
    }  # fmt: skip
    return {"name": name, "in_flight": 2, "slots": 8, **known, **values}


def snapshot(replica: str, **values: Any) -> dict[str, Any]:
    nothing = {
        "age_s": 0.5, "in_flight": 0, "samples": [], "backends": [], "queued": {},
        "saturation": 0.0, "responses": [], "failures": [], "repairs": [], "tenants": [],
    }  # fmt: skip
    return {"replica": replica, **nothing, **values}


def response(id_: str, age_s: float) -> dict[str, Any]:
    return {"id": id_, "age_s": age_s, "tenant": "acme", "phase": "thinking", "tokens": 1}


def test_rates_are_added_up_and_of_times_the_worst_counts() -> None:
    one = [sample(requests_per_s=1, wait_s=9), sample(requests_per_s=2, wait_s=1)]
    two = [sample(requests_per_s=10, wait_s=21)]
    numbers = {
        number.label: number
        for number in fleet_of([snapshot("a", samples=one), snapshot("b", samples=two)]).numbers
    }
    assert numbers["Requests/s"].value == 12
    assert numbers["Queue wait, p95"].value == 21
    assert numbers["Queue wait, p95"].tone == "bad"
    assert numbers["Requests/s"].tone == ""
    # The newest of both are of one moment, so the second replica began a sample later.
    assert numbers["Requests/s"].line == "0.0,24.0 120.0,2.0"
    assert numbers["Queue wait, p95"].line == "0.0,15.7 120.0,2.0"


def test_without_a_snapshot_there_is_an_empty_fleet() -> None:
    fleet = fleet_of([])
    assert fleet.live == "live · 0 replicas"
    assert [number.value for number in fleet.numbers] == [0.0] * 6
    assert not fleet.strip
    assert not fleet.tiles
    assert not fleet.failures


def test_a_replica_that_is_late_is_counted() -> None:
    assert fleet_of([snapshot("a"), snapshot("b", age_s=4.0)]).live == "live · 2 replicas, 1 behind"


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        ([{}, {}], "up"),
        ([{}, {"healthy": False}], "partly up"),
        ([{"healthy": False}, {"healthy": None}], "down"),
        ([{"healthy": None}], "starting"),
        ([{}, {"drained": True}], "drained"),
    ],
)
def test_a_backend_is_what_all_replicas_see(seen: list[dict[str, Any]], state: str) -> None:
    snapshots = [
        snapshot(str(index), backends=[backend("gpu", **values)])
        for index, values in enumerate(seen)
    ]
    (tile,) = fleet_of(snapshots).tiles
    assert (tile.state, tile.in_flight, tile.slots) == (state, 2 * len(seen), 8 * len(seen))
    assert tile.used == 25


def test_what_a_backend_says_of_itself_is_not_added_up() -> None:
    said = {"running": 3, "waiting": 0, "kv_used": 0.25, "tokens_per_s": 80.0}
    later = {"running": 2, "waiting": 1, "kv_used": 0.256, "tokens_per_s": 90.0}
    (tile,) = fleet_of([
        snapshot("a", backends=[backend("gpu", **said)]),
        snapshot("b", backends=[backend("gpu", **later)]),
        snapshot("c", backends=[backend("gpu", models=[])]),
    ]).tiles  # fmt: skip
    assert (tile.running, tile.waiting, tile.kv, tile.tokens_per_s) == (3, 1, 26, 90.0)
    assert (tile.models, tile.source) == (["gpt-oss-20b"], "configuration")
    (silent,) = fleet_of([snapshot("a", backends=[backend("gpu")])]).tiles
    assert (silent.running, silent.waiting, silent.kv, silent.tokens_per_s) == (None,) * 4


def test_the_oldest_in_flight_come_first_and_not_too_many() -> None:
    many = [response(f"resp_{age}", age) for age in range(STRIP_MAX)]
    fleet = fleet_of([
        snapshot("a", responses=many, in_flight=150),
        snapshot("b", responses=[response("resp_old", 500)], in_flight=1),
    ])  # fmt: skip
    assert [one["id"] for one in fleet.strip[:2]] == ["resp_old", f"resp_{STRIP_MAX - 1}"]
    assert fleet.strip[0]["replica"] == "b"
    assert (len(fleet.strip), fleet.in_flight) == (STRIP_MAX, 151)


def test_failures_are_grouped_by_code_with_the_newest_of_each() -> None:
    def failed(code: str, at: int) -> dict[str, Any]:
        return {"at": at, "code": code, "response_id": f"resp_{at}", "tenant": "t", "model": "m"}

    fleet = fleet_of([
        snapshot("a", failures=[failed("server_error", 1), failed("overloaded", 2)]),
        snapshot("b", failures=[failed("server_error", 3)]),
    ])  # fmt: skip
    shown = [(one.code, one.count, one.newest["at"]) for one in fleet.failures]
    assert shown == [("server_error", 2, 3), ("overloaded", 1, 2)]


def test_the_tenant_of_which_the_most_wait_comes_first() -> None:
    fleet = fleet_of([
        snapshot("a", tenants=[{"tenant": "acme", "waiting": 1, "running": 9}]),
        snapshot("b", tenants=[{"tenant": "globex", "waiting": 3, "running": 0},
                               {"tenant": "acme", "waiting": 1, "running": 1}]),
    ])  # fmt: skip
    assert fleet.tenants == [("globex", 3, 0), ("acme", 2, 10)]


@pytest.mark.parametrize(
    ("counts", "value"),
    [((), 0.0), ((0, 0, 0), 0.0), ((95, 100, 100), 1.0), ((94, 95, 100), 2.0), ((0, 0, 9), 2.0)],
)
def test_a_quantile_is_a_bound_that_enough_stay_below(
    counts: tuple[int, ...], value: float
) -> None:
    assert quantile(counts, (1.0, 2.0)) == value


def test_a_sample_is_what_came_between() -> None:
    metrics = Metrics()
    before = metrics.totals()
    assert before == Totals(0, 0, 0, (), before.admission_wait)
    metrics.requests_in_flight += 3
    metrics.request_finished(status=200, model="m", seconds=1.0)
    metrics.request_finished(status=503, seconds=1.0)
    metrics.request_finished(status=404, seconds=1.0)
    for name in ("m", "n"):
        metrics.first_token(model=name, seconds=0.3)
        metrics.response_finished(
            status="completed", model=name, input_tokens=5, cached=0, output=20, reasoning=7
        )
    metrics.admission_waited("default", 3.0)
    made = sample_between(before, metrics.totals(), 10.0, in_flight=4)
    assert made == Sample(0.3, 6.0, 4.0, 4, 0.5, 5.0)
    assert 0.5 in FIRST_TOKEN_SECONDS
    again = sample_between(metrics.totals(), metrics.totals(), 5.0, in_flight=0)
    assert again == Sample(0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("background", [False, True])
async def test_a_durable_response_is_not_always_in_the_background(*, background: bool) -> None:
    spec = replace(run_spec(background=background), durable=True)
    assert _response(Stage(ScriptedTokens([]), spec=spec).run)["background"] is background
