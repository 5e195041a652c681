"""`store`, `background` and `stream` in all combinations: the answer, and what there is then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.fakes.stream import parse_stream
from tests.integration.api.bodies import MODEL, refused
from tests.integration.api.following import ended

if TYPE_CHECKING:
    import httpx2

UNSTORED = (404, 404, 404, 404)


class Uses(NamedTuple):
    """The statuses of what can be done with a response that has ended."""

    retrieved: int
    streamed: int
    cancelled: int
    listed: int


@pytest.mark.requirement("modes.stored-body")
@pytest.mark.requirement("modes.stored-stream")
@pytest.mark.requirement("modes.background-body")
@pytest.mark.requirement("modes.background-stream")
@pytest.mark.requirement("modes.unstored")
@pytest.mark.requirement("create.store")
@pytest.mark.requirement("cancel.synchronous")
@pytest.mark.requirement("delete.afterwards")
@pytest.mark.parametrize(
    ("store", "background", "stream", "uses"),
    [
        (True, False, False, Uses(200, 400, 400, 200)),
        (True, False, True, Uses(200, 400, 400, 200)),
        (True, True, False, Uses(200, 400, 400, 200)),
        (True, True, True, Uses(200, 200, 400, 200)),
        (False, False, False, Uses(*UNSTORED)),
        (False, False, True, Uses(*UNSTORED)),
    ],
)
async def test_what_can_be_done_with_a_response_that_has_ended(
    client: httpx2.AsyncClient, store: bool, background: bool, stream: bool, uses: Uses
) -> None:
    modes = {"store": store, "background": background, "stream": stream}
    response = await over(client, modes)
    assert response["status"] == "completed"
    assert (response["store"], response["background"]) == (store, background)
    path = f"/v1/responses/{response['id']}"
    assert uses == Uses(
        retrieved=(await client.get(path)).status_code,
        streamed=(await client.get(path, params={"stream": "true"})).status_code,
        cancelled=(await client.post(f"{path}/cancel")).status_code,
        listed=(await client.get(f"{path}/input_items")).status_code,
    )
    deleted = [(await client.delete(path)).status_code for _ in range(2)]
    assert deleted == [200 if store else 404, 404]


@pytest.mark.requirement("background.needs-store")
@pytest.mark.requirement("create.background")
@pytest.mark.parametrize("stream", [False, True])
async def test_in_the_background_only_what_is_stored_is_generated(
    client: httpx2.AsyncClient, stream: bool
) -> None:
    modes: dict[str, Any] = {"store": False, "background": True, "stream": stream}
    error = await refused(client, 400, input="x", **modes)
    assert (error["code"], error["param"]) == ("unsupported_parameter", "background")


async def over(client: httpx2.AsyncClient, modes: dict[str, bool]) -> dict[str, Any]:
    """The response of a request in these modes, once it is over."""
    body = {"model": MODEL, "input": "[[sim think=2 say=ok]]", **modes}
    answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 200
    if modes["stream"]:
        assert answer.headers["content-type"].startswith("text/event-stream")
        last: dict[str, Any] = parse_stream(answer.text)[-1]["response"]
        return last
    response: dict[str, Any] = answer.json()
    if modes["background"]:
        assert response["status"] in {"queued", "in_progress"}
        return await ended(client, response["id"])
    return response
