"""Replicas, readers and a database under every misfortune, in simulated time, from one seed.

    python -m tests.chaos.simulation --steps 1000000 --seed 7 [--unfenced]

A step is one thing that happens to one of them; after each, what it touched is audited. The same
seed gives the same steps. `--unfenced` takes away the condition of the append, to show that the
audit would find what the fence prevents.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from typing_extensions import override

from gateway.entries import unpack
from gateway.errors import ClaimLost
from gateway.store.events import LogRow
from gateway.store.schema import TERMINAL
from gateway.tenancy import TenantId
from tests.chaos.log_audit import Anomaly, Audit
from tests.chaos.simulated_replica import TERMS, UNAVAILABLE, Replica
from tests.fakes.claim_table import ClaimTable
from tests.fakes.stored import durable_response, new_response

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.entries import Entry
    from gateway.store.events import LogBatch
    from gateway.store.responses import NewResponse
    from tests.chaos.simulated_replica import Answer
    from tests.fakes.claim_table import Row

REPLICAS: Final = 4
TENANTS: Final = (TenantId(UUID(int=1)), TenantId(UUID(int=2)))
RUNNING_MAX: Final = 24
"""Responses that have not ended; no more are created."""
ENDED_KEPT: Final = 32
"""Those that have ended stay for a while, because calls about them may still be under way."""
STEP_S: Final = 0.02
SETTLE_STEPS: Final = 400_000

FAULTS: Final = {"freeze": 4, "thaw": 8, "crash": 1, "drain": 1, "outage": 1, "recovery": 20}
WORK: Final = {
    "create": 30,
    "say": 300,
    "flush": 150,
    "finish": 40,
    "beat": 40,
    "claim": 40,
    "sweep": 6,
    "release": 20,
    "cancel": 2,
    "read": 60,
    "serve": 350,
    "deliver": 150,
    "lose": 8,
    "late": 8,
}


@dataclass(eq=False, slots=True)
class Call:
    """Work asked of the database. `answer` is None once the replica has given up on it."""

    replica: Replica
    perform: Callable[[], Any]
    answer: Answer | None
    result: Any = None


@dataclass(slots=True)
class Reader:
    """A client that has seen `seen` entries of a response, wherever it read them."""

    uuid: UUID
    seen: int = 0


class UnfencedTable(ClaimTable):
    """Appends whatever anybody brings."""

    @override
    def append(self, parcels: Sequence[LogBatch]) -> frozenset[UUID]:
        rows = [(parcel, self.rows.get(parcel.claim.uuid)) for parcel in parcels]
        for parcel, row in rows:
            if row is not None:
                packed = LogRow(parcel.first_entry, parcel.count, parcel.entries)
                row.add(parcel.claim.epoch, packed)
        return frozenset(row.uuid for _, row in rows if row is not None)


class Simulation:
    """Everything there is. `counts` tells what happened how often."""

    def __init__(self, seed: int, *, fenced: bool = True) -> None:
        table = ClaimTable if fenced else UnfencedTable
        self.chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.now = 0.0
        self.table = table(lambda: self.now)
        self.audit = Audit(self.table, attempts_max=TERMS.attempts_max)
        self._is_away = False
        self._created = 0
        self._started = 0
        self._waiting: list[Call] = []
        self._served: list[Call] = []
        self._touched: set[UUID] = set()
        self._ended: deque[UUID] = deque()
        self._running: dict[UUID, None] = {}
        self._readers: list[Reader] = []
        self._replicas = [self._new_replica() for _ in range(REPLICAS)]

    def run(self, steps: int) -> None:
        """That many steps, then as many as it takes until everything has ended."""
        happenings, weights = _weighed(WORK | FAULTS)
        for chosen in self.chance.choices(happenings, weights, k=steps):
            self._step(chosen)
        self._is_away = False
        for replica in self._replicas:
            replica.is_frozen = False
        happenings, weights = _weighed(WORK | {"create": 0, "lose": 0, "late": 0})
        for _ in range(SETTLE_STEPS):
            if not self._running and not self._waiting:
                return
            self._step(*self.chance.choices(happenings, weights))
        raise Anomaly(f"{len(self._running)} responses never end")

    def call(self, replica: Replica, perform: Callable[[], Any], answer: Answer) -> None:
        """Ask the database; see `Surroundings`."""
        self._waiting.append(Call(replica, perform, answer))

    def _step(self, name: str) -> None:
        self.counts["steps"] += 1
        self.now += self.chance.expovariate(1 / STEP_S)
        happening = _OF_WORLD.get(name)
        if happening is not None:
            happening(self)
        else:
            replica = self.chance.choice(self._replicas)
            if not replica.is_frozen:
                _OF_REPLICA[name](replica)
        for uuid in self._touched:
            self.audit.check(uuid)
            self._retire(uuid)
        self._touched.clear()

    # Responses and readers.

    def _create(self) -> None:
        replica = self.chance.choice(self._replicas)
        if len(self._running) >= RUNNING_MAX or replica.is_frozen or replica.is_draining:
            return
        self._created += 1
        uuid = UUID(int=self._created)
        replica.create(self.chance.choice(TENANTS), self._new_response(uuid, replica.name))
        self._readers = [*self._readers[-RUNNING_MAX:], Reader(uuid)]

    def _new_response(self, uuid: UUID, owner: str) -> NewResponse:
        kind = self.chance.choice(["background", "background", "continued", "foreground"])
        if kind == "background":
            return durable_response(uuid=uuid)
        if kind == "foreground":
            return replace(new_response(uuid=uuid), owner=owner, lease_s=TERMS.lease_s)
        continued = durable_response(uuid=uuid, owner=owner, lease_s=TERMS.lease_s)
        return replace(continued, entries=None)

    def _cancel(self) -> None:
        replica = self.chance.choice(self._replicas)
        if self._running and not replica.is_frozen:
            replica.conclude(self.chance.choice(list(self._running)), "cancelled")

    def _read(self) -> None:
        """A reader comes to any replica: the log is there, or it is read from the database."""
        replica = self.chance.choice(self._replicas)
        if not self._readers or replica.is_frozen:
            return
        reader = self.chance.choice(self._readers)
        entries = self._visible(replica, reader)
        if entries:
            self.audit.showed(reader.uuid, reader.seen, entries)
            reader.seen += len(entries)
            self.counts["entries read"] += len(entries)

    def _visible(self, replica: Replica, reader: Reader) -> list[Entry]:
        run = replica.runs.get(reader.uuid)
        if run is not None:
            return run.entries[reader.seen : run.shown]
        row = self.table.rows.get(reader.uuid)
        if row is None or self._is_away:
            return []
        rows = row.read(reader.seen)
        entries = [entry for packed in rows for entry in unpack(packed.entries)]
        return entries[reader.seen - rows[0].first_entry :] if rows else []

    def _retire(self, uuid: UUID) -> None:
        row = self.table.rows.get(uuid)
        if row is None:
            return
        if row.status not in TERMINAL:
            self._running[uuid] = None
        elif self._running.pop(uuid, self) is not self:
            self._ended.append(uuid)
        while len(self._ended) > ENDED_KEPT:
            oldest = self._ended.popleft()
            self.audit.forget(oldest)
            del self.table.rows[oldest]

    # The database, and the way to it and back.

    def _serve(self) -> None:
        """Carry out one call; most answers arrive at once."""
        call = self._pick(self._waiting)
        if call is None:
            return
        call.result = self._result(call)
        self._served.append(call)
        if self.chance.random() < 0.7:
            self._deliver(call)

    def _result(self, call: Call) -> Any:
        if self._is_away:
            return UNAVAILABLE
        before = {uuid: _state(row) for uuid, row in self.table.rows.items()}
        try:
            result = call.perform()
        except ClaimLost as error:
            result = error
        self._touched = {
            uuid for uuid, row in self.table.rows.items() if before.get(uuid) != _state(row)
        }
        return result

    def _deliver(self, call: Call | None = None) -> None:
        call = call or (self.chance.choice(self._served) if self._served else None)
        if call is None:
            return
        is_alive = call.replica in self._replicas
        if is_alive and call.replica.is_frozen:
            return
        self._served.remove(call)
        if call.answer is not None and is_alive:
            call.answer(call.result)

    def _lose(self) -> None:
        """The connection breaks after the work was done: nobody knows that it was."""
        if self._served:
            self.chance.choice(self._served).result = UNAVAILABLE
            self.counts["answers lost"] += 1

    def _late(self) -> None:
        """A replica gives up on a call that the server will carry out all the same."""
        calls = [one for one in self._waiting if one.answer and not one.replica.is_frozen]
        if calls:
            call = self.chance.choice(calls)
            answer, call.answer = call.answer, None
            self.counts["carried out late"] += 1
            if answer is not None and call.replica in self._replicas:
                answer(UNAVAILABLE)

    def _pick(self, calls: list[Call]) -> Call | None:
        """Any of them: the order in which a server gets to them is not that of asking."""
        if not calls:
            return None
        index = self.chance.randrange(len(calls))
        calls[index], calls[-1] = calls[-1], calls[index]
        return calls.pop()

    def _outage(self) -> None:
        self._is_away = True
        self.counts["outages"] += 1

    def _recovery(self) -> None:
        self._is_away = False

    # Replicas.

    def _new_replica(self) -> Replica:
        self._started += 1
        return Replica(self, self._started)

    def _freeze(self) -> None:
        self.chance.choice(self._replicas).is_frozen = True
        self.counts["freezes"] += 1

    def _thaw(self) -> None:
        self.chance.choice(self._replicas).is_frozen = False

    def _crash(self) -> None:
        """Its calls may still be carried out; nobody hears the answers."""
        self._replicas[self.chance.randrange(REPLICAS)] = self._new_replica()
        self.counts["crashes"] += 1

    def _drain(self) -> None:
        self.chance.choice(self._replicas).is_draining = True

    def _release(self) -> None:
        """One that drains gives claims up, and is replaced when it has none left."""
        index = self.chance.randrange(REPLICAS)
        replica = self._replicas[index]
        if replica.is_draining and not replica.is_frozen:
            replica.release()
            if not replica.runs:
                self._replicas[index] = self._new_replica()
                self.counts["drained"] += 1


_OF_WORLD: Final[dict[str, Callable[[Simulation], None]]] = {
    "create": Simulation._create,
    "cancel": Simulation._cancel,
    "read": Simulation._read,
    "serve": Simulation._serve,
    "deliver": Simulation._deliver,
    "lose": Simulation._lose,
    "late": Simulation._late,
    "freeze": Simulation._freeze,
    "thaw": Simulation._thaw,
    "crash": Simulation._crash,
    "drain": Simulation._drain,
    "release": Simulation._release,
    "outage": Simulation._outage,
    "recovery": Simulation._recovery,
}
_OF_REPLICA: Final[dict[str, Callable[[Replica], None]]] = {
    "say": Replica.say,
    "flush": Replica.flush,
    "finish": Replica.finish,
    "beat": Replica.beat,
    "claim": Replica.claim,
    "sweep": Replica.reaper,
}


def simulate(seed: int, steps: int, *, fenced: bool = True) -> Counter[str]:
    """What happened how often. Raises `Anomaly` with what it takes to see it again."""
    simulation = Simulation(seed, fenced=fenced)
    try:
        simulation.run(steps)
    except Anomaly as anomaly:
        step = simulation.counts["steps"]
        how = f"python -m tests.chaos.simulation --steps {steps} --seed {seed}"
        raise Anomaly(f"{anomaly} at step {step}: {how}{'' if fenced else ' --unfenced'}") from None
    return simulation.counts


def _state(row: Row) -> tuple[object, ...]:
    return row.status, row.owner, row.epoch, row.next_entry, row.attempts, len(row.log)


def _weighed(happenings: dict[str, int]) -> tuple[list[str], list[int]]:
    return list(happenings), list(happenings.values())


def main() -> int:
    """0 when nothing was found, or without the fence when something was."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.simulation", description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=None, help="default: another one every time")
    parser.add_argument("--unfenced", action="store_true")
    arguments = parser.parse_args()
    seed = secrets.randbelow(2**32) if arguments.seed is None else arguments.seed
    began = time.perf_counter()
    try:
        counts = simulate(seed, arguments.steps, fenced=not arguments.unfenced)
    except Anomaly as anomaly:
        print(f"anomaly: {anomaly}")
        return int(not arguments.unfenced)
    print(f"seed {seed}: no anomaly in {time.perf_counter() - began:.1f} s")
    for what, count in sorted(counts.items()):
        print(f"  {count:>9,}  {what}")
    return int(arguments.unfenced)


if __name__ == "__main__":
    sys.exit(main())
