"""Connections in WebSocket mode, with frames that no client should send among those it should."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, get_args

from openai.types.responses import ResponseStreamEvent
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.fakes.websocket import is_end
from tests.fuzz.judge import LEAKS, STATUSES
from tests.fuzz.mutations import ODD
from tests.fuzz.targets import MODEL

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from websockets.asyncio.client import ClientConnection

    from tests.fuzz.targets import Asker

ANSWER_WAIT_S: Final = 60.0
FRAMES_MAX: Final = 8
LAST: Final = "last"
"""The lane of the frame after which a client leaves: the answer to it is waited for."""
END: Final = {
    "type": "response.create",
    "stream_id": LAST,
    "model": MODEL,
    "store": False,
    "input": "go",
}
FIELDS: Final[dict[str, tuple[Any, ...]]] = {
    "type": (*("response.create",) * 30, "response.steer", "response.cancel", *ODD),
    "stream_id": (*("a", "b") * 30, "x" * 256, "x" * 257, *ODD),
    "generate": (False, True, None, "true"),
}
FIELD_SHARE: Final[dict[str, float]] = {"type": 0.98, "stream_id": 0.5, "generate": 0.2}
CLOSES: Final = frozenset({1000, 1002, 1007, 1009, 3000})
"""How a connection may end here: none of these says that the server had an error."""
EVENTS: Final = frozenset(
    kind
    for member in get_args(get_args(ResponseStreamEvent)[0])
    for kind in get_args(member.model_fields["type"].annotation)
)


class Sockets:
    """One client at a time of `url`. `closes` counts how connections ended."""

    def __init__(self, url: str, key: str) -> None:
        self._address = f"{url.replace('http', 'ws', 1)}/v1/responses"
        self._headers = {"authorization": f"Bearer {key}"}
        self.closes: Counter[int] = Counter()
        self.findings: list[str] = []

    async def visit(self, dice: random.Random, asker: Asker) -> None:
        """Say something, hear what comes of it, and see that the connection comes to an end."""
        lanes: dict[str | None, int] = {}
        try:
            async with (
                asyncio.timeout(ANSWER_WAIT_S),
                # With a bound on its queue this client may stop reading, and never go on to close.
                connect(
                    self._address, additional_headers=self._headers, proxy=None, max_queue=None
                ) as connection,
            ):
                with suppress(ConnectionClosed):
                    await self._talk(connection, dice, asker, lanes)
                await connection.close(dice.choice((1000, 3000)))
        except TimeoutError:
            self.findings.append(f"a connection without an end within {ANSWER_WAIT_S:g} s")
            return
        code = connection.close_code or 0
        self.closes[code] += 1
        if code not in CLOSES:
            self.findings.append(f"closed with {code} {connection.close_reason}")

    async def _talk(
        self,
        connection: ClientConnection,
        dice: random.Random,
        asker: Asker,
        lanes: dict[str | None, int],
    ) -> None:
        for _ in range(dice.randrange(FRAMES_MAX)):
            frame = _frame(dice, asker)
            pieces = list(_pieces(dice, frame)) if dice.random() < 0.3 else frame
            await connection.send(pieces, text=dice.random() < 0.97)
            if dice.random() < 0.1:
                await connection.ping()
        await connection.send(json.dumps(END))
        is_last = False
        while not is_last:
            text = await connection.recv()
            if fault := fault_of(text, lanes):
                self.findings.append(f"{fault}: {text[:600]!r}")
                return
            frame = json.loads(text)
            is_last = frame.get("stream_id") == LAST and is_end(frame)


def _frame(dice: random.Random, asker: Asker) -> bytes:
    body = asker.create().body
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if not isinstance(document, dict):
        return body
    chosen = {
        name: dice.choice(values)
        for name, values in FIELDS.items()
        if dice.random() < FIELD_SHARE[name]
    }
    return json.dumps(document | chosen).encode()


def _pieces(dice: random.Random, frame: bytes) -> Iterator[bytes]:
    """The fragments of one frame, empty ones among them."""
    start = 0
    while start < len(frame):
        size = dice.choice((0, 1, 100, 5000))
        yield frame[start : start + size]
        start += size


def fault_of(text: str | bytes, lanes: dict[str | None, int]) -> str | None:
    """What is wrong with a frame; None for a good one.

    `lanes` has the last sequence number of each one's response, none between two of them.
    """
    if isinstance(text, bytes):
        return "a binary frame"
    if any(leak.decode() in text for leak in LEAKS):
        return "it shows its inside"
    frame = json.loads(text)
    match frame["type"]:
        case "error" if "sequence_number" not in frame:
            return _refusal_fault(frame)
        case "response.steer.failed":
            return None if "input" in frame["steer"] else "a steer that is not given back"
        case _:
            return _event_fault(frame, lanes)


def _refusal_fault(frame: dict[str, Any]) -> str | None:
    error = frame["error"]
    if frame["status"] not in STATUSES:
        return "an undocumented status"
    is_whole = isinstance(error["code"], str) and error["type"] and error["message"]
    has_id = error["headers"]["x-request-id"].startswith("req_")
    return None if is_whole and has_id else "an error that is not whole"


def _event_fault(frame: dict[str, Any], lanes: dict[str | None, int]) -> str | None:
    if frame["type"] not in EVENTS:
        return "an undocumented event"
    lane = frame.get("stream_id")
    if frame["sequence_number"] != lanes.get(lane, -1) + 1:
        return "an event out of order"
    lanes[lane] = frame["sequence_number"]
    if is_end(frame):
        del lanes[lane]
    return None
