"""A model of an inference server: steps, slots, prefill, and a prefix cache that is full.

A step reads up to 2,048 tokens of prompts, at 10,000 tokens a second, and says one token of each
answer under way; it takes 8 ms, and 0.15 ms for each of these answers. 64 requests run at once, the
rest wait in their order. The cache has whole messages, hits are counted in blocks of 16; what was
used least lately goes first, and never before what was built on it.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.load.fleet.events import World
    from tests.load.fleet.prompts import Message, SimulatedPrefix

CHUNK: Final = 2_048
RATE: Final = 10_000.0
STEP_S: Final = 0.008
DECODE_S: Final = 0.000_15
SLOTS: Final = 64
BLOCK: Final = 16


@dataclass(eq=False)
class Job:
    """A request at a member; it tells when its first token came, and when it ended."""

    prefix: SimulatedPrefix
    said: tuple[Message, ...]
    arrived_at: float
    on_first: Callable[[Job], None]
    on_end: Callable[[Job], None]
    on_lost: Callable[[Job], None]
    cached: int = 0
    left: int = 0
    """Tokens of the prompt that are not read yet."""
    nodes: list[Node] = field(default_factory=list)

    @property
    def output(self) -> int:
        """How many tokens it says."""
        return sum(message.tokens for message in self.said)


@dataclass(eq=False)
class Node:
    """A message in the cache, behind all that comes before it."""

    chain: int
    tokens: int
    parent: Node | None
    children: int = 0
    users: int = 0
    used_at: float = 0.0


class Cache:
    """Of `room` tokens."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.free = room
        self._nodes: dict[int, Node] = {}
        self._leaves: list[tuple[float, int, Node]] = []

    def held(self, prefix: SimulatedPrefix) -> int:
        """How many of the first tokens are there."""
        held = 0
        for chain, end in zip(prefix.chains, prefix.ends, strict=True):
            if chain not in self._nodes:
                break
            held = end
        return min(held, prefix.length - 1) // BLOCK * BLOCK

    def take(self, prefix: SimulatedPrefix, output: int, now: float) -> list[Node] | None:
        """Pin what a request needs, with room for what it says; None where there is no room."""
        path: list[Node] = []
        for chain in prefix.chains:
            node = self._nodes.get(chain)
            if node is None:
                break
            path.append(node)
        for node in path:
            node.users += 1
        start = prefix.ends[len(path) - 1] if path else 0
        if not self._make_room(prefix.length - start + output):
            for node in path:
                self._let_go(node)
            return None
        self.free -= output
        self._append(path, prefix, now)
        return path

    def _append(self, path: list[Node], prefix: SimulatedPrefix, now: float) -> None:
        for place in range(len(path), len(prefix.chains)):
            tokens = prefix.ends[place] - (prefix.ends[place - 1] if place else 0)
            parent = path[-1] if path else None
            node = Node(prefix.chains[place], tokens, parent, users=1)
            if parent is not None:
                parent.children += 1
            self._nodes[node.chain] = node
            self.free -= tokens
            path.append(node)
        for node in path:
            node.used_at = now

    def give_back(
        self, path: list[Node], prefix: SimulatedPrefix | None, output: int, now: float
    ) -> None:
        """The request is over; with a `prefix`, which is the prompt with what was said, all of it
        stays until somebody needs the room.
        """
        self.free += output
        if prefix is not None:
            for chain in prefix.chains[len(path) :]:
                known = self._nodes.get(chain)
                if known is None:
                    break
                known.users += 1
                path.append(known)
            if self.free >= prefix.ends[-1] - (prefix.ends[len(path) - 1] if path else 0):
                self._append(path, prefix, now)
        for node in path:
            node.used_at = now
            self._let_go(node)

    def _let_go(self, node: Node) -> None:
        node.users -= 1
        self._note_leaf(node)

    def _note_leaf(self, node: Node) -> None:
        if not node.users and not node.children:
            heapq.heappush(self._leaves, (node.used_at, node.chain, node))

    def _make_room(self, tokens: int) -> bool:
        while self.free < tokens and self._leaves:
            used_at, chain, node = heapq.heappop(self._leaves)
            is_stale = node.users or node.children or node.used_at != used_at
            if is_stale or self._nodes.get(chain) is not node:
                continue
            del self._nodes[chain]
            self.free += node.tokens
            if node.parent is not None:
                node.parent.children -= 1
                self._note_leaf(node.parent)
        return self.free >= tokens


class SimulatedMember:
    """One server."""

    def __init__(self, name: str, world: World, *, kv_tokens: int, speed: float = 1.0) -> None:
        self.name = name
        self.kv_tokens = kv_tokens
        self.speed = speed
        self.is_up = True
        self.requests = 0
        self._world = world
        self._empty()

    def _empty(self) -> None:
        self.cache = Cache(self.kv_tokens)
        self.waiting: deque[Job] = deque()
        self._reading: deque[Job] = deque()
        self._saying: list[tuple[int, int, Job]] = []
        self._steps = 0
        self._life = 0
        self._count = 0
        self._batch: tuple[float, float, int] | None = None
        """Of steps in which nothing is read: when they began, how long each is, how many."""
        self._is_stepping = False
        self._read: list[Job] = []
        """Whose prompt will have been read at the end of the step under way."""

    @property
    def running(self) -> int:
        """Requests in its slots."""
        return len(self._reading) + len(self._read) + len(self._saying)

    @property
    def owed(self) -> int:
        """Tokens it has to read, as nobody outside knows it."""
        return sum(job.left for job in self._reading) + sum(
            job.prefix.length - self.cache.held(job.prefix) for job in self.waiting
        )

    def send(self, job: Job) -> None:
        """A request arrives."""
        self.requests += 1
        self.waiting.append(job)
        if self._batch is not None:
            self._break_batch()
        elif not self._is_stepping:
            self._step()

    def fail(self) -> None:
        """It dies, and forgets everything."""
        saying = (job for _, _, job in self._saying)
        lost = [*self.waiting, *self._reading, *self._read, *saying]
        life, self.is_up = self._life, False
        self._empty()
        self._life = life + 1
        for job in lost:
            job.on_lost(job)

    def _admit(self) -> None:
        while self.waiting and self.running < SLOTS:
            job = self.waiting[0]
            cached = self.cache.held(job.prefix)
            path = self.cache.take(job.prefix, job.output, self._world.now)
            if path is None:
                return
            self.waiting.popleft()
            job.cached, job.left, job.nodes = cached, job.prefix.length - cached, path
            self._reading.append(job)

    def _step(self) -> None:
        self._admit()
        if not self.running:
            self._is_stepping = False
            return
        self._is_stepping = True
        saying = len(self._saying)
        room = CHUNK
        while self._reading and room:
            job = self._reading[0]
            read = min(room, job.left)
            job.left -= read
            room -= read
            if job.left:
                break
            self._read.append(self._reading.popleft())
        seconds = (STEP_S + (CHUNK - room) / RATE + DECODE_S * saying) / self.speed
        life = self._life
        if room == CHUNK:
            steps = self._saying[0][0] - self._steps
            self._batch = (self._world.now, seconds, steps)
            self._world.after(seconds * steps, lambda: self._end_batch(life, seconds, steps))
        else:
            self._world.after(seconds, lambda: self._end_step(life))

    def _end_step(self, life: int) -> None:
        if life != self._life:
            return
        self._steps += 1
        self._finish()
        done, self._read = self._read, []
        for job in done:
            self._count += 1
            # The first token comes with the prompt.
            heapq.heappush(self._saying, (self._steps + job.output - 1, self._count, job))
            job.on_first(job)
        self._finish()
        self._step()

    def _break_batch(self) -> None:
        """Something arrived: there are no more steps of the kind than are under way."""
        assert self._batch is not None
        began_at, seconds, steps = self._batch
        over = min(steps, max(1, ceil((self._world.now - began_at) / seconds)))
        if over < steps:
            self._batch = None
            self._life += 1
            life = self._life
            ends_in = max(0.0, began_at + over * seconds - self._world.now)
            self._world.after(ends_in, lambda: self._end_batch(life, seconds, over))

    def _end_batch(self, life: int, seconds: float, steps: int) -> None:
        if life != self._life:
            return
        self._batch = None
        self._steps += steps
        self._finish()
        self._step()

    def _finish(self) -> None:
        while self._saying and self._saying[0][0] <= self._steps:
            _, _, job = heapq.heappop(self._saying)
            whole = job.prefix.longer_by(job.said)
            self.cache.give_back(job.nodes, whole, job.output, self._world.now)
            job.on_end(job)
