"""Send usage lines to sinks, over HTTP.

A sink that answers anything but success gets the same batch again, later and with the same ids. The
gateway stops a sink that refuses a batch for good until an operator has looked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import httpx2
import orjson

from gateway import __version__
from gateway.errors import SinkFailed, SinkRefused
from gateway.ledger.messages import CLOUDEVENTS_TYPE, cloud_events

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.store.ledger.exports import LineBatch

AGAIN: Final = frozenset({401, 403, 408, 409, 425, 429})
"""Refusals that pass, or that pass once the operator has mended a secret."""
_SAID_CHARS_MAX: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTarget:
    """Address and credentials of a sink. `customers` maps tenants to the sink's names for them."""

    name: str
    url: str
    secret: str | None = field(default=None, repr=False)
    timeout_s: float = 30.0
    customers: Mapping[str, str] = field(default_factory=dict)


class CloudEventsSink:
    """Client of a sink: posts a whole batch at once, as `application/cloudevents-batch+json`."""

    def __init__(self, target: SinkTarget, *, source: str) -> None:
        self._target = target
        self._client = _new_client()
        self._source = source

    @property
    def name(self) -> str:
        return self._target.name

    async def send(self, batch: LineBatch) -> None:
        """Send a batch, or what is left of it.

        Raises `SinkFailed`, and `SinkRefused` where a retry would not help.
        """
        events = cloud_events(batch.lines, source=self._source, customers=self._target.customers)
        status, said = await _post(self._client, self._target, orjson.dumps(events))
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


async def _post(http: httpx2.AsyncClient, target: SinkTarget, body: bytes) -> tuple[int, str]:
    # Status and the beginning of the body.
    headers = {"content-type": CLOUDEVENTS_TYPE}
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
