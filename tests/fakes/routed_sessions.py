"""Conversations that are asked of several replicas in turn, and what was expected to be cached."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.store import backend_reports
from gateway.upstreams.routing.exchange import Exchange

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import httpx2

    from tests.fakes.gateway import RunningGateway


class Watched:
    """Which backends prompts were sent to, and why, by what routing counts at all replicas."""

    def __init__(self, *gateways: RunningGateway) -> None:
        self._gateways = gateways
        self._before = self._counts()

    def _counts(self) -> Counter[tuple[str, str]]:
        return self._sums("gateway_routing_decisions_total", "reason")

    def _sums(self, name: str, label: str) -> Counter[tuple[str, str]]:
        """By backend and that label."""
        sums: Counter[tuple[str, str]] = Counter()
        for gateway in self._gateways:
            registry = gateway.process.foundation.metrics.registry
            samples = [sample for metric in registry.collect() for sample in metric.samples]
            for sample in samples:
                if sample.name == name:
                    sums[sample.labels["upstream"], sample.labels[label]] += int(sample.value)
        return sums

    def expected(self) -> int:
        """Tokens of all prompts so far that were expected to be cached."""
        sums = self._sums("gateway_routing_prompt_tokens_total", "type")
        return sum(count for (_, type_), count in sums.items() if type_ == "expected")

    def new(self) -> Mapping[tuple[str, str], int]:
        """Backends and reasons of the decisions since the last time."""
        before, self._before = self._before, self._counts()
        return self._before - before


@dataclass
class Session:
    """A conversation of somebody whose client keeps it, or has it stored."""

    stored: bool
    input: list[dict[str, Any]]
    previous: str | None = None

    def asks(self, text: str) -> dict[str, Any]:
        """The request of its next turn."""
        message = {"role": "user", "content": text}
        if self.stored and self.previous is not None:
            return {"input": [message], "previous_response_id": self.previous}
        self.input.append(message)
        return {"input": self.input, "store": self.stored}

    def heard(self, body: dict[str, Any]) -> None:
        """The response to it."""
        self.previous = body["id"]
        self.input += [item for item in body["output"] if item["type"] == "message"]


class Hit(NamedTuple):
    """Of a turn: where it went, what was expected to be cached there, and what was reported."""

    upstream: str
    expected: int
    reported: int


class Rounds:
    """Sessions, half of them stored, whose turns go to one replica after the other."""

    def __init__(
        self,
        gateways: Sequence[RunningGateway],
        clients: Sequence[httpx2.AsyncClient],
        model: str,
        *,
        sessions: int = 12,
    ) -> None:
        self._clients = clients
        self._model = model
        self._watched = Watched(*gateways)
        self._exchanges = [exchange_of(gateway) for gateway in gateways]
        self._turns = 0
        self._sessions = [
            Session(n % 2 == 0, [{"role": "system", "content": f"Session {n}. " + "Word. " * 700}])
            for n in range(sessions)
        ]

    async def once(self) -> list[Hit]:
        """A turn of each session; then replicas tell each other what they know."""
        hits: list[Hit] = []
        turn, self._turns = self._turns, self._turns + 1
        for n, session in enumerate(self._sessions):
            before = self._watched.expected()
            self._watched.new()
            asked = {"max_output_tokens": 64, **session.asks(f"Turn {turn}?")}
            client = self._clients[(turn + n) % len(self._clients)]
            answer = await client.post("/v1/responses", json={"model": self._model, **asked})
            assert answer.status_code == 200, answer.text
            body = answer.json()
            session.heard(body)
            cached = body["usage"]["input_tokens_details"]["cached_tokens"]
            (upstream,) = {place for place, _ in self._watched.new()}
            hits.append(Hit(upstream, self._watched.expected() - before, cached))
        for exchange in self._exchanges * 2:
            await exchange.once()
        return hits

    async def later(self, turns: int = 6) -> list[Hit]:
        """So many turns of each; of those behind the first what was expected and reported."""
        rounds = [await self.once() for _ in range(turns)]
        return [hit for hits in rounds[1:] for hit in hits]


def exchange_of(gateway: RunningGateway) -> Exchange:
    """One that is asked to, beside the one of the process."""
    base = gateway.process.foundation
    assert base.pool.router is not None
    board = partial(backend_reports.exchange_placements, base.notices, f"{base.owner}-asked")
    return Exchange(base.pool.router, board)
