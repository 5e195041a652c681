"""What can be done with a response: retrieved, deleted, cancelled, listed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.asking import (
    BREAKS_OFF,
    BRIEF,
    ENDLESS,
    MODEL,
    UNKNOWN,
    created,
    listed,
    path_of,
)
from tests.fakes.stream import stream

if TYPE_CHECKING:
    import httpx2

    from tests.conformance.checking import Json

requirement = pytest.mark.requirement


@pytest.mark.slow
@requirement("retrieve.body")
@requirement("modes.stored-body")
async def test_what_was_sent_is_returned(client: httpx2.AsyncClient) -> None:
    response = await created(client)
    assert (await client.get(path_of(response))).json() == response


@requirement("retrieve.not-found")
@requirement("modes.unstored")
@pytest.mark.parametrize("store", [True, False])
async def test_what_is_not_there_is_named(client: httpx2.AsyncClient, store: bool) -> None:
    response = {"id": UNKNOWN} if store else await created(client, store=False)
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        answer = await client.request(method, path_of(response) + path)
        assert answer.status_code == 404
        message = answer.json()["error"]["message"]
        assert message.startswith(f"Response with id '{response['id']}' not found.")


@requirement("delete.body")
@requirement("delete.afterwards")
async def test_what_is_deleted_is_gone(client: httpx2.AsyncClient) -> None:
    response = await created(client)
    gone = await client.request("DELETE", path_of(response), headers={"accept": "*/*"})
    assert gone.json() == {"id": response["id"], "object": "response", "deleted": True}
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items")):
        assert (await client.request(method, path_of(response) + path)).status_code == 404


@pytest.mark.slow
@requirement("background.in-flight-is-not-deleted")
@requirement("cancel.empty-body")
@requirement("cancel.running")
@requirement("cancel.twice")
async def test_a_running_response_is_cancelled_and_then_deleted(client: httpx2.AsyncClient) -> None:
    running = await created(client, ENDLESS, background=True)
    refused = await client.delete(path_of(running))
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("Cannot delete an in-flight response.")
    headers = {"content-type": "application/json"}
    answers = [await client.post(f"{path_of(running)}/cancel", headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    first, second = [answer.json() for answer in answers]
    assert first == second
    assert (first["status"], first["completed_at"]) == ("cancelled", None)
    assert (await client.delete(path_of(running))).status_code == 200


@requirement("cancel.finished")
@pytest.mark.parametrize(
    ("said", "fields", "message"),
    [
        (BRIEF, {}, "Cannot cancel a completed response."),
        (BREAKS_OFF, {}, "Cannot cancel a failed response."),
        (
            "[[sim tokens=99]]",
            {"max_output_tokens": 50},
            "Cannot cancel a response in terminal state.",
        ),
    ],
)
async def test_what_has_ended_says_how(
    client: httpx2.AsyncClient, said: str, fields: Json, message: str
) -> None:
    body = {"model": MODEL, "input": said, "background": True, **fields}
    response = (await stream(client, body))[-1]["response"]
    answer = await client.post(f"{path_of(response)}/cancel")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)


@requirement("cancel.synchronous")
async def test_that_it_is_synchronous_is_said_first(client: httpx2.AsyncClient) -> None:
    answer = await client.post(f"{path_of(await created(client))}/cancel")
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message.startswith("Cannot cancel a synchronous response.")


@requirement("input-items.body")
@requirement("input-items.limit")
@requirement("input-items.order")
@requirement("input-items.after")
@requirement("input-items.ids")
async def test_items_are_paged(client: httpx2.AsyncClient) -> None:
    said = [{"role": "user", "content": str(number)} for number in range(21)]
    response = await created(client, said)
    path = f"{path_of(response)}/input_items"
    page = (await client.get(path)).json()
    assert list(page) == ["object", "data", "first_id", "last_id", "has_more"]
    assert (page["object"], len(page["data"]), page["has_more"]) == ("list", 20, True)
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
    assert page["data"][0]["content"][0]["text"] == "20"
    rest = (await client.get(path, params={"after": page["last_id"]})).json()
    assert ([item["content"][0]["text"] for item in rest["data"]], rest["has_more"]) == (
        ["0"],
        False,
    )
    walked: list[str] = []
    params: dict[str, Any] = {"limit": 1, "order": "asc"}
    while len(walked) < len(said):
        one = (await client.get(path, params=params)).json()
        walked += [item["id"] for item in one["data"]]
        params["after"] = one["last_id"]
        assert one["has_more"] == (len(walked) < len(said))
    assert len(set(walked)) == len(said)


@requirement("input-items.whole-context")
async def test_instructions_are_no_item(client: httpx2.AsyncClient) -> None:
    first = await created(client, "one", instructions="Be brief.")
    second = await created(client, "two", instructions="Be long.", previous_response_id=first["id"])
    items = await listed(client, second)
    assert [item["type"] for item in items] == ["message", "reasoning", "message", "message"]
    assert "Be " not in str([item["content"] for item in items if item.get("role") == "user"])


@requirement("replay.only-background-streams")
@pytest.mark.parametrize(
    ("fields", "how"),
    [
        ({}, "background=true"),
        ({"stream": True}, "background=true"),
        ({"background": True}, "stream=true"),
    ],
)
async def test_a_replay_says_what_it_would_have_needed(
    client: httpx2.AsyncClient, fields: Json, how: str
) -> None:
    if "stream" in fields:
        response = (await stream(client, {"model": MODEL, "input": BRIEF}))[-1]["response"]
    else:
        response = await created(client, **fields)
    answer = await client.get(path_of(response), params={"stream": "true"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "stream")
    assert error["message"].startswith(
        f"This response cannot be streamed because it was not created with {how}."
    )


@pytest.mark.slow
@requirement("replay.nothing-left")
@requirement("replay.from-the-start")
async def test_a_replay_is_the_rest_of_the_stream(client: httpx2.AsyncClient) -> None:
    body = {"model": MODEL, "input": BRIEF, "background": True, "stream": True}
    whole = (await client.post("/v1/responses", json=body)).text
    response_id = whole.split('"id":"', 1)[1].split('"', 1)[0]
    path = f"/v1/responses/{response_id}?stream=true"
    assert (await client.get(path)).text == whole
    frames = whole.split("\n\n")
    for place in range(len(frames) - 2):
        rest = (await client.get(f"{path}&starting_after={place}")).text
        assert rest == "\n\n".join(frames[place + 1 :])
    assert (await client.get(f"{path}&starting_after=9999")).text == "data: [DONE]\n\n"
