"""Grammars are compiled beside the event loop, and once."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from gateway.simulator.completion_wire import SimulatedError
from tests.fakes.wayward_engine import constraint_fields
from tests.fakes.wayward_engine.engine import WaywardEngine
from tests.fakes.wayward_engine.options import WaywardOptions


def body(**fields: Any) -> bytes:
    return orjson.dumps({"model": "gpt-oss-20b", "prompt": [1, 2, 3], "max_tokens": 9, **fields})


@pytest.fixture
def engine() -> WaywardEngine:
    return WaywardEngine(WaywardOptions())


@pytest.mark.parametrize(
    ("fields", "is_beside"),
    [
        ({}, False),
        ({"structured_outputs": {"regex": "[a-z]{3}"}}, True),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, True),
    ],
)
async def test_the_loop_goes_on_while_a_grammar_is_compiled(
    engine: WaywardEngine, fields: dict[str, Any], is_beside: bool
) -> None:
    reading = asyncio.ensure_future(engine.read(body(**fields)))
    await asyncio.sleep(0)
    assert reading.done() is not is_beside
    assert ((await reading).constraint is not None) is is_beside


async def test_a_grammar_is_compiled_once(engine: WaywardEngine) -> None:
    constraint_fields._kept_grammar.cache_clear()
    for _ in range(3):
        await engine.read(body(structured_outputs={"choice": ["a", "b"]}))
    assert constraint_fields._kept_grammar.cache_info().misses == 1
    long = {"choice": ["x" * constraint_fields._KEPT_BYTES_MAX]}
    assert (await engine.read(body(structured_outputs=long))).constraint is not None
    assert constraint_fields._kept_grammar.cache_info().currsize == 1


async def test_what_is_wrong_is_refused_as_before(engine: WaywardEngine) -> None:
    with pytest.raises(SimulatedError, match="specification"):
        await engine.read(body(structured_outputs={"regex": 3}))
