from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import orjson

from gateway import ids
from gateway.errors import (
    ContextLengthExceeded,
    ContextOverflow,
    InvalidRequest,
    UpstreamFailed,
    UpstreamRejected,
)
from gateway.generation import TokenUsage
from gateway.limits.accounting import NOTHING_USED, Used
from gateway.protocol.proxied import PATHS
from gateway.store.usage_lines import Metered, UsageLine
from gateway.telemetry.logs import EventLog
from gateway.upstreams.http.client import ON_SENT
from gateway.upstreams.problems import code_of, message_of, refusal

if TYPE_CHECKING:
    from gateway.limits.accounting import Charge
    from gateway.limits.headers import Headers
    from gateway.protocol.proxied import ProxiedKind, ProxiedRequest
    from gateway.replication.durable_runs import RunDependencies
    from gateway.replication.limiter import Limiter
    from gateway.services.executor import ThreadExecutor
    from gateway.services.models import Model, Models
    from gateway.telemetry.metrics import Metrics
    from gateway.tenancy import Principal
    from gateway.upstreams.pool import Pool

_log = EventLog(__name__)

_STATUS: Final = re.compile(r"^answered \d+: ")
_PLACE: Final = re.compile(r"\S*/\S*")
"""Paths of a server."""

FRAME_BYTES_MAX: Final = 1 << 20
"""Bound of an answer's bytes beside the embeddings or ranking."""
BYTES_PER_TOKEN: Final = 4
"""Estimate until the server reports its tokens, and where the client leaves before."""
TOKENS_MAX: Final = 2**31 - 1
"""A larger count of a server is not believed, and no usage line could hold it."""


class ProxiedAnswer(NamedTuple):
    model: str
    body: bytes
    headers: Headers


class Proxy:
    def __init__(
        self,
        pool: Pool,
        models: Models,
        executor: ThreadExecutor,
        metrics: Metrics,
        limiter: Limiter,
        replica: RunDependencies,
    ) -> None:
        self._admitted = replica.supervisor.admitted
        self._book = replica.archive.book
        self._limiter = limiter
        self._pool = pool
        self._models = models
        self._executor = executor
        self._metrics = metrics

    async def ask(self, principal: Principal, request: ProxiedRequest) -> ProxiedAnswer:
        """Return a server's JSON answer, with the public name of the model.

        Raises `ModelNotFound`, `InvalidRequest` for what the model cannot do or its server refuses,
        `RateLimited` and `UpstreamError`.
        """
        model = self._models.get(request.model, principal.policy, task=request.kind)
        charge = await self._limiter.enter(principal, model.id, "default")
        note = partial(self._note_usage, principal, model, request.kind, charge)
        is_sent = asyncio.Event()
        watching = ON_SENT.set(is_sent.set)
        try:
            if charge is not None:
                size = _estimate(request)
                await self._limiter.reserve(charge, principal, tokens=size, most=0)
            try:
                with self._admitted(principal.tenant_id):
                    answer, tokens = await self._ask(model, request)
            except asyncio.CancelledError:
                # The server has worked, or limits could be evaded by leaving before its answer.
                if is_sent.is_set():
                    note(_estimate(request))
                raise
        except BaseException:
            if charge is not None:
                charge.settle(NOTHING_USED)
            raise
        finally:
            ON_SENT.reset(watching)
        note(tokens)
        return ProxiedAnswer(model.id, answer, () if charge is None else charge.headers)

    def _note_usage(
        self,
        principal: Principal,
        model: Model,
        kind: ProxiedKind,
        charge: Charge | None,
        tokens: int,
    ) -> None:
        if charge is not None:
            charge.settle(Used(input_tokens=tokens))
        line = UsageLine(
            response=ids.new_uuid(),
            key_id=principal.key_id,
            project_id=principal.project,
            model=model.id,
            at=datetime.now(UTC),
            tokens=TokenUsage(input_tokens=tokens),
            metered=Metered(kind=kind),
        )
        self._book(principal.tenant_id, line)
        self._metrics.tenant_used(
            principal.tenant_id.hex, principal.tenant_name, input_tokens=tokens, output=0
        )

    async def _ask(self, model: Model, request: ProxiedRequest) -> tuple[bytes, int]:
        begun, outcome, upstream, tokens = time.perf_counter(), "failed", "", 0
        try:
            path = PATHS[request.kind]
            upstream, body = await self._pool.post(model.id, path, request.fields)
            answer, tokens = await self._executor.run(
                lambda: read_answer(body, model.id, upstream), size_bytes=len(body)
            )
            outcome = "ok"
        except ContextOverflow as error:
            outcome = "rejected"
            raise ContextLengthExceeded(_refusal_message(error)) from error
        except UpstreamRejected as error:
            outcome = "rejected"
            raise InvalidRequest(_refusal_message(error)) from error
        finally:
            self._metrics.passed(kind=request.kind, model=model.id, outcome=outcome, tokens=tokens)
        _log.info(
            "request was passed through",
            kind=request.kind,
            model=model.id,
            upstream=upstream,
            input_tokens=tokens,
            seconds=time.perf_counter() - begun,
        )
        return answer, tokens


def _estimate(request: ProxiedRequest) -> int:
    return len(orjson.dumps(request.fields)) // BYTES_PER_TOKEN + 1


class _Bulk(msgspec.Struct, gc=False):
    """Embeddings or ranking, perhaps millions of values, which are not parsed."""

    data: msgspec.Raw = msgspec.Raw()
    results: msgspec.Raw = msgspec.Raw()


_bulk_of: Final = msgspec.json.Decoder(_Bulk).decode
_fields_of: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def read_answer(body: bytes, model: str, upstream: str) -> tuple[bytes, int]:
    """Return the answer and its tokens; raises the error in a 200, which some proxies send."""
    try:
        body.decode()
        bulk = _bulk_of(body)
        size = len(body) - len(bulk.data) - len(bulk.results)
        if size > FRAME_BYTES_MAX:
            raise UpstreamFailed(
                f"its answer has {size} bytes around what was asked for", upstream=upstream
            )
        document = {
            name: orjson.Fragment(bytes(value)) if name in _BULK else orjson.loads(bytes(value))
            for name, value in _fields_of(body).items()
        }
    except msgspec.ValidationError as error:
        raise UpstreamFailed("its answer is not an object", upstream=upstream) from error
    except (ValueError, RecursionError) as error:
        raise UpstreamFailed(f"its answer is not JSON: {error}", upstream=upstream) from error
    if document.get("error") or document.get("object") == "error":
        raise refusal(upstream, code_of(document), message_of(document))
    return orjson.dumps({**document, "model": model}), _tokens(document.get("usage"))


_BULK: Final = frozenset(_Bulk.__struct_fields__)


def _tokens(usage: Any) -> int:
    if not isinstance(usage, dict):
        return 0
    counts = [usage.get(name) for name in ("prompt_tokens", "total_tokens")]
    return next((one for one in counts if type(one) is int and 0 <= one <= TOKENS_MAX), 0)


def _refusal_message(error: UpstreamRejected) -> str:
    # The message must not show the server's paths.
    reason = _PLACE.sub("…", _STATUS.sub("", error.reason))
    return f"The server of this model refuses the request: {reason}"
