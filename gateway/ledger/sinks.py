"""Send usage lines to sinks, over HTTP.

A sink that answers anything but success gets the same batch again, later and with the same ids. The
gateway stops a sink that refuses a batch for good until an operator has looked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httpx2
import orjson

from gateway import __version__
from gateway.errors import SinkFailed, SinkRefused
from gateway.ledger.messages import CLOUDEVENTS_TYPE, cloud_events

if TYPE_CHECKING:
    from gateway.settings.sections import Sink
    from gateway.store.ledger.exports import LineBatch

AGAIN: Final = frozenset({401, 403, 408, 409, 425, 429})
"""Refusals that pass, or that pass once the operator has mended a secret."""
TIMEOUT_S: Final = 30.0
"""That one answer of a sink may take."""
_SAID_CHARS_MAX: Final = 200


class CloudEventsSink:
    """Client of a sink: posts a whole batch at once, as `application/cloudevents-batch+json`."""

    def __init__(self, sink: Sink, *, source: str) -> None:
        self._sink = sink
        self._client = _new_client()
        self._source = source

    @property
    def name(self) -> str:
        return self._sink.name

    async def send(self, batch: LineBatch) -> None:
        """Send a batch, or what is left of it.

        Raises `SinkFailed`, and `SinkRefused` where a retry would not help.
        """
        events = cloud_events(batch.lines, source=self._source, customers=self._sink.customers)
        status, said = await _post(self._client, self._sink, orjson.dumps(events))
        if not 200 <= status < 300:
            raise _failure(self.name, status, said)

    async def close(self) -> None:
        await self._client.aclose()


def _new_client() -> httpx2.AsyncClient:
    # No redirects, and no proxies or credentials from the environment.
    return httpx2.AsyncClient(
        headers={"user-agent": f"harmony-gateway/{__version__}"},
        trust_env=False,
        follow_redirects=False,
    )


async def _post(http: httpx2.AsyncClient, sink: Sink, body: bytes) -> tuple[int, str]:
    # Status and the beginning of the body.
    headers = {"content-type": CLOUDEVENTS_TYPE}
    if sink.secret is not None:
        headers["authorization"] = f"Bearer {sink.secret.get_secret_value()}"
    try:
        async with http.stream(
            "POST", sink.url, content=body, headers=headers, timeout=TIMEOUT_S
        ) as answer:
            said = b""
            async for piece in answer.aiter_bytes():
                said += piece
                if len(said) > 4 * _SAID_CHARS_MAX:
                    break
    except httpx2.HTTPError as error:
        raise SinkFailed(f"{sink.name}: {type(error).__name__}") from error
    return answer.status_code, said.decode("utf-8", "replace")[:_SAID_CHARS_MAX]


def _failure(name: str, status: int, said: str) -> SinkFailed:
    kind = SinkRefused if 400 <= status < 500 and status not in AGAIN else SinkFailed
    return kind(f"{name} answered {status}: {' '.join(said.split())}")
