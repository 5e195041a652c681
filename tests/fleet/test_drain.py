"""An operator takes a server away while it says something."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests.fakes.gateway import PEPPER
from tests.fleet.test_killed_server import read
from tests.vllm.asking import LONG_ASKED

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fleet.conftest import Fleet

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

STREAMS = 8
BEHIND = 8


async def test_its_streams_end_there_and_nothing_new_begins(fleet: Fleet, tmp_path: Path) -> None:
    begun = [asyncio.Event() for _ in range(STREAMS)]
    reading = [
        asyncio.create_task(read(fleet, event, input=f"{LONG_ASKED} {n}"))
        for n, event in enumerate(begun)
    ]
    await asyncio.gather(*(event.wait() for event in begun))
    pool = fleet.gateways[0].process.foundation.pool
    number = max(range(len(fleet.recorders)), key=lambda one: pool.in_flight()[f"b{one}"])
    under_way = pool.in_flight()[f"b{number}"]
    assert under_way
    draining = asyncio.create_task(run(fleet, tmp_path, "drain", f"b{number}", "--wait"))
    await fleet.until(lambda one: one.is_drained == (one.name == f"b{number}"))
    before = len(fleet.recorders[number].exchanges)
    for n in range(BEHIND):
        asked = {"model": fleet.model, "input": "Hi", "max_output_tokens": 16}
        answer = await fleet.clients[n % len(fleet.clients)].post("/v1/responses", json=asked)
        assert answer.status_code == 200, answer.text
    code, told = await draining
    left = pool.in_flight()[f"b{number}"]
    print(f"drained with {under_way} under way: {told}")
    assert (code, left) == (0, 0), told
    assert len(fleet.recorders[number].exchanges) == before
    assert {(await one).response["status"] for one in reading} <= {"completed", "incomplete"}
    _, told = await run(fleet, tmp_path, "list", "--json")
    states = {row["name"]: row["state"] for row in json.loads(told)["backends"]}
    assert states.pop(f"b{number}") == "drained"
    assert set(states.values()) == {"healthy"}
    assert (await run(fleet, tmp_path, "undrain", f"b{number}"))[0] == 0
    await fleet.until(lambda one: not one.is_drained)


async def run(fleet: Fleet, folder: Path, *arguments: str) -> tuple[int | None, str]:
    """What `harmony-gateway backends …` ends with, and prints."""
    config = folder / "gateway.yaml"
    backends = [{"name": one.name, "url": one.url} for one in fleet.settings.backends]
    config.write_text(json.dumps({"backends": backends}))
    url = fleet.settings.database.url
    assert url is not None
    environment = {"DATABASE_URL": url.get_secret_value(), "GATEWAY_AUTH__KEY_PEPPER": PEPPER}
    command = [sys.executable, "-m", "gateway", "backends", *arguments, "--config", str(config)]
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode()
