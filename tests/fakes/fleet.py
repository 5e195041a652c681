"""A pool over servers that play back what they were told, with a clock that the test moves."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import orjson

from gateway.generation import Sampling, TokenRequest
from gateway.telemetry.metrics import Metrics
from gateway.upstreams.admission.admit import Admission
from gateway.upstreams.backend import Backend
from gateway.upstreams.http.client import build_client
from gateway.upstreams.pool import Pool, PoolPolicy
from tests.fakes.completion_stream import turn
from tests.fakes.raw_server import RawServer, Script, response
from tests.fakes.token_sinks import Heard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from gateway.upstreams.admission.slots import AdmissionPolicy
    from gateway.upstreams.routing.router import Router

REQUEST = TokenRequest(
    "req_1", "m", [1, 2, 3], Sampling(max_tokens=500), "salt", (200002,), 1 << 31, tenant="acme"
)
MISSING: Script = (response(b'{"detail":"Not Found"}', status=404),)
BUSY: Script = (response(b'{"error":{"message":"busy","code":503}}', status=503),)


def listing(*models: str, length: int = 8192) -> Script:
    rows = [{"id": model, "parent": None, "max_model_len": length} for model in models]
    return (response(orjson.dumps({"object": "list", "data": rows})),)


def backend_server(
    *turns: Script,
    models: Sequence[Script] = (),
    health: Sequence[Script] = (),
    version: Sequence[Script] = (),
    metrics: Sequence[Script] = (),
) -> RawServer:
    return RawServer(
        {
            "/v1/completions": turns or [turn([1])],
            "/v1/models": models or [listing("m")],
            "/health": health or [(response(b""),)],
            "/version": version or [vllm("0.32.0")],
            "/metrics": metrics or [MISSING],
            "*": [MISSING],
        }
    )


def vllm(version: str) -> Script:
    return (response(orjson.dumps({"version": version})),)


@dataclass
class Fleet:
    servers: list[RawServer]
    pool: Pool
    metrics: Metrics
    now: list[float] = field(default_factory=lambda: [1000.0])

    async def ids(self, request: TokenRequest = REQUEST, avoid: Sequence[str] = ()) -> list[int]:
        heard = Heard()
        await self.pool.generate(request, heard, avoid=avoid)
        return heard.ids

    def served(self) -> list[int]:
        """Completions asked for, by server."""
        return [
            sum(request.path == "/v1/completions" for request in server.requests)
            for server in self.servers
        ]

    def in_flight(self) -> list[int]:
        return [state.in_flight for state in self.pool.members()]

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"gateway_{name}", labels) or 0.0


@asynccontextmanager
async def fleet(
    *servers: RawServer,
    backends: Sequence[Backend] | None = None,
    router: Router | None = None,
    admission: AdmissionPolicy | None = None,
    **policy: object,
) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(server)
        if backends is None:
            backends = [Backend(f"gpu-{i}", server.url) for i, server in enumerate(servers)]
        else:
            backends = [
                replace(known, base_url=server.url)
                for known, server in zip(backends, servers, strict=True)
            ]
        metrics, now = Metrics(), [1000.0]
        pool = Pool(
            backends,
            build_client(),
            policy=PoolPolicy(**policy),  # type: ignore[arg-type]
            metrics=metrics,
            clock=lambda: now[0],
            router=router,
            admission=(
                None
                if admission is None
                else Admission(admission, metrics=metrics, clock=lambda: now[0])
            ),
        )
        stack.push_async_callback(pool.close)
        await pool.start()
        yield Fleet(list(servers), pool, metrics, now)
