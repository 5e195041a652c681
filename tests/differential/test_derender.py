"""The parsers of chat formats against a real vLLM's `derender`, plain and streamed.

TEST_VLLM_CHAT_URL is a server with a model that has the tokenizer tests/data/tokenizers/
tiny_qwen3.json, started with `--enable-scale-out --reasoning-parser qwen3 --enable-auto-tool-choice
--tool-call-parser hermes`.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx2
import pytest

from gateway.models.chat.tokenizer import Vocabulary
from tests.differential.turns import FAMILIES, TOOLS, Comparison, Turns

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

URL: Final = os.environ.get("TEST_VLLM_CHAT_URL", "")
TURNS: Final = int(os.environ.get("TEST_DERENDER_TURNS", "1000"))
SEED: Final = int(os.environ.get("TEST_CHAT_SEED", "17"))
STREAMED_OF: Final = 10
FAMILY: Final = "hermes"
TOKENIZER: Final = Path(__file__).parents[1] / "data" / "tokenizers" / "tiny_qwen3.json"


@pytest.mark.skipif(not URL, reason="TEST_VLLM_CHAT_URL is not set")
def test_turns_are_read_as_a_server_derenders_them() -> None:
    known = Vocabulary.load(TOKENIZER)
    turns, compared = Turns(FAMILIES[FAMILY], known, random.Random(SEED)), Comparison()
    with httpx2.Client(base_url=URL, timeout=60, trust_env=False) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        for at in range(TURNS):
            ids = turns.new() or [65]
            answers = [plain(client, model, ids)]
            if at % STREAMED_OF == 0:
                answers.append(streamed(client, model, ids))
            compared.add(FAMILY, known, ids, answers)
    compared.check()


def asked(model: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "x"}], "tools": TOOLS}


def answer(client: httpx2.Client, body: dict[str, Any]) -> dict[str, Any]:
    reply = client.post("/v1/chat/completions/derender", json=body)
    assert reply.status_code == 200, reply.text
    made: dict[str, Any] = reply.json()
    return made


def plain(client: httpx2.Client, model: str, ids: Sequence[int]) -> list[Any]:
    choice = {"index": 0, "token_ids": list(ids), "finish_reason": "stop"}
    response = {"request_id": "r", "choices": [choice]}
    body = {"model": model, "generate_response": response, "chat_request": asked(model)}
    message = answer(client, body)["choices"][0]["message"]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    named = [[call["name"], call["arguments"]] for call in calls]
    return [message.get("reasoning"), message["content"], named]


def streamed(client: httpx2.Client, model: str, ids: Sequence[int]) -> list[Any]:
    """One call for each id; the state goes to and fro."""
    said, calls, state = ["", ""], list[list[str]](), None
    for at, token in enumerate(ids):
        finish = "stop" if at == len(ids) - 1 else None
        choice = {"index": 0, "token_ids": [token], "finish_reason": finish}
        body: dict[str, Any] = {
            "model": model,
            "stream": True,
            "generate_chunk": {"request_id": "r", "choices": [choice]},
            "prompt_token_ids": [],
            "chat_request": {**asked(model), "stream": True},
            "stream_state": state,
        }
        made = answer(client, body)
        state = made["stream_state"]
        for told in (made.get("chunk") or {}).get("choices") or ():
            delta = told["delta"]
            said[0] += delta.get("reasoning") or ""
            said[1] += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                calls += [["", ""] for _ in range(call["index"] + 1 - len(calls))]
                function = call.get("function") or {}
                calls[call["index"]][0] += function.get("name") or ""
                calls[call["index"]][1] += function.get("arguments") or ""
    return [*said, calls]
