"""Limits and budgets of one key: those of its tenant, of its project and its own.

They are looked up with the key and kept with its principal, so no request reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from gateway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from uuid import UUID


Scope = Literal["tenant", "organization", "project", "key"]
"""`tenant` is what the operator grants a tenant, `organization` what the tenant's own
administrators set for all of it."""
Mode = Literal["enforce", "observe"]
What = Literal[
    "requests", "tokens", "input_tokens", "output_tokens", "responses", "websockets",
    "stored_bytes", "background_running", "background_queued",
]  # fmt: skip
Unit = Literal["usd", "tokens"]
Interval = Literal["day", "month", "none"]

Key = tuple["UUID", str]
"""A tenant, and the name of something that is counted for it."""

ALL_MODELS: Final = "*"
MINUTE_S: Final = 60
DAY_S: Final = 86_400
WINDOWS_S: Final = (MINUTE_S, DAY_S)
VALUE_MAX: Final = 10**15
RULES_MAX: Final = 256

OF_BACKGROUND: Final[frozenset[What]] = frozenset({"background_running", "background_queued"})
"""Limits counted in the rows of responses, for all processes at once."""
OF_ALL_MODELS: Final[frozenset[What]] = frozenset({"websockets", "stored_bytes", *OF_BACKGROUND})
AT_ONCE: Final[frozenset[What]] = frozenset({"responses", *OF_ALL_MODELS})
"""Limits counted at one moment, without a window."""
OF_TOKENS: Final[frozenset[What]] = frozenset({"tokens", "input_tokens", "output_tokens"})


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit of one quantity, for one model or all together. `value` may be used in `window_s`
    seconds, or at once; 0: counted at one moment.
    """

    scope: Scope
    scope_id: UUID
    what: What
    value: int
    window_s: int = MINUTE_S
    model: str = ALL_MODELS
    mode: Mode = "enforce"
    name: str = field(init=False, repr=False, compare=False)
    """Unique within its tenant, the same at all replicas."""

    def __post_init__(self) -> None:
        # Computed once: the name is read more often than limits are made.
        name = f"{self.scope}/{self.scope_id}/{self.model}/{self.what}/{self.window_s}"
        object.__setattr__(self, "name", name)

    @property
    def rate(self) -> float:
        # Per second. A limit of 0 has the rate of 1, which never matters: it admits nothing.
        return max(self.value, 1) / self.window_s

    def check(self) -> None:
        if not 0 <= self.value <= VALUE_MAX:
            raise InvalidRequest(f"A limit is a number from 0 to {VALUE_MAX}.", param="value")
        if self.what in AT_ONCE:
            if self.window_s:
                raise InvalidRequest(f"{self.what} are counted at one moment.", param="window")
        elif self.window_s not in WINDOWS_S:
            raise InvalidRequest("The window of a limit is a minute or a day.", param="window")
        if self.model != ALL_MODELS and self.what in OF_ALL_MODELS:
            raise InvalidRequest(f"{self.what} are of all models together.", param="model")
        if self.scope == "key" and self.what == "stored_bytes":
            raise InvalidRequest(
                "stored_bytes are of an organization or a project: what is stored belongs to no "
                "key.",
                param=self.what,
            )


@dataclass(frozen=True, slots=True)
class Budget:
    """Cap on the spending in an interval (UTC), in nano-dollars or tokens."""

    id: UUID
    scope: Scope
    scope_id: UUID
    unit: Unit
    interval: Interval
    cap: int
    mode: Mode = "enforce"
    meter: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Computed once: the name is read more often than budgets are made.
        meter = meter_of(self.scope, self.scope_id, self.unit, self.interval)
        object.__setattr__(self, "meter", meter)


def meter_of(scope: Scope, scope_id: UUID, unit: Unit, interval: Interval) -> str:
    return f"{scope}/{scope_id}/{unit}/{interval}"


class Meter(NamedTuple):
    name: str
    unit: Unit
    interval: Interval


@dataclass(frozen=True, slots=True)
class Rules:
    requests: tuple[Limit, ...]
    tokens: tuple[Limit, ...]
    places: tuple[Limit, ...]
    budgets: tuple[Budget, ...]
    meters: tuple[Meter, ...]
    stored: tuple[Limit, ...] = ()


@dataclass(frozen=True, slots=True)
class Terms:
    """All limits and budgets of a key, and `meters` that alerts need besides. `organization` and
    `project` are names for messages.
    """

    limits: tuple[Limit, ...] = ()
    budgets: tuple[Budget, ...] = ()
    meters: tuple[Meter, ...] = ()
    organization: str = ""
    project: str = ""
    stored: tuple[Limit, ...] = field(init=False, compare=False, repr=False)
    background: tuple[Limit, ...] = field(init=False, compare=False, repr=False)
    """Limits that bind where responses are accepted and claimed."""
    writes: Rules | None = field(init=False, compare=False, repr=False)
    """Rules of requests that store something and have no model."""
    _rules: dict[str, Rules | None] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Computed once: these are read more often than terms are made.
        object.__setattr__(self, "stored", self.at_once("stored_bytes"))
        object.__setattr__(self, "background", _of(self.limits, OF_BACKGROUND))
        requests = tuple(one for one in self.at_once("requests") if one.model == ALL_MODELS)
        object.__setattr__(self, "writes", Rules(requests, (), (), (), ()) if requests else None)

    def rules(self, model: str) -> Rules | None:
        if not self.limits and not self.meters and not self.budgets:
            return None
        try:
            return self._rules[model]
        except KeyError:
            rules = self._new_rules(model)
            if len(self._rules) < RULES_MAX:
                self._rules[model] = rules
            return rules

    def at_once(self, what: What) -> tuple[Limit, ...]:
        return _of(self.limits, (what,))

    def _new_rules(self, model: str) -> Rules | None:
        binding = [one for one in self.limits if one.model in {ALL_MODELS, model}]
        of_budgets = {one.meter: Meter(one.meter, one.unit, one.interval) for one in self.budgets}
        meters = {**{one.name: one for one in self.meters}, **of_budgets}
        rules = Rules(
            requests=_of(binding, {"requests"}),
            tokens=_of(binding, OF_TOKENS),
            places=_of(binding, {"responses"}),
            budgets=self.budgets,
            meters=tuple(meters.values()),
            stored=_of(binding, {"stored_bytes"}),
        )
        binds = rules.requests or rules.tokens or rules.places or rules.meters or rules.stored
        return rules if binds else None


def _of(limits: Iterable[Limit], whats: Collection[What]) -> tuple[Limit, ...]:
    return tuple(one for one in limits if one.what in whats)


NO_TERMS: Final = Terms()
