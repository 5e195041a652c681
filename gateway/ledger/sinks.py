"""Where lines are sent, over HTTP.

A sink that answers anything but success is sent the same batch again, later and with the same ids.
One that says that it will never take it is stopped until an operator has looked.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import httpx2
import orjson

from gateway import __version__
from gateway.errors import SinkFailed, SinkRefused
from gateway.ledger.messages import CLOUDEVENTS_TYPE, cloud_events, meter_events

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gateway.ledger.messages import MeterEvent
    from gateway.store.ledger.exports import LineBatch

AGAIN: Final = frozenset({401, 403, 408, 409, 425, 429})
"""Refusals that pass, or that pass once the operator has mended a secret."""
STRIPE_PAST_S: Final = 35 * 86_400
STRIPE_KNOWN_S: Final = 24 * 3_600
"""So far back Stripe takes events, and so long it knows their identifiers, in seconds."""
MARGIN_S: Final = 3_600
_SAID_CHARS_MAX: Final = 200


class Sink(Protocol):
    """A system outside that is sent lines of usage in batches."""

    @property
    def name(self) -> str: ...

    async def send(self, batch: LineBatch) -> None:
        """Have it take a batch, or what is left of it. Raises `SinkFailed`, and `SinkRefused` where
        sending it again would not help.
        """
        ...

    async def close(self) -> None:
        """Close its connections; nothing may be sent any more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTarget:
    """Where a sink is and how it knows us. `customers` are its names of tenants."""

    name: str
    url: str
    secret: str | None = field(default=None, repr=False)
    timeout_s: float = 30.0
    customers: Mapping[str, str] = field(default_factory=dict)


class CloudEventsSink:
    """Posts every batch at once, as `application/cloudevents-batch+json`."""

    def __init__(self, target: SinkTarget, *, source: str) -> None:
        self._target = target
        self._client = _new_client()
        self._source = source

    @property
    def name(self) -> str:
        return self._target.name

    async def send(self, batch: LineBatch) -> None:
        events = cloud_events(batch.lines, source=self._source, customers=self._target.customers)
        body, kind = orjson.dumps(events), CLOUDEVENTS_TYPE
        status, said = await _post(self._client, self._target, body, kind)
        if not 200 <= status < 300:
            raise _failure(self.name, status, said)

    async def close(self) -> None:
        await self._client.aclose()


class StripeSink:
    """Posts what a batch comes to for each customer, component and hour, one meter event each.

    Stripe refuses an identifier that it knows: then it has the event. It knows them for a day.
    """

    def __init__(
        self,
        target: SinkTarget,
        *,
        meters: Mapping[str, str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`meters` are the event names of meters, by component (`messages.COMPONENTS`)."""
        self._target = target
        self._client = _new_client()
        self._meters = meters
        self._clock = clock

    @property
    def name(self) -> str:
        return self._target.name

    async def send(self, batch: LineBatch) -> None:
        if batch.under_way_s > STRIPE_KNOWN_S - MARGIN_S:
            raise SinkRefused(
                f"batch {batch.number} has been under way for "
                f"{batch.under_way_s / 3600:.0f} hours: Stripe may not know any more which of its "
                "events it has. See at Stripe whether they are there"
            )
        events = meter_events(
            batch.lines,
            batch=batch.number,
            meters=self._meters,
            customers=self._target.customers,
        )
        oldest = min((event.timestamp for event in events), default=self._clock())
        if oldest < self._clock() - STRIPE_PAST_S + MARGIN_S:
            raise SinkRefused(
                f"batch {batch.number} has usage from more than 35 days ago, which Stripe does not "
                "take: bill it by hand"
            )
        for event in events:
            await self._send_one(event)

    async def close(self) -> None:
        await self._client.aclose()

    async def _send_one(self, event: MeterEvent) -> None:
        body = httpx2.QueryParams(event.form())
        kind = "application/x-www-form-urlencoded"
        status, said = await _post(self._client, self._target, str(body).encode(), kind)
        if status == 200 or (status == 400 and "already exists with identifier" in said):
            return
        raise _failure(self.name, status, said)


def _new_client() -> httpx2.AsyncClient:
    """No redirects, nothing from the environment."""
    return httpx2.AsyncClient(
        headers={"user-agent": f"harmony-gateway/{__version__}"},
        trust_env=False,
        follow_redirects=False,
    )


async def _post(
    http: httpx2.AsyncClient, target: SinkTarget, body: bytes, kind: str
) -> tuple[int, str]:
    """The status of the answer, and the beginning of what it says."""
    headers = {"content-type": kind}
    if target.secret is not None:
        headers["authorization"] = f"Bearer {target.secret}"
    try:
        async with http.stream(
            "POST", target.url, content=body, headers=headers, timeout=target.timeout_s
        ) as answer:
            said = b""
            async for piece in answer.aiter_bytes():
                said += piece
                if len(said) > 4 * _SAID_CHARS_MAX:
                    break
    except httpx2.HTTPError as error:
        raise SinkFailed(f"{target.name}: {type(error).__name__}") from error
    return answer.status_code, said.decode("utf-8", "replace")[:_SAID_CHARS_MAX]


def _failure(name: str, status: int, said: str) -> SinkFailed:
    kind = SinkRefused if 400 <= status < 500 and status not in AGAIN else SinkFailed
    return kind(f"{name} answered {status}: {' '.join(said.split())}")
