"""Embeddings and reranking: who may, at which model, and what it took."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.errors import (
    ContextLengthExceeded,
    ContextOverflow,
    InvalidRequest,
    UpstreamFailed,
    UpstreamRejected,
)
from gateway.protocol.passed import PATHS
from gateway.telemetry import EventLog

if TYPE_CHECKING:
    from gateway.protocol.passed import PassedRequest
    from gateway.services.executor import ThreadExecutor
    from gateway.services.models import Models
    from gateway.telemetry import Metrics
    from gateway.tenancy import Principal
    from gateway.upstreams.passing import Passing

_log = EventLog("gateway.passing")

_STATUS: Final = re.compile(r"^answered \d+: ")
_PLACE: Final = re.compile(r"\S*/\S*")
"""Of a server, in its own messages: a path."""


class PassThrough:
    """One use case: a request goes to a member of its model, its answer to the client."""

    def __init__(
        self, passing: Passing, models: Models, executor: ThreadExecutor, metrics: Metrics
    ) -> None:
        self._passing = passing
        self._models = models
        self._executor = executor
        self._metrics = metrics

    async def ask(self, principal: Principal, request: PassedRequest) -> tuple[str, bytes]:
        """The model's id, and JSON of the answer, which names the model as clients do.

        Raises `ModelNotFound`, `InvalidRequest` for a model that cannot do that, or for what its
        server refuses, and `UpstreamError`.
        """
        model = self._models.get(request.model, principal.policy, task=request.kind)
        begun, outcome, upstream, tokens = time.perf_counter(), "failed", "", 0
        try:
            path = PATHS[request.kind]
            upstream, body = await self._passing.post(model.id, path, request.fields)
            answer, tokens = await self._executor.run(
                lambda: _read(body, model.id, upstream), size_bytes=len(body)
            )
            outcome = "ok"
        except ContextOverflow as error:
            outcome = "rejected"
            raise ContextLengthExceeded(_told(error)) from error
        except UpstreamRejected as error:
            outcome = "rejected"
            raise InvalidRequest(_told(error)) from error
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
        return model.id, answer


def _read(body: bytes, model: str, upstream: str) -> tuple[bytes, int]:
    """The answer with the public name of its model, and how many tokens it read."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UpstreamFailed(f"its answer is not JSON: {error}", upstream=upstream) from error
    if not isinstance(document, dict):
        raise UpstreamFailed("its answer is not an object", upstream=upstream)
    return orjson.dumps({**document, "model": model}), _tokens(document.get("usage"))


def _tokens(usage: Any) -> int:
    if not isinstance(usage, dict):
        return 0
    counts = [usage.get(name) for name in ("prompt_tokens", "total_tokens")]
    return next((one for one in counts if type(one) is int and one >= 0), 0)


def _told(error: UpstreamRejected) -> str:
    """What the server says of the client's own words, without its paths."""
    said = _PLACE.sub("…", _STATUS.sub("", error.reason))
    return f"The server of this model refuses the request: {said}"
