"""The simulated server of the demo and of `harmony-gateway simulate`, without what tests add."""

from __future__ import annotations

import pytest

from gateway.simulator.completion_wire import SimulatorOptions
from gateway.simulator.simulated_server import create_simulator
from tests.fakes.http_client import http_client
from tests.fakes.raw_http import completion_body, plain_prompt
from tests.fakes.serving import serving
from tests.fakes.simulated_conversation import continuation


async def test_it_says_the_script_and_ignores_what_it_does_not_know() -> None:
    body = {**completion_body("Hello"), "stream": False, "seed": "any", "structured_outputs": {}}
    async with serving(create_simulator(SimulatorOptions())) as url, http_client() as client:
        answer = (await client.post(f"{url}/v1/completions", json=body)).json()
        metrics = (await client.get(f"{url}/metrics")).text
    assert answer["choices"][0]["token_ids"] == continuation(plain_prompt("Hello"))
    assert answer["usage"]["prompt_tokens"] == len(plain_prompt("Hello"))
    assert 'vllm:num_requests_running{engine="0",model_name="gpt-oss-20b"} 0\n' in metrics


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"prompt": "words"}, 400),
        ({"prompt": []}, 400),
        ({"prompt": [1] * 200}, 400),
        ({"model": "another"}, 404),
        ({"max_tokens": 0}, 400),
    ],
)
async def test_it_refuses_what_it_cannot_answer(fields: dict[str, object], status: int) -> None:
    body = {**completion_body("Hello"), **fields}
    options = SimulatorOptions(context_length=100)
    async with serving(create_simulator(options)) as url, http_client() as client:
        answer = await client.post(f"{url}/v1/completions", json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == status
