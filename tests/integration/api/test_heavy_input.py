"""Input made to be slow: a megabyte of one kind of character, and requests of many parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.api.bodies import MODEL, create

if TYPE_CHECKING:
    import httpx2

MEGABYTE = 1_000_000
SHAPES = {
    "letter": "a",
    "space": " ",
    "newline": "\n",
    "cjk": "中",
    "emoji": "😀",
    "combining": "e\u0301",
    "dash": "-",
    "equals": "=",
    "digit": "7",
    "pair": "ab",
    "arabic": "ش",
    "zero width": "\u200b",
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_megabyte_of_anything_is_answered_or_refused(
    client: httpx2.AsyncClient, shape: str
) -> None:
    unit = SHAPES[shape]
    text = unit * (MEGABYTE // len(unit.encode()))
    body = {"model": MODEL, "input": text, "store": False, "max_output_tokens": 16}
    answer = await client.post("/v1/responses", json=body)
    assert answer.status_code in {200, 400, 413}, answer.text


@pytest.mark.slow
async def test_a_long_conversation_is_rendered_whole(client: httpx2.AsyncClient) -> None:
    turns = [
        {"role": role, "content": f"message {number}"}
        for number in range(400)
        for role in ("user", "assistant")
    ]
    response = await create(client, input=[*turns, {"role": "user", "content": "end"}])
    assert response["usage"]["input_tokens"] > 800 * 5
    page = await client.get(
        f"/v1/responses/{response['id']}/input_items", params={"limit": 100, "order": "asc"}
    )
    assert page.json()["has_more"] is True
    assert len(page.json()["data"]) == 100
