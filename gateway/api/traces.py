"""`POST /v1/traces/ingest`: where the Agents SDK sends its traces."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import Response

from gateway.api.body import read_body
from gateway.protocol.traces import parse_traces

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from gateway.api.reading import EdgeLimits
    from gateway.protocol.limits import InputLimits
    from gateway.protocol.traces import TraceLimits
    from gateway.services.threads import Threads
    from gateway.services.traces import Traces


class TracesEndpoint:
    """Answers 204 once everything in the body is kept; exporters look at nothing else."""

    def __init__(
        self,
        traces: Traces,
        threads: Threads,
        *,
        limits: EdgeLimits,
        input_limits: InputLimits,
        trace_limits: TraceLimits,
    ) -> None:
        self._traces = traces
        self._threads = threads
        self._limits = limits
        self._parse = partial(parse_traces, input_limits=input_limits, limits=trace_limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(
            scope,
            receive,
            bytes_max=self._limits.body_bytes_max,
            timeout_s=self._limits.body_timeout_s,
        )
        records = await self._threads.run(partial(self._parse, body), size_bytes=len(body))
        await self._traces.keep(scope["principal"], records)
        await Response(status_code=204)(scope, receive, send)
