"""Questions to a backend outside of any request: what it is, and whether it is there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import httpx2
import orjson

from gateway.errors import UpstreamUnavailable
from gateway.upstreams.client import read_body
from gateway.upstreams.engines import Engine, from_model_info, from_server_info, from_version
from gateway.upstreams.problems import message_of_body

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.upstreams.backend import Backend
    from gateway.upstreams.client import Client

_ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024


_QUESTIONS: Final = (
    ("/version", from_version),
    ("/server_info", from_server_info),
    ("/get_server_info", from_server_info),  # its name before SGLang 0.5.6
    ("/model_info", from_model_info),
)


@dataclass(frozen=True, slots=True)
class Description:
    """What a backend says of itself: `models` are context lengths (tokens) by served name.

    `engine` is None if it did not answer that question this time.
    """

    models: Mapping[str, int | None]
    engine: Engine | None = None


async def describe(client: Client, backend: Backend, *, timeout_s: float) -> Description:
    """Ask for models and engine. Raises UpstreamUnavailable if it does not even list models."""
    status, models = await _get(client, backend, "/v1/models", timeout_s)
    if status != 200:
        raise UpstreamUnavailable(
            f"GET /v1/models answered {status}: {message_of_body(models)}", upstream=backend.name
        )
    engine = await _engine(client, backend, timeout_s)
    return Description(served_models(models), engine)


async def _engine(client: Client, backend: Backend, timeout_s: float) -> Engine | None:
    """Which engine it is; one of its own kind when it answers none of the questions.

    None when it does not answer in time, or only that something is wrong: a scheduler that is
    busy keeps SGLang from answering, and says nothing of what the server is.
    """
    try:
        async with asyncio.timeout(timeout_s):
            for path, engine_of in _QUESTIONS:
                status, body = await _get(client, backend, path, timeout_s)
                if status >= 500:
                    return None
                engine = engine_of(_json_object(body)) if status == 200 else None
                if engine is not None:
                    return engine
    except (TimeoutError, UpstreamUnavailable):
        return None
    return Engine()


async def is_alive(client: Client, backend: Backend, *, timeout_s: float) -> bool:
    """Ask `/health`. A hung worker still answers 200: only a No means anything."""
    try:
        status, _ = await _get(client, backend, "/health", timeout_s)
    except UpstreamUnavailable as error:
        # Refused by our own bound on connections: the backend is busy with us, hence there.
        return isinstance(error.__cause__, httpx2.PoolTimeout)
    return status == 200


def served_models(body: bytes) -> dict[str, int | None]:
    """`max_model_len` by served name; an adapter's is null, and its parent's counts."""
    rows = _json_object(body).get("data")
    named = {
        row["id"]: row
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, dict) and isinstance(row.get("id"), str)
    }
    return {
        name: _length(row) or _length(named.get(row.get("parent"), {}))
        for name, row in named.items()
    }


def _length(row: dict[str, object]) -> int | None:
    length = row.get("max_model_len")
    return length if type(length) is int and length > 0 else None


def _json_object(body: bytes) -> dict[str, object]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


async def _get(client: Client, backend: Backend, path: str, timeout_s: float) -> tuple[int, bytes]:
    request = client.build_request(
        "GET", backend.url(path), headers=backend.headers(), timeout=timeout_s
    )
    try:
        response = await client.send(request, stream=True)
        body = await read_body(response.aiter_raw(), _ANSWER_BYTES_MAX)
    except httpx2.TransportError as error:
        raise UpstreamUnavailable(
            f"GET {path}: {type(error).__name__}: {error}", upstream=backend.name
        ) from error
    return response.status_code, body
