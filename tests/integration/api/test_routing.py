"""Where the turns of a conversation go: two replicas, two backends."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

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

    def new(self) -> Mapping[tuple[str, str], int]:
        """Since the last time."""
        before, self._before = self._before, self._counts()
        return self._before - before


@pytest.fixture
def watched(gateway: RunningGateway, second_gateway: RunningGateway) -> Watched:
    return Watched(gateway, second_gateway)


async def created(client: httpx2.AsyncClient, text: str, **more: Any) -> dict[str, Any]:
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
