"""Requests to key services: a deadline, bounded answers, no redirects, no proxy from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import httpx2
import orjson

from gateway.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 64 * 1024
SERVER_FAULT: Final = 500
TOO_MANY: Final = 429


class KeyServiceClient:
    """Client that sends JSON to one service. Raises `StoreUnavailable` while that cannot answer."""

    def __init__(self, timeout_s: float) -> None:
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(timeout_s),
            headers={"accept-encoding": "identity"},
            follow_redirects=False,
            trust_env=False,
        )

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, Any]]:
        """Post a body; return the status (below 500) and the JSON object, empty where it is none.

        Raises `StoreUnavailable`.
        """
        try:
            async with self._client.stream("POST", url, content=body, headers=headers) as answer:
                content = bytearray()
                async for piece in answer.aiter_bytes():
                    content += piece
                    if len(content) > ANSWER_BYTES_MAX:
                        raise StoreUnavailable("the key service answers with too much")
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            raise StoreUnavailable(
                f"the key service does not answer: {type(error).__name__}"
            ) from error
        if answer.status_code >= SERVER_FAULT or answer.status_code == TOO_MANY:
            raise StoreUnavailable(f"the key service answers with {answer.status_code}")
        try:
            found = orjson.loads(content)
        except orjson.JSONDecodeError:
            found = None
        return answer.status_code, found if isinstance(found, dict) else {}

    async def close(self) -> None:
        await self._client.aclose()
