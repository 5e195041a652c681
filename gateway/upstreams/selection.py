"""Which backend is next: pure functions over what the pool knows at this moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class BackendState:
    """One backend now.

    `models` are context lengths (tokens, None: not known yet) by public id. `available` also holds
    for an ejected backend whose trial is due. `in_doubt`: its last health check went wrong.
    `problem` is the last thing that did.
    """

    name: str
    models: Mapping[str, int | None]
    healthy: bool
    available: bool
    in_flight: int
    failures: int = 0
    ejected_for_s: float = 0.0
    version: str | None = None
    problem: str | None = None
    in_doubt: bool = False


def candidates(
    states: Sequence[BackendState], *, tried: Collection[str] = (), avoided: Collection[str] = ()
) -> list[BackendState]:
    """The best ones left: available, not in doubt and not avoided; else with less and less of that.

    All, because when every backend looks dead it is more likely that something else is wrong, and
    a refused request costs less than a certain failure.
    """
    left = [state for state in states if state.name not in tried]
    wanted = [state for state in left if state.available and state.name not in avoided]
    return (
        [state for state in wanted if not state.in_doubt]
        or wanted
        or [state for state in left if state.available]
        or [state for state in left if state.name not in avoided]
        or left
    )


def round_robin(choices: Sequence[BackendState], turn: int) -> BackendState | None:
    """Each in its turn; None when there is none."""
    return choices[turn % len(choices)] if choices else None
