"""Snapshots of all replicas, added up."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Literal

from gateway.console.rendering import compact, count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gateway.protocol.admin_bodies import Json

    Tone = Literal["", "warn", "bad"]

BEHIND_S: Final = 3.0
"""Older snapshots are of replicas that are behind."""
STRIP_MAX: Final = 100
"""The oldest responses in flight."""
MISHAPS_SHOWN: Final = 20
SPARK_WIDTH: Final = 120
SPARK_HEIGHT: Final = 28
QUEUE_WAIT_WARN_S: Final = 5.0
QUEUE_WAIT_BAD_S: Final = 20.0
FIRST_TOKEN_WARN_S: Final = 2.5
FIRST_TOKEN_BAD_S: Final = 10.0
ERRORS_WARN_PER_MIN: Final = 1.0
ERRORS_BAD_PER_MIN: Final = 10.0
ENOUGH_SAMPLES: Final = 2
"""Samples that a line takes."""


@dataclass(frozen=True, slots=True)
class Number:
    """Figure; `line` are points of an SVG polyline over its last five minutes."""

    label: str
    value: float
    unit: str
    tone: Tone
    line: str


@dataclass(frozen=True, slots=True)
class Tile:
    """Backend over all replicas; `used` percent of its slots are taken.

    `running`, `waiting`, `kv` (percent of its cache) and `tokens_per_s` are its own figures, if it
    has any.
    """

    name: str
    models: Sequence[str]
    source: str
    state: str
    version: str
    problem: str
    in_flight: int
    slots: int | None
    used: int
    running: int | None
    waiting: int | None
    kv: int | None
    tokens_per_s: float | None

    @property
    def says(self) -> list[str]:
        figures = (
            (self.running, count, "{} running"),
            (self.waiting, count, "{} waiting"),
            (self.kv, count, "KV {} %"),
            (self.tokens_per_s, compact, "{} tokens/s"),
        )
        return [words.format(write(one)) for one, write, words in figures if one is not None]


@dataclass(frozen=True, slots=True)
class MishapGroup:
    """Failures or repairs of one code, and the newest."""

    code: str
    count: int
    newest: Json


@dataclass(frozen=True, slots=True)
class Fleet:
    """All replicas now; `behind` of them have not written for some seconds.

    `tenants`: name, requests that wait for a backend, and others.
    """

    replicas: Sequence[Json]
    behind: int
    numbers: Sequence[Number]
    tiles: Sequence[Tile]
    strip: Sequence[Json]
    in_flight: int
    failures: Sequence[MishapGroup]
    repairs: Sequence[MishapGroup]
    tenants: Sequence[tuple[str, int, int]]
    queued: Sequence[tuple[str, int]]
    saturation: float

    @property
    def live(self) -> str:
        size = len(self.replicas)
        words = f"live · {size} replica{'s' if size != 1 else ''}"
        return f"{words}, {self.behind} behind" if self.behind else words


def fleet_of(snapshots: Sequence[Json]) -> Fleet:
    responses = [
        {**one, "replica": snapshot["replica"]}
        for snapshot in snapshots
        for one in snapshot["responses"]
    ]
    responses.sort(key=lambda one: -one["age_s"])
    queued: dict[str, int] = {}
    for snapshot in snapshots:
        for work, waiting in snapshot["queued"].items():
            queued[work] = queued.get(work, 0) + waiting
    return Fleet(
        replicas=snapshots,
        behind=sum(one["age_s"] > BEHIND_S for one in snapshots),
        numbers=_numbers([one["samples"] for one in snapshots]),
        tiles=_tiles(snapshots),
        strip=responses[:STRIP_MAX],
        in_flight=sum(one["in_flight"] for one in snapshots),
        failures=_alike(one for snapshot in snapshots for one in snapshot["failures"]),
        repairs=_alike(one for snapshot in snapshots for one in snapshot["repairs"]),
        tenants=_tenants(snapshots),
        queued=list(queued.items()),
        saturation=max((one["saturation"] for one in snapshots), default=0.0),
    )


def _numbers(histories: Sequence[Sequence[Json]]) -> list[Number]:
    # The newest samples of all replicas are of the same moment, give or take some seconds.
    def over_time(name: str, together: Callable[[Iterable[float]], float]) -> list[float]:
        newest_first = zip_longest(*(reversed(history) for history in histories))
        return [
            together([sample[name] for sample in samples if sample is not None])
            for samples in newest_first
        ][::-1]

    def number(
        label: str,
        name: str,
        together: Callable[[Iterable[float]], float],
        unit: str = "",
        bounds: tuple[float, float] = (float("inf"), float("inf")),
    ) -> Number:
        points = over_time(name, together)
        value = points[-1] if points else 0.0
        return Number(label, value, unit, _tone(value, *bounds), _line(points))

    waits = (QUEUE_WAIT_WARN_S, QUEUE_WAIT_BAD_S)
    tokens = (FIRST_TOKEN_WARN_S, FIRST_TOKEN_BAD_S)
    return [
        number("Requests/s", "requests_per_s", sum),
        number("Tokens/s", "tokens_per_s", sum),
        number("In flight", "in_flight", sum),
        number("Queue wait, p95", "wait_s", max, "s", waits),
        number("First token, p95", "first_token_s", max, "s", tokens),
        number(
            "Errors/min", "errors_per_min", sum, bounds=(ERRORS_WARN_PER_MIN, ERRORS_BAD_PER_MIN)
        ),
    ]


def _tone(value: float, warn: float, bad: float) -> Tone:
    if value >= bad:
        return "bad"
    return "warn" if value >= warn else ""


def _line(points: Sequence[float]) -> str:
    if len(points) < ENOUGH_SAMPLES:
        return ""
    most = max(points) or 1.0
    step = SPARK_WIDTH / (len(points) - 1)
    return " ".join(
        f"{index * step:.1f},{SPARK_HEIGHT - 2 - value / most * (SPARK_HEIGHT - 4):.1f}"
        for index, value in enumerate(points)
    )


def _tiles(snapshots: Sequence[Json]) -> list[Tile]:
    by_name: dict[str, list[Json]] = {}
    for snapshot in snapshots:
        for backend in snapshot["backends"]:
            by_name.setdefault(backend["name"], []).append(backend)
    return [_tile(name, seen) for name, seen in sorted(by_name.items())]


def _tile(name: str, seen: Sequence[Json]) -> Tile:
    bounds = [one["slots"] for one in seen if one["slots"] is not None]
    in_flight, slots = sum(one["in_flight"] for one in seen), sum(bounds) if bounds else None
    kv_used = _most(seen, "kv_used")
    return Tile(
        name=name,
        models=_first(seen, "models") or (),
        source=_first(seen, "source"),
        state=_state(seen),
        version=_first(seen, "version"),
        problem=_first(seen, "problem"),
        in_flight=in_flight,
        slots=slots,
        used=0 if not slots else min(100, in_flight * 100 // slots),
        running=_most(seen, "running"),
        waiting=_most(seen, "waiting"),
        kv=None if kv_used is None else round(kv_used * 100),
        tokens_per_s=_most(seen, "tokens_per_s"),
    )


def _most(seen: Sequence[Json], name: str) -> Any:
    # Each replica has it from the backend itself, up to some seconds ago.
    return max((one[name] for one in seen if one.get(name) is not None), default=None)


def _state(seen: Sequence[Json]) -> str:
    if any(one["drained"] for one in seen):
        return "drained"
    healthy = {one["healthy"] for one in seen}
    if healthy == {True}:
        return "up"
    if True in healthy:
        return "partly up"
    return "down" if False in healthy else "starting"


def _first(seen: Sequence[Json], name: str) -> Any:
    return next((one[name] for one in seen if one.get(name)), "")


def _tenants(snapshots: Sequence[Json]) -> list[tuple[str, int, int]]:
    sums: dict[str, tuple[int, int]] = {}
    for snapshot in snapshots:
        for one in snapshot["tenants"]:
            waiting, running = sums.get(one["tenant"], (0, 0))
            sums[one["tenant"]] = waiting + one["waiting"], running + one["running"]
    ordered = sorted(sums.items(), key=lambda one: (-one[1][0], -one[1][1], one[0]))
    return [(name, waiting, running) for name, (waiting, running) in ordered]


def _alike(mishaps: Iterable[Json]) -> list[MishapGroup]:
    newest = sorted(mishaps, key=lambda one: -one["at"])[:MISHAPS_SHOWN]
    by_code: dict[str, list[Json]] = {}
    for one in newest:
        by_code.setdefault(one["code"], []).append(one)
    return [MishapGroup(code, len(group), group[0]) for code, group in by_code.items()]
