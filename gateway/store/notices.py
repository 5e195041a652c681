"""Notices between replicas: they say that something has changed, never its content.

They may be lost (behind a pooler, in an outage): replicas also poll. They are sent after the
commit, in transactions that wait for no disk: NOTIFY inside a durable commit takes a lock of the
whole server until it is on disk.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args
from uuid import UUID

import asyncpg

from gateway.store.postgres.driver import DRIVER_ERRORS, driver_url, translate
from gateway.store.postgres.statements import Statement
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gateway.store.postgres.database import Database

NoticeKind = Literal["log", "work", "ended", "follow"]

CHANNEL: Final = "harmony_gateway"
RESPONSES_MAX: Final = 200
"""Bound for one payload, 33 bytes each: PostgreSQL takes fewer than 8,000 bytes."""
PROBE_INTERVAL_S: Final = 30.0
"""Pause between two queries by which a listener notices that the other end is gone."""

_KINDS: Final = frozenset(get_args(NoticeKind))
_NOTIFY: Final = Statement("""
SELECT set_config('synchronous_commit', 'off', true), pg_notify(:channel, payload)
FROM unnest(CAST(:payloads AS text[])) AS payload
""")
_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class Notice:
    """`log`: more is in these logs. `work`: somebody could continue a response. `ended`: another
    process than their owner ended these. `follow`: somebody wants notices of these logs for a
    while.
    """

    kind: NoticeKind
    responses: tuple[UUID, ...] = ()


async def notify(database: Database, notices: Iterable[Notice]) -> None:
    """Notify every listener, this process included. Raises `StoreError`: no one was notified."""
    payloads = list(_payloads(notices))
    if payloads:
        async with database.runs_transaction(in_bulk=True) as connection:
            await connection.execute(_NOTIFY, {"channel": CHANNEL, "payloads": payloads})


class Listener:
    """Receiver of all notices, on a connection that no pooler may share."""

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float,
        retry_pause_s: float,
        probe_interval_s: float = PROBE_INTERVAL_S,
    ) -> None:
        # `url` is that of the server itself, not of a pooler. Raises as `driver_url` does.
        self._url = driver_url(url)
        self._connect_timeout_s = connect_timeout_s
        self._retry_pause_s = retry_pause_s
        self._probe_interval_s = probe_interval_s

    async def run(self, on_notice: Callable[[Notice], None], lost: Callable[[], None]) -> None:
        """Listen until cancelled, reconnecting whenever the connection ends.

        `lost` is called when listening begins (again): notices may have been missed.
        """
        is_reported = False
        while True:
            try:
                await self._listen(on_notice, lost)
                is_reported = False
            except DRIVER_ERRORS as error:
                if not is_reported:
                    _log.warning("not listening to other replicas", error=translate(error))
                is_reported = True
            await asyncio.sleep(self._retry_pause_s)

    async def _listen(self, on_notice: Callable[[Notice], None], lost: Callable[[], None]) -> None:
        # Returns when the connection ends; raises one of `DRIVER_ERRORS`.
        connection = await asyncpg.connect(
            self._url,
            timeout=self._connect_timeout_s,
            server_settings={"application_name": "harmony-gateway listener"},
        )
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await connection.add_listener(CHANNEL, _receiver(on_notice))
            lost()
            while not ended.is_set():
                await self._probe(connection, ended)
        finally:
            connection.terminate()

    async def _probe(self, connection: Any, ended: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(self._probe_interval_s):
                await ended.wait()
        except TimeoutError:
            await connection.execute("SELECT", timeout=self._connect_timeout_s)


def _receiver(on_notice: Callable[[Notice], None]) -> Callable[..., None]:
    def receive(_connection: object, _pid: int, _channel: str, payload: str) -> None:
        notice = _parse(payload)
        if notice is not None:
            on_notice(notice)

    return receive


def _payloads(notices: Iterable[Notice]) -> Iterator[str]:
    # A kind and the ids of its responses in hex, separated by spaces.
    for notice in notices:
        names = [uuid.hex for uuid in notice.responses]
        for start in range(0, len(names) or 1, RESPONSES_MAX):
            yield " ".join([notice.kind, *names[start : start + RESPONSES_MAX]])


def _parse(payload: str) -> Notice | None:
    # None: another release, or another program, sent it on this channel.
    kind, *names = payload.split(" ")
    if kind not in _KINDS:
        return None
    try:
        return Notice(cast("NoticeKind", kind), tuple(UUID(hex=name) for name in names))
    except ValueError:
        return None
