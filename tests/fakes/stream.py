"""Read a stream of server-sent events as a client does, and check its frame by frame rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from gateway.protocol.stream_events import Event

if TYPE_CHECKING:
    from collections.abc import Generator

    import httpx2

DONE = "[DONE]"


def parse_stream(body: str) -> list[dict[str, Any]]:
    """The events of a whole stream.

    Fails unless every frame is `event:` and `data:` with LF only, the event's name is its type,
    numbers have no gap, and the end mark comes last.
    """
    assert "\r" not in body
    frames = body.split("\n\n")
    assert frames.pop() == ""
    assert frames.pop() == f"data: {DONE}"
    events = []
    for number, frame in enumerate(frames):
        name, data = frame.split("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        events.append(event)
    return events


def as_events(parsed: list[dict[str, Any]]) -> list[Event]:
    """The same, padding left out, as `event_grammar.check_stream` reads them."""
    bare = [
        {key: value for key, value in event.items() if key != "obfuscation"} for event in parsed
    ]
    return [
        Event(
            event["type"],
            event["sequence_number"],
            orjson.dumps(event),
            delta_length=len(event.get("delta", "")),
        )
        for event in bare
    ]


async def stream(client: httpx2.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Create a streamed response and return its events."""
    answer = await client.post("/v1/responses", json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    return parse_stream(answer.text)


def texts(response: dict[str, Any]) -> list[str]:
    """The text of every message, in order."""
    return [
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    ]


def frames_of(
    client: httpx2.Client, method: str, url: str, **request: Any
) -> Generator[str, None, None]:
    """The frames of a stream, keep-alives left out; close it to hang up."""
    with client.stream(method, url, **request) as answer:
        assert answer.status_code == 200, answer.read()
        pending = ""
        for text in answer.iter_text():
            *whole, pending = (pending + text).split("\n\n")
            yield from (f"{frame}\n\n" for frame in whole if not frame.startswith(":"))
