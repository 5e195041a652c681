"""WebSocket clients that store nothing: what a connection remembers is gone with it.

They go on from what was said last, and send everything again where that is not known any more.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from tests.chaos.history import Anomaly
from tests.chaos.oracle import THINK_IDS, WORDS
from tests.chaos.prompts import shown_for
from tests.chaos.readers import MODEL, PAUSE_S, created_id
from tests.chaos.sockets import Socket
from tests.chaos.talkers import end_in
from tests.chaos.wire import json_body

if TYPE_CHECKING:
    from random import Random
    from uuid import UUID

    from tests.chaos.history import Connection
    from tests.chaos.prompts import Prompts, Shown
    from tests.chaos.readers import Clients
    from tests.chaos.witness import Item

NOT_FOUND: Final = "previous_response_not_found"
CONTEXT_MAX: Final = 40
"""Items after which a session begins anew."""
_DOWN: Final = (0, 200, 429, 503)


@dataclass(slots=True)
class Sessions:
    """What all of them saw: the prompt that each response must have had, and what was wrong."""

    expected: dict[UUID, Shown] = field(default_factory=dict)
    anomalies: list[Anomaly] = field(default_factory=list)
    turns: int = 0
    recoveries: int = 0

    def compare(self, prompts: Prompts) -> list[Anomaly]:
        """What was wrong, and the prompts that are not those that they should have been."""
        return self.anomalies + [
            Anomaly("session", ids.response_id(response), "its prompt is not what the client knows")
            for response, expected in self.expected.items()
            for shown in prompts.of_responses.get(response, ())
            if shown != expected
        ]


class Session:
    """One client. `name` makes what it says its own."""

    def __init__(self, name: str, clients: Clients, rng: Random, seen: Sessions) -> None:
        self._name = name
        self._socket = Socket(clients)
        self._rng = rng
        self._seen = seen
        self._context: list[Item] = []
        self._previous: str | None = None
        self._is_remembered = False

    async def go_on(self, over: asyncio.Event, *, words: int, tokens_per_s: int) -> None:
        """One turn after the other until it is `over`."""
        try:
            while not over.is_set():
                if len(self._context) > CONTEXT_MAX:
                    self._context, self._previous = [], None
                say = " ".join([self._name, *self._rng.choices(WORDS, k=words)])
                text = f"[[sim think={THINK_IDS} tokens_per_s={tokens_per_s} say={say}]]"
                if not await self._turn(text, say):
                    await asyncio.sleep(PAUSE_S)
        finally:
            await self._socket.close()

    async def _turn(self, text: str, say: str) -> bool:
        """Whether it came to its end."""
        own = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        connection = await self._continued(own) if self._previous else None
        if connection is None:
            connection = await self._ask(input=[*self._context, own])
        if connection.status not in _DOWN:
            self._wrong(f"answered {connection.status}: {connection.body[:300]!r}")
        response_id = created_id(connection)
        if response_id and (uuid := ids.parse_response_id(response_id)):
            self._seen.expected[uuid] = shown_for([*self._context, own])
        told = end_in(connection)
        if told is None or told["status"] != "completed":
            self._is_remembered = False
            return False
        texts = [one["content"][0]["text"] for one in told["output"] if one["type"] == "message"]
        if texts != [say]:
            self._wrong(f"{told['id']} said {texts} instead of {say!r}")
        self._context += [own, *told["output"]]
        self._previous, self._is_remembered = told["id"], True
        self._seen.turns += 1
        return True

    async def _continued(self, own: Item) -> Connection | None:
        """Go on from what was said last; None when that is not known, and all must be sent."""
        was_open = self._socket.is_open
        connection = await self._ask(input=[own], previous_response_id=self._previous)
        code = json_body(connection)["error"]["code"] if connection.body else None
        if code == NOT_FOUND:
            if was_open and self._socket.is_open and self._is_remembered:
                self._wrong(f"{self._previous} was forgotten")
            self._seen.recoveries += 1
            return None
        if not was_open and connection.frames:
            self._wrong(f"{self._previous} was found by another connection")
        return connection

    async def _ask(self, **fields: Any) -> Connection:
        body = {"model": MODEL, "store": False, "include": ["reasoning.encrypted_content"]}
        return await self._socket.ask(body | fields)

    def _wrong(self, found: str) -> None:
        self._seen.anomalies.append(Anomaly("session", self._name, found))
