"""`POST /v1/traces/ingest`, for the Agents SDK's traces."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import Response

from gateway.protocol.trace_records import parse_traces
from gateway.services.zero_retention import require_storage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from starlette.types import Receive, Scope, Send

    from gateway.api.request_body import BodyReader
    from gateway.protocol.trace_records import TraceRecord
    from gateway.tenancy import Principal, TenantId

    Keep = Callable[[TenantId, Sequence[TraceRecord]], Awaitable[None]]
    """Stores all records, or none and raises `StoreUnavailable`. A repeated record only restarts
    its retention: exporters repeat what may not have arrived.
    """
    Storing = Callable[[Principal, int], AbstractAsyncContextManager[None]]
    """`Limiter.storing`."""


class TracesEndpoint:
    """Endpoint that answers 204 once all records are stored; exporters look only at the status."""

    def __init__(self, keep: Keep, bodies: BodyReader, storing: Storing) -> None:
        self._keep = keep
        self._bodies = bodies
        self._storing = storing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = scope["principal"]
        require_storage(principal, "A trace")
        body = await self._bodies.read(scope, receive)
        parse = partial(parse_traces, body, limits=self._bodies.input_limits)
        async with self._storing(principal, len(body)):
            records = await self._bodies.executor.run(parse, size_bytes=len(body))
            if records:
                await self._keep(principal.tenant_id, records)
        await Response(status_code=204)(scope, receive, send)
