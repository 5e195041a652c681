"""Turns that stop at a preamble, and channels that nobody knows, over HTTP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gateway.settings.sections import Model
from tests.fakes.controlled import site
from tests.fakes.harmony_script import script_ids
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.controlled import Site
    from tests.fakes.postgres import PostgresServer

Json = dict[str, Any]

BASE, ADAPTER = "gpt-oss-20b", "ad"
SCRIPTS = {
    "preamble": "<|channel|>analysis<|message|>plan<|end|><|start|>assistant"
    "<|channel|>commentary<|message|>I will look at the folder now.<|return|>",
    "thoughts": "<|channel|>thoughts<|message|>x<|end|>"
    "<|start|>assistant<|channel|>final<|message|>hi<|return|>",
}
TOOL: Json = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module", params=[True, False], ids=["going on", "stopping"])
async def where(
    request: pytest.FixtureRequest,
    postgres: PostgresServer,
    template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Site]:
    """A backend without grammars that says what is in `SCRIPTS`."""
    path = tmp_path_factory.mktemp("unfinished") / "corpus.jsonl"
    lines = [
        json.dumps({"id": name, "ids": script_ids(script), "finish": "stop"})
        for name, script in SCRIPTS.items()
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    silent = WaywardOptions(version="0.10.2", corpus_path=path, adapters=(ADAPTER,))
    model = Model(id=BASE, adapters=True, continue_preambles=request.param)
    async with site(postgres, template, silent, models=(model,)) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("model", [BASE, ADAPTER])
async def test_a_turn_that_stops_at_a_preamble_goes_on_unless_its_model_may_stop_there(
    where: Site, model: str, request: pytest.FixtureRequest
) -> None:
    shown = await where.everywhere(
        model=model, input="corpus:preamble [[sim call=f]]", tools=[TOOL]
    )
    goes_on = "going on" in request.node.callspec.id
    asked = await where.backends.of_response(shown.background_id)
    assert len(asked) == 1 + goes_on
    first, preamble, *rest = shown.response["output"]
    assert (first["type"], preamble["phase"]) == ("reasoning", "commentary")
    assert any(item["type"] == "function_call" for item in rest) == goes_on
    assert shown.response["status"] == "completed"


async def test_a_preamble_is_the_end_where_the_request_offers_no_call(where: Site) -> None:
    for body in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        response = await where.post(model=BASE, input="corpus:preamble", **body)
        assert response["status"] == "completed"
        assert len(await where.backends.of_response(response["id"])) == 1


async def test_an_unknown_channel_before_an_answer_is_read_and_paid_for(where: Site) -> None:
    shown = await where.everywhere(model=BASE, input="corpus:thoughts", recounts=False)
    thought, answer = shown.response["output"]
    assert thought["content"][0]["text"] == "x"
    assert answer["content"][0]["text"] == "hi"
    assert shown.response["usage"]["output_tokens"] == len(script_ids(SCRIPTS["thoughts"]))
    assert len(await where.backends.of_response(shown.background_id)) == 1
