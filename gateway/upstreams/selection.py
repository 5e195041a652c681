"""Which backend is next: pure functions over what the pool knows at this moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from gateway.generation import Constraint
    from gateway.upstreams.engines.engine import Capabilities


@dataclass(frozen=True, slots=True)
class BackendState:
    """One backend now.

    `models` are context lengths (tokens, None: not known yet) by public id. `healthy` is None until
    it has answered, or failed to for long enough. `available` also holds for an ejected backend
    whose trial is due, and for one of which nothing is known. `in_doubt`: its last health check
    went wrong. `problem` is the weightiest thing that is wrong. `can` is None until it has said
    what it is.
    """

    name: str
    models: Mapping[str, int | None]
    healthy: bool | None
    available: bool
    in_flight: int
    failures: int = 0
    ejected_for_s: float = 0.0
    version: str | None = None
    problem: str | None = None
    in_doubt: bool = False
    can: Capabilities | None = None


class Candidate(Protocol):
    """What is looked at of a backend, as `BackendState` describes it."""

    @property
    def name(self) -> str: ...

    @property
    def available(self) -> bool: ...

    @property
    def in_doubt(self) -> bool: ...

    @property
    def can(self) -> Capabilities | None: ...


C = TypeVar("C", bound=Candidate)


def candidates(
    states: Sequence[C],
    *,
    tried: Collection[str] = (),
    avoided: Collection[str] = (),
    constraint: Constraint | None = None,
) -> list[C]:
    """The best ones left: available, not in doubt and not avoided; else with less and less of that.

    Among equals those that hold the constraint best: to be there comes first, because without a
    grammar the output can still be checked. All, because when every backend looks dead it is more
    likely that something else is wrong, and a refused request costs less than a certain failure.
    """
    left = [state for state in states if state.name not in tried]
    wanted = [state for state in left if state.available and state.name not in avoided]
    equals = (
        [state for state in wanted if not state.in_doubt]
        or wanted
        or [state for state in left if state.available]
        or [state for state in left if state.name not in avoided]
        or left
    )
    return equals if constraint is None else _holding_best(equals, constraint)


def tell_logprobs(states: Sequence[C]) -> list[C]:
    """Those that can tell how likely an id was."""
    return [state for state in states if state.can is not None and state.can.logprobs]


def _holding_best(states: list[C], constraint: Constraint) -> list[C]:
    ranks = [state.can.rank(constraint) if state.can is not None else 0 for state in states]
    best = max(ranks, default=0)
    return [state for state, rank in zip(states, ranks, strict=True) if rank == best]


def round_robin(choices: Sequence[C], turn: int) -> C | None:
    """Each in its turn; None when there is none."""
    return choices[turn % len(choices)] if choices else None
