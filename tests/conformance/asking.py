"""Ask the gateway for responses, and look at them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

    from tests.conformance.checking import Json

MODEL = "gpt-oss-20b"
BRIEF = "[[sim think=2 say=ok]] go"
ENDLESS = "[[sim tokens_per_s=100 tokens=100000 think=none]] go"
BREAKS_OFF = "[[sim think=none tokens=99 die_after=20]] go"
UNKNOWN = "resp_" + "0" * 32
FUNCTION: Json = {"type": "function", "name": "f"}


async def post(client: httpx2.AsyncClient, said: Any = BRIEF, /, **fields: Any) -> httpx2.Response:
    """What a request is answered with, whatever that is."""
    return await client.post("/v1/responses", json={"model": MODEL, "input": said, **fields})


async def created(client: httpx2.AsyncClient, said: Any = BRIEF, /, **fields: Any) -> Json:
    """The body of a response."""
    answer = await post(client, said, **fields)
    assert answer.status_code == 200, answer.text
    response: Json = answer.json()
    return response


async def refused(
    client: httpx2.AsyncClient, said: Any = BRIEF, /, status: int = 400, **fields: Any
) -> Json:
    """The error of a request that is not served."""
    answer = await post(client, said, **fields)
    assert answer.status_code == status, answer.text
    error: Json = answer.json()["error"]
    return error


async def listed(client: httpx2.AsyncClient, response: Json) -> list[Json]:
    """What a response was asked, in its order."""
    page = await client.get(f"{path_of(response)}/input_items?order=asc&limit=100")
    items: list[Json] = page.json()["data"]
    return items


def path_of(response: Json) -> str:
    """Where a response is found again."""
    return f"/v1/responses/{response['id']}"


def user(text: str) -> Json:
    """A message."""
    return {"role": "user", "content": text}
