"""Clients that talk in shared conversations in all ways there are, and note what they were told."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from tests.chaos.history import Connection, Transcript, is_terminal
from tests.chaos.oracle import THINK_IDS, WORDS
from tests.chaos.readers import PAUSE_S, create, create_body, created_id, learn
from tests.chaos.sockets import Socket
from tests.chaos.wire import json_body

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from tests.chaos.readers import Clients
    from tests.chaos.witness import Item

Way = Literal["foreground", "background", "socket"]
Twist = Literal["none", "short", "cancel", "leave", "compact", "unstored"]
WAYS: Final[Sequence[Way]] = ("foreground", "background", "socket")
TWISTS: Final[Sequence[Twist]] = (
    *("none",) * 5,
    *("short", "short", "cancel", "leave", "compact", "unstored"),
)
SHORT_TOKENS: Final = (16, 40)
"""Where a response of so many tokens is cut off: between its thoughts and the end."""
LISTED: Final = 20
ADDED_MAX: Final = 3
TRIES_MAX: Final = 15
LOCKED: Final = "conversation_locked"
_DOWN: Final = (0, 429, 503)


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn to be asked for. `say` is what the scripted model answers; no two are alike."""

    conversation: str
    say: str
    way: Way
    twist: Twist
    streamed: bool
    key: str | None
    tokens_per_s: int
    tokens_max: int | None = None

    @property
    def text(self) -> str:
        """The user's message."""
        return f"[[sim think={THINK_IDS} tokens_per_s={self.tokens_per_s} say={self.say}]]"

    @property
    def stored(self) -> bool:
        """Whether it is to be added to the conversation."""
        return self.twist != "unstored"

    @property
    def fields(self) -> dict[str, Any]:
        """What else the body has."""
        said = {"role": "user", "content": self.text}
        ending = [{"type": "compaction_trigger"}] if self.twist == "compact" else []
        fields = {"conversation": self.conversation, "input": [said, *ending]}
        return fields | ({"max_output_tokens": self.tokens_max} if self.tokens_max else {})


@dataclass(slots=True)
class Telling:
    """A turn and what its client heard; `told` is the response as it ended, if it was told."""

    turn: Turn
    transcript: Transcript
    told: Item | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """The ids of the last items, newest first; `behind` is a response that had ended before."""

    conversation: str
    ids: tuple[str, ...]
    behind: str | None = None


@dataclass(frozen=True, slots=True)
class Deed:
    """Items were `added` or `erased` by hand, and that was acknowledged."""

    kind: Literal["added", "erased"]
    conversation: str
    ids: tuple[str, ...]


@dataclass(slots=True)
class Heard:
    """All that clients were told. `odd` are answers that nobody should get."""

    tellings: list[Telling] = field(default_factory=list)
    listings: list[Listing] = field(default_factory=list)
    deeds: list[Deed] = field(default_factory=list)
    odd: list[Connection] = field(default_factory=list)
    locked: int = 0


class Talker:
    """One client; `name` makes what it says its own."""

    def __init__(self, name: str, clients: Clients, rng: Random, heard: Heard) -> None:
        self._name = name
        self._clients = clients
        self._rng = rng
        self._heard = heard
        self._socket = Socket(clients)
        self._said = 0

    async def talk(
        self, conversations: Sequence[str], over: asyncio.Event, *, words: int, tokens_per_s: int
    ) -> None:
        """Do one thing after the other until it is `over`."""
        try:
            while not over.is_set():
                conversation = self._rng.choice(conversations)
                deed = self._rng.random()
                if deed < 0.15:
                    await self._add(conversation)
                elif deed < 0.3:
                    await self._erase(conversation)
                else:
                    turn = self.new_turn(conversation, words=words, tokens_per_s=tokens_per_s)
                    await self.take(turn, over.is_set)
        finally:
            await self._socket.close()

    def new_turn(self, conversation: str, *, words: int, tokens_per_s: int) -> Turn:
        """Any turn."""
        rng = self._rng
        way, twist = rng.choice(WAYS), rng.choice(TWISTS)
        if way == "background" and twist == "unstored":
            way = "foreground"
        if twist == "cancel":
            way = "background"
        has_key = way != "socket" and twist != "unstored" and rng.random() < 0.5
        return Turn(
            conversation,
            say=f"{self._new_name()} {' '.join(rng.choices(WORDS, k=rng.randint(3, words)))}",
            way=way,
            twist=twist,
            streamed=way == "socket" or twist == "leave" or rng.random() < 0.6,
            key=self._new_name() if has_key else None,
            tokens_per_s=tokens_per_s,
            tokens_max=rng.randint(*SHORT_TOKENS) if twist == "short" else None,
        )

    async def take(self, turn: Turn, is_over: Callable[[], bool] = lambda: False) -> Telling:
        """Ask until it is accepted, and hear how it ends if that can be heard.

        Nobody insists on a locked conversation when it `is_over`.
        """
        telling = Telling(turn, Transcript(turn, turn.stored))
        while self._clients.left_s:
            connection = await self._ask(turn)
            if _code(connection) == LOCKED:
                self._heard.locked += 1
                if is_over():
                    break
                await asyncio.sleep(self._rng.uniform(PAUSE_S, 3 * PAUSE_S))
                continue
            telling = self._noted(telling, connection)
            if not await self._is_to_be_repeated(telling):
                break
            await asyncio.sleep(PAUSE_S)
        self._heard.tellings.append(telling)
        if telling.told is not None and turn.stored and self._rng.random() < 0.5:
            await self._list(turn.conversation, behind=telling.transcript.response_id)
        return telling

    async def _ask(self, turn: Turn) -> Connection:
        stop = _after(self._rng.randrange(30)) if turn.twist == "leave" else _never
        body = create_body(
            turn, store=turn.stored, background=turn.way == "background", stream=turn.streamed
        )
        if turn.way == "socket":
            return await self._socket.ask(body, stop)
        connection = Connection(self._clients.anywhere())
        headers = {} if turn.key is None else {"idempotency-key": turn.key}
        await self._clients.stream(create(body, headers), connection, stop=stop)
        return _whole(connection)

    def _noted(self, telling: Telling, connection: Connection) -> Telling:
        """With this connection; another response begins where a key was free again."""
        found, transcript = created_id(connection), telling.transcript
        if found and transcript.response_id not in (None, found):
            self._heard.tellings.append(telling)
            telling = Telling(telling.turn, Transcript(telling.turn, telling.turn.stored))
            transcript = telling.transcript
        transcript.connections.append(connection)
        learn(transcript)
        telling.told = end_in(connection)
        return telling

    async def _is_to_be_repeated(self, telling: Telling) -> bool:
        """Having followed it as far as it can be followed; False: that is all there is."""
        turn, transcript = telling.turn, telling.transcript
        last = transcript.connections[-1]
        if telling.told is not None or last.left:
            return False
        if turn.way == "background" and transcript.response_id is not None:
            telling.told = await self._follow(turn, transcript)
            return False
        return last.status in (429, 503) or (turn.key is not None and last.status in (0, 200))

    async def _follow(self, turn: Turn, transcript: Transcript) -> Item | None:
        """The end of a background response, which is cancelled before if it should be."""
        path = f"/v1/responses/{transcript.response_id}"
        if turn.twist == "cancel":
            await asyncio.sleep(self._rng.uniform(0, 1))
            await self._call("POST", f"{path}/cancel")
        if turn.streamed:
            await self._clients.follow(transcript)
            return end_in(transcript.connections[-1])
        while self._clients.left_s:
            answer = await self._call("GET", path)
            if answer.status not in (200, *_DOWN):
                self._heard.odd.append(answer)
                return None
            if (end := end_in(answer)) is not None:
                return end
            await asyncio.sleep(PAUSE_S)
        return None

    async def _list(self, conversation: str, behind: str | None = None) -> Sequence[Item]:
        """The last items; none when there is no answer."""
        path = f"/v1/conversations/{conversation}/items?order=desc&limit={LISTED}"
        answer = await self._call("GET", path)
        if answer.status != 200:
            self._expect(answer, *_DOWN)
            return ()
        items: list[Item] = json_body(answer)["data"]
        shown = tuple(str(item["id"]) for item in items)
        self._heard.listings.append(Listing(conversation, shown, behind))
        return items

    async def _add(self, conversation: str) -> None:
        texts = [f"note {self._new_name()}" for _ in range(self._rng.randint(1, ADDED_MAX))]
        items = [{"role": "user", "content": text} for text in texts]
        path = f"/v1/conversations/{conversation}/items"
        answer = await self._insist("POST", path, {"items": items})
        if answer.status == 200:
            added = tuple(str(item["id"]) for item in json_body(answer)["data"])
            self._heard.deeds.append(Deed("added", conversation, added))
        elif _code(answer) != LOCKED:
            self._expect(answer, *_DOWN)

    async def _erase(self, conversation: str) -> None:
        items = await self._list(conversation)
        if not items:
            return
        item_id = str(self._rng.choice(items)["id"])
        path = f"/v1/conversations/{conversation}/items/{item_id}"
        answer = await self._insist("DELETE", path)
        if answer.status == 200:
            self._heard.deeds.append(Deed("erased", conversation, (item_id,)))
        elif _code(answer) != LOCKED:
            self._expect(answer, *_DOWN, 404)  # somebody else erased it first

    async def _insist(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> Connection:
        """Try again for a while when the conversation is locked."""
        for _ in range(TRIES_MAX - 1):
            answer = await self._call(method, path, body)
            if _code(answer) != LOCKED:
                return answer
            self._heard.locked += 1
            await asyncio.sleep(self._rng.uniform(PAUSE_S, 3 * PAUSE_S))
        return await self._call(method, path, body)

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Connection:
        return _whole(await self._clients.call(method, path, body))

    def _expect(self, answer: Connection, *statuses: int) -> None:
        if answer.status not in statuses:
            self._heard.odd.append(answer)

    def _new_name(self) -> str:
        self._said += 1
        return f"{self._name}x{self._said}"


async def new_conversation(clients: Clients) -> str:
    """The id of an empty one."""
    answer = await clients.call("POST", "/v1/conversations", {})
    assert answer.status == 200, answer.body
    return str(json_body(answer)["id"])


async def all_items(clients: Clients, conversation: str) -> list[Item]:
    """Oldest first, page after page. Raises `AssertionError` when they are not to be had."""
    items: list[Item] = []
    after = ""
    while True:
        path = f"/v1/conversations/{conversation}/items?order=asc&limit=100{after}"
        answer = await clients.call("GET", path)
        assert answer.status == 200, answer.body
        page = json_body(answer)
        items += page["data"]
        if not page["has_more"]:
            return items
        after = f"&after={page['last_id']}"


def end_in(connection: Connection) -> Item | None:
    """The response as an answer shows it ended; None when it does not."""
    if connection.frames:
        last = connection.events()[-1]
        return dict(last["response"]) if is_terminal(last) and "response" in last else None
    body = json_body(connection) if connection.status == 200 else {}
    return body if body.get("status") not in (None, "queued", "in_progress") else None


async def seconds_until_free(talker: Talker, conversation: str) -> float:
    """How long it took to have a short turn; infinite when there was no end."""
    turn = Turn(conversation, "good bye", "foreground", "none", True, None, tokens_per_s=1000)
    began = time.monotonic()
    telling = await talker.take(turn)
    return time.monotonic() - began if telling.told is not None else float("inf")


def _whole(connection: Connection) -> Connection:
    """An answer that broke off, which is none."""
    if len(connection.body) < int(connection.headers.get("content-length", "0")):
        connection.status, connection.body = 0, b""
    return connection


def _code(connection: Connection) -> str | None:
    if connection.status != 400:
        return None
    code: str | None = json_body(connection)["error"]["code"]
    return code


def _never(_: Connection) -> bool:
    return False


def _after(events: int) -> Callable[[Connection], bool]:
    return lambda connection: len(connection.frames) > events
