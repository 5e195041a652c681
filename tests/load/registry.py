"""The workloads of the benchmark, and what each of them has to be.

To add one, write a module in `workloads/` with a class that is a `Workload`, and put an instance
into `WORKLOADS`. It measures in its own way; tables, medians, targets and files are made from its
rows, columns and targets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from tests.load.figures import Column, Figures, Target
    from tests.load.stack import Stack


class Workload(Protocol):
    """One table. `rows` are measured in turn, once in each repetition, in a rotating order.

    `opened` makes what the workload needs (beside the stack, which starts a system when it is first
    asked for) and yields what measures a row once. That raises `RunVoid` when an answer was wrong;
    `RowFailed` when only this row, which is not ours, has nothing to show.
    """

    @property
    def letter(self) -> str:
        """How the command line calls it."""
        ...

    @property
    def title(self) -> str: ...

    @property
    def columns(self) -> Sequence[Column]: ...

    @property
    def targets(self) -> Sequence[Target]: ...

    @property
    def is_quick(self) -> bool:
        """Whether `make bench-quick` runs it, with less of everything."""
        ...

    def rows(self, stack: Stack) -> Sequence[str]:
        """Names of what is compared: systems of the stack, or whatever the workload varies."""
        ...

    def opened(
        self, stack: Stack, *, quick: bool
    ) -> AbstractContextManager[Callable[[str], Figures]]: ...


def workloads() -> tuple[Workload, ...]:
    """All of them, in the order of their letters."""
    from tests.load.workloads.documents import Documents
    from tests.load.workloads.durable import Durable
    from tests.load.workloads.first_token import FirstToken
    from tests.load.workloads.history import Turns
    from tests.load.workloads.hosted_turn import HostedTurn
    from tests.load.workloads.memory import Memory
    from tests.load.workloads.overload import Overload
    from tests.load.workloads.postgres import OnePostgres
    from tests.load.workloads.replicas import Replicas
    from tests.load.workloads.resume import Resume
    from tests.load.workloads.routing import RoutingDecision
    from tests.load.workloads.stall import Stall
    from tests.load.workloads.stored import Stored
    from tests.load.workloads.streams import MANY, PACED, SATURATED
    from tests.load.workloads.traces import Traces

    return (
        SATURATED,
        PACED,
        MANY,
        FirstToken(),
        Memory(),
        Turns(),
        Stored(),
        Durable(),
        Resume(),
        Documents(),
        Replicas(),
        Stall(),
        HostedTurn(),
        RoutingDecision(),
        OnePostgres(),
        Overload(),
        Traces(),
    )


def chosen(letters: Sequence[str] | None, *, quick: bool) -> tuple[Workload, ...]:
    """Those with these letters; None: all, or the quick ones. Raises `ValueError`."""
    known = {workload.letter: workload for workload in workloads()}
    if letters is None:
        return tuple(one for one in known.values() if one.is_quick or not quick)
    unknown = [letter for letter in letters if letter not in known]
    if unknown:
        raise ValueError(f"no workload {', '.join(unknown)}: there are {', '.join(known)}")
    return tuple(known[letter] for letter in known if letter in letters)
