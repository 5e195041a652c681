"""A flood in the background, at a gateway that is a process of its own: others are answered, and
no more of it is claimed than there is room for.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from gateway.upstreams.admission.admit import CLAIMED_AHEAD
from tests.fakes.http_client import NO_TLS
from tests.fakes.processes import gateway_process, reserved_port, simulator_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODEL = "gpt-oss-20b"
ENDLESS = "[[sim tokens_per_s=20 tokens=100000 think=none]] go"
SHORT = "[[sim tokens=5 think=none]] go"
SLOTS, FLOOD = 5, 20
SECTIONS: dict[str, Any] = {
    "admission": {"slots_max": SLOTS, "wait_max_s": 60},
    "background": {"tenant_running_max": FLOOD},
}


@pytest.fixture
def client(database_url: str, own_key: str, tmp_path: Path) -> Iterator[httpx2.Client]:
    """Of a gateway with few slots at one backend."""
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        simulator = stack.enter_context(simulator_process(port))
        gateway = stack.enter_context(
            gateway_process(tmp_path, database_url, [simulator.url], **SECTIONS)
        )
        headers = {"authorization": f"Bearer {own_key}"}
        yield stack.enter_context(
            httpx2.Client(
                base_url=gateway.url, headers=headers, verify=NO_TLS, trust_env=False, timeout=60
            )
        )


def ask(client: httpx2.Client, text: str, **more: Any) -> dict[str, Any]:
    answer = client.post("/v1/responses", json={"model": MODEL, "input": text, **more})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def queued(client: httpx2.Client) -> int:
    """How many of the flood wait in the gateway; the others wait in the database."""
    waiting: int = client.get("/readyz").json()["admission"]["queued"]["background"]
    return waiting


def until_queued(client: httpx2.Client, count: int) -> None:
    give_up_at = time.monotonic() + 30
    while queued(client) != count:
        assert time.monotonic() < give_up_at, client.get("/readyz").text


@pytest.mark.slow
def test_a_flood_in_the_background_leaves_others_their_share(client: httpx2.Client) -> None:
    flood = [ask(client, ENDLESS, background=True)["id"] for _ in range(FLOOD)]
    until_queued(client, CLAIMED_AHEAD)
    for _ in range(10):
        assert ask(client, SHORT, store=False)["status"] == "completed"
        assert queued(client) == CLAIMED_AHEAD
    body = {"model": MODEL, "input": ENDLESS, "stream": True, "store": False}
    with client.stream("POST", "/v1/responses", json=body) as stream:
        said = stream.iter_bytes()
        next(said)
        # All slots are taken now. Whoever ends is followed by who waits in the better class.
        with client.stream("POST", "/v1/responses", json={**body, "input": SHORT}) as waiting:
            assert client.get("/readyz").json()["admission"]["queued"]["default"] == 1
            client.post(f"/v1/responses/{flood[0]}/cancel").raise_for_status()
            events = "".join(waiting.iter_text())
        assert "event: response.completed" in events
    until_queued(client, CLAIMED_AHEAD)
