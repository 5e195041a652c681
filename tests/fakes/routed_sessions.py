"""Conversations that are asked of several replicas in turn, and what was expected to be cached."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.store import placements
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
            registry = gateway.process.default.foundation.metrics.registry
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
    """Of a later turn: what was expected to be cached, and what was reported."""

    expected: int
    reported: int


async def later_turns(
    gateways: Sequence[RunningGateway],
    clients: Sequence[httpx2.AsyncClient],
    model: str,
    *,
    sessions: int = 12,
    turns: int = 6,
) -> list[Hit]:
    """Sessions, half of them stored, whose turns go to one replica after the other."""
    watched = Watched(*gateways)
    exchanges = [exchange_of(gateway) for gateway in gateways]
    asked = [
        Session(n % 2 == 0, [{"role": "system", "content": f"Session {n}. " + "Word. " * 700}])
        for n in range(sessions)
    ]
    hits: list[Hit] = []
    for turn in range(turns):
        for n, session in enumerate(asked):
            before = watched.expected()
            request = {"model": model, "max_output_tokens": 64, **session.asks(f"Turn {turn}?")}
            answer = await clients[(turn + n) % len(clients)].post("/v1/responses", json=request)
            assert answer.status_code == 200, answer.text
            body = answer.json()
            session.heard(body)
            if turn:
                cached = body["usage"]["input_tokens_details"]["cached_tokens"]
                hits.append(Hit(watched.expected() - before, cached))
        for exchange in exchanges * 2:
            await exchange.once()
    return hits


def exchange_of(gateway: RunningGateway) -> Exchange:
    """One that is asked to, beside the one of the process."""
    base = gateway.process.default.foundation
    assert base.pool.router is not None
    board = partial(placements.exchange, base.notices, f"{base.owner}-asked")
    return Exchange(base.pool.router, board)
