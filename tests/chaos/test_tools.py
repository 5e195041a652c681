"""What the checker of tools makes of calls that clients were told of."""

from __future__ import annotations

import orjson
import pytest

from tests.chaos.history import Connection, Frame
from tests.chaos.tools import unmade
from tests.chaos.truthful import transcript


def told_of(arguments: str) -> list[str]:
    """What is wrong where a client was told of a completed call, and `n0-0` took place."""
    call = {"type": "mcp_call", "status": "completed", "arguments": arguments}
    event = {"type": "response.completed", "response": {"output": [call]}}
    told = transcript()
    told.connections.append(Connection(1, -1, frames=[Frame(orjson.dumps(event), 0.0)]))
    return [anomaly.found for anomaly in unmade({"n0-0": 1}, (), [told])]


def test_a_call_that_took_place_is_no_anomaly() -> None:
    assert told_of('{"name": "n0-0"}') == []


@pytest.mark.parametrize("arguments", ['{"name": "n0-1"}', '{"name": "n0-0"x', "{}", "[]"])
def test_a_call_that_names_no_effect_that_took_place_is_one(arguments: str) -> None:
    """Two writers at one log may spell anything."""
    (found,) = told_of(arguments)
    assert "did not take place" in found
