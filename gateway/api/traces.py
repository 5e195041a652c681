"""`POST /v1/traces/ingest`: where the Agents SDK sends its traces."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import Response

from gateway.protocol.traces import parse_traces

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from gateway.api.client_connection import BodyReader
    from gateway.protocol.traces import TraceLimits
    from gateway.services.traces import Traces


class TracesEndpoint:
    """Answers 204 once all records of the body are stored; exporters look at the status only."""

    def __init__(self, traces: Traces, bodies: BodyReader, trace_limits: TraceLimits) -> None:
        self._traces = traces
        self._bodies = bodies
        self._limits = trace_limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._bodies.read(scope, receive)
        input_limits = self._bodies.input_limits
        parse = partial(parse_traces, body, input_limits=input_limits, limits=self._limits)
        records = await self._bodies.threads.run(parse, size_bytes=len(body))
        await self._traces.keep(scope["principal"], records)
        await Response(status_code=204)(scope, receive, send)
