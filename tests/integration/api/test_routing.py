"""Where the turns of a conversation go: two replicas, two backends."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from gateway.store import placements
from gateway.upstreams.routing.exchange import Exchange

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx2

    from tests.fakes.gateway import RunningGateway

MODEL = "gpt-oss-20b"


class Watched:
    """Which backends prompts were sent to, and why, by what routing counts at both replicas."""

    def __init__(self, *gateways: RunningGateway) -> None:
        self._gateways = gateways
        self._before = self._counts()

    def _counts(self) -> Counter[tuple[str, str]]:
        counts: Counter[tuple[str, str]] = Counter()
        for gateway in self._gateways:
            registry = gateway.process.default.foundation.metrics.registry
            samples = [sample for metric in registry.collect() for sample in metric.samples]
            for sample in samples:
                if sample.name == "gateway_routing_decisions_total":
                    counts[sample.labels["upstream"], sample.labels["reason"]] += int(sample.value)
        return counts

    def expected(self) -> int:
        """Tokens of all prompts so far that were expected to be cached."""
        names = {"upstream": "b0", "type": "expected"}, {"upstream": "b1", "type": "expected"}
        registries = [one.process.default.foundation.metrics.registry for one in self._gateways]
        return sum(
            int(registry.get_sample_value("gateway_routing_prompt_tokens_total", labels) or 0)
            for registry in registries
            for labels in names
        )

    def new(self) -> Mapping[tuple[str, str], int]:
        """Since the last time."""
        before, self._before = self._before, self._counts()
        return self._before - before


@pytest.fixture
def watched(gateway: RunningGateway, second_gateway: RunningGateway) -> Watched:
    return Watched(gateway, second_gateway)


async def created(client: httpx2.AsyncClient, text: str = "", **more: Any) -> dict[str, Any]:
    answer = await client.post("/v1/responses", json={"model": MODEL, "input": text, **more})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_a_chain_stays_at_its_backend_whichever_replica_is_asked(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient, watched: Watched
) -> None:
    body = await created(client, "one")
    ((place, reason),) = watched.new()
    assert reason == "cold"
    for turn in range(6):
        asked = (second, client)[turn % 2]
        body = await created(asked, f"turn {turn}", previous_response_id=body["id"])
        assert watched.new() == {(place, "row"): 1}


async def test_a_conversation_stays_at_its_backend(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient, watched: Watched
) -> None:
    conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    await created(client, "one", conversation=conversation)
    ((place, _),) = watched.new()
    for turn in range(4):
        await created((second, client)[turn % 2], f"turn {turn}", conversation=conversation)
        assert watched.new() == {(place, "row"): 1}


SESSIONS = 12
TURNS = 6
BLOCK_IDS = 16
"""Of the simulated backends: hits are whole blocks."""


@dataclass
class Session:
    """A conversation of somebody whose client keeps it, or has it stored."""

    stored: bool
    input: list[dict[str, Any]]
    previous: str | None = None

    def asks(self, text: str) -> dict[str, Any]:
        message = {"role": "user", "content": text}
        if self.stored and self.previous is not None:
            return {"input": [message], "previous_response_id": self.previous}
        self.input.append(message)
        return {"input": self.input, "store": self.stored}

    def heard(self, body: dict[str, Any]) -> None:
        self.previous = body["id"]
        self.input += [item for item in body["output"] if item["type"] == "message"]


def exchange_of(gateway: RunningGateway) -> Exchange:
    base = gateway.process.default.foundation
    assert base.pool.router is not None
    board = partial(placements.exchange, base.notices, f"{base.owner}-asked")
    return Exchange(base.pool.router, board)


async def test_what_is_expected_is_what_backends_report(
    gateway: RunningGateway,
    second_gateway: RunningGateway,
    client: httpx2.AsyncClient,
    second: httpx2.AsyncClient,
    watched: Watched,
) -> None:
    """Whichever of the replicas is asked, stored or not."""
    exchanges = [exchange_of(gateway), exchange_of(second_gateway)]
    sessions = [
        Session(n % 2 == 0, [{"role": "system", "content": f"Session {n}. " + "Word. " * 700}])
        for n in range(SESSIONS)
    ]
    near: list[bool] = []
    for turn in range(TURNS):
        for n, session in enumerate(sessions):
            asked = (client, second)[(turn + n // 2) % 2]
            before = watched.expected()
            body = await created(asked, **session.asks(f"Turn {turn}?"))
            session.heard(body)
            reported = body["usage"]["input_tokens_details"]["cached_tokens"]
            expected = watched.expected() - before
            if turn:
                near.append(0 <= expected - reported <= BLOCK_IDS and reported > 500)
        for exchange in exchanges * 2:
            await exchange.once()
    assert sum(near) >= 0.95 * len(near)
