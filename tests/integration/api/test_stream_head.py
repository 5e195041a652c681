"""HEAD of a stream: its headers, and nobody who waits for its end."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from tests.integration.api.following import created, id_in, resumed, taken

if TYPE_CHECKING:
    import httpx2


async def test_the_head_of_a_stream_that_goes_on_is_there_at_once(
    client: httpx2.AsyncClient,
) -> None:
    frames = created(client, input="[[sim tokens=100000 tokens_per_s=20]]")
    response_id = id_in(await taken(frames, lambda _: True))
    path = f"/v1/responses/{response_id}"
    answer = await client.head(path, params={"stream": "true"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    async with aclosing(resumed(client, response_id)) as stream:  # type: ignore[type-var]
        assert "response.created" in await anext(stream)
    assert (await client.post(f"{path}/cancel")).status_code == 200
