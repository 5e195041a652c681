"""Streams as clients read them that split text into lines as Python does, not as SSE has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.integration.api.bodies import MODEL, WEATHER
from tests.integration.api.following import created, data_of, id_in, listed, resumed

if TYPE_CHECKING:
    import httpx2

LINE_ENDS = "a\u2028b\u2029c\x85d"
INPUT = f"[[sim say={LINE_ENDS}]]"
CALL = f'[[sim call=get_weather arguments={{"location": "{LINE_ENDS}"}}]]'
CHAT_TOOL = {"type": "function", "function": {k: WEATHER[k] for k in ("name", "parameters")}}


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


async def read_by_line(
    client: httpx2.AsyncClient, path: str, body: dict[str, Any]
) -> list[dict[str, Any]]:
    """The JSON of every line with data."""
    async with client.stream("POST", path, json={"model": MODEL, "stream": True, **body}) as answer:
        assert answer.status_code == 200
        lines = [line async for line in answer.aiter_lines()]
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    assert all(line.startswith(("event: ", "data: ", ":")) for line in lines if line)
    return [orjson.loads(line) for line in data]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "x", "instructions": LINE_ENDS}),
        ("/v1/responses", {"input": INPUT, "store": False}),
        ("/v1/responses", {"input": CALL, "tools": [WEATHER]}),
        ("/openresponses/v1/responses", {"input": INPUT, "instructions": LINE_ENDS}),
        ("/v1/chat/completions", chat(INPUT)),
        ("/v1/chat/completions", chat(CALL, tools=[CHAT_TOOL])),
        ("/v1/completions", {"prompt": INPUT}),
    ],
)
async def test_no_character_of_a_text_ends_a_line(
    client: httpx2.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    told = await read_by_line(client, path, body)
    assert told


async def test_a_replay_has_the_bytes_of_the_live_stream(client: httpx2.AsyncClient) -> None:
    body = {"input": INPUT, "instructions": LINE_ENDS, "metadata": {"a": LINE_ENDS}}
    live = await listed(created(client, None, **body))
    assert "".join(live).splitlines() == "".join(live).split("\n")[:-1]
    assert data_of(live[-2])["response"]["instructions"] == LINE_ENDS
    response_id = id_in(live)
    assert await listed(resumed(client, response_id)) == live
    assert await listed(resumed(client, response_id, 3)) == live[4:]
