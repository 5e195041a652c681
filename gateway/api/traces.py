"""`POST /v1/traces/ingest`: where the Agents SDK sends its traces."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import Response

from gateway.protocol.trace_records import parse_traces
from gateway.services.zero_retention import require_storage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.types import Receive, Scope, Send

    from gateway.api.request_body import BodyReader
    from gateway.protocol.trace_records import TraceRecord
    from gateway.tenancy import TenantId

    Keep = Callable[[TenantId, Sequence[TraceRecord]], Awaitable[None]]
    """Keeps all of these, or none: then raises `StoreUnavailable`. The same again changes nothing
    but the time that they are kept from: exporters repeat what they do not know to have arrived."""


class TracesEndpoint:
    """Answers 204 once all records of the body are stored; exporters look at the status only."""

    def __init__(self, keep: Keep, bodies: BodyReader) -> None:
        self._keep = keep
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        require_storage(scope["principal"], "A trace")
        body = await self._bodies.read(scope, receive)
        parse = partial(parse_traces, body, limits=self._bodies.input_limits)
        records = await self._bodies.executor.run(parse, size_bytes=len(body))
        if records:
            await self._keep(scope["principal"].tenant_id, records)
        await Response(status_code=204)(scope, receive, send)
