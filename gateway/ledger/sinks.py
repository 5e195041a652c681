"""Delivery of usage lines to sinks, over HTTP.

A sink that fails gets the same batch again, with the same ids. One that refuses a batch for good is
stopped until an operator has looked.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

import httpx2
import orjson

from gateway import __version__
from gateway.errors import SinkFailed, SinkRefused, StoreError
from gateway.ledger.records import CLOUDEVENTS_TYPE, cloud_events
from gateway.store.ledger import cursors
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from gateway.settings.sections import Sink
    from gateway.store.ledger.cursors import LineBatch
    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics

_log = EventLog(__name__)

TIMEOUT_S: Final = 30.0
LEASE_S: Final = 4 * TIMEOUT_S
INTERVAL_S: Final = 15.0
LINES_MAX: Final = 500
PAUSE_MAX_S: Final = 300.0
AGAIN: Final = frozenset({401, 403, 408, 409, 425, 429})
"""Refusals that pass, or that pass once the operator has mended a secret."""
_EXCERPT_CHARS_MAX: Final = 200


class CloudEventsSink:
    def __init__(self, sink: Sink, *, source: str, timeout_s: float = TIMEOUT_S) -> None:
        self.name = sink.name
        self._sink = sink
        self._timeout_s = timeout_s
        # No redirects, and no proxies or credentials from the environment.
        self._client = httpx2.AsyncClient(
            headers={"user-agent": f"harmony-gateway/{__version__}"},
            trust_env=False,
            follow_redirects=False,
        )
        self._source = source

    async def send(self, batch: LineBatch) -> None:
        """Send a batch. Raises `SinkFailed`, and `SinkRefused` where a retry would not help."""
        events = cloud_events(batch.lines, source=self._source, customers=self._sink.customers)
        status, text = await self._post(orjson.dumps(events))
        if not 200 <= status < 300:
            kind = SinkRefused if 400 <= status < 500 and status not in AGAIN else SinkFailed
            raise kind(f"{self.name} answered {status}: {' '.join(text.split())}")

    async def _post(self, body: bytes) -> tuple[int, str]:
        # Status and the beginning of the body.
        headers = {"content-type": CLOUDEVENTS_TYPE}
        if self._sink.secret is not None:
            headers["authorization"] = f"Bearer {self._sink.secret.get_secret_value()}"
        try:
            # The client's timeout bounds each part of the exchange, not all of it.
            async with (
                asyncio.timeout(self._timeout_s),
                self._client.stream(
                    "POST", self._sink.url, content=body, headers=headers, timeout=self._timeout_s
                ) as answer,
            ):
                text = b""
                async for piece in answer.aiter_bytes():
                    text += piece
                    if len(text) > 4 * _EXCERPT_CHARS_MAX:
                        break
        except (TimeoutError, httpx2.HTTPError) as error:
            raise SinkFailed(f"{self.name}: {type(error).__name__}") from error
        return answer.status_code, text.decode("utf-8", "replace")[:_EXCERPT_CHARS_MAX]

    async def close(self) -> None:
        await self._client.aclose()


class Delivery:
    def __init__(  # noqa: PLR0913 - its dependencies
        self,
        database: Database,
        sink: CloudEventsSink,
        *,
        holder: str,
        lines_max: int = LINES_MAX,
        interval_s: float = INTERVAL_S,
        lease_s: float = LEASE_S,
        metrics: Metrics,
    ) -> None:
        # After `lease_s` another process may take over a batch.
        self._database = database
        self._sink = sink
        self._holder = holder
        self._lines_max = lines_max
        self._interval_s = interval_s
        self._lease_s = lease_s
        self._metrics = metrics
        self._failures = 0

    async def run(self) -> None:
        # The pauses grow after failures.
        try:
            while True:
                try:
                    await self.round()
                except StoreError as error:
                    _log.warning(
                        "usage cannot be read for a sink", source=self._sink.name, error=error
                    )
                pause_s = min(self._interval_s * 2 ** min(self._failures, 10), PAUSE_MAX_S)
                # Random pauses spread the replicas out.
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311
        finally:
            await self._sink.close()

    async def round(self) -> int:
        lines = 0
        while sent := await self._send_next():
            lines += sent
        behind_s = await cursors.sink_behind_s(self._database, self._sink.name)
        self._metrics.ledger_sink_behind(self._sink.name, behind_s)
        return lines

    async def _send_next(self) -> int:
        name = self._sink.name
        batch = await cursors.next_batch(
            self._database, name, self._holder, lease_s=self._lease_s, lines_max=self._lines_max
        )
        if batch is None:
            return 0
        try:
            await self._sink.send(batch)
        except SinkRefused as error:
            await cursors.stop_sink(self._database, name, str(error))
            _log.error("a sink refuses usage and is stopped", source=name, error=error)
            self._metrics.ledger_sent(name, "refused", 0)
            return 0
        except SinkFailed as error:
            self._failures += 1
            _log.warning("a sink did not take usage", source=name, error=error)
            self._metrics.ledger_sent(name, "failed", 0)
            return 0
        self._failures = 0
        if await cursors.batch_done(self._database, name, self._holder, batch):
            self._metrics.ledger_sent(name, "ok", len(batch.lines))
        return len(batch.lines)
