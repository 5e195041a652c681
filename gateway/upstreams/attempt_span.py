"""Spans of requests to backends, by OpenTelemetry's conventions for generative AI.

Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gateway.telemetry.trace_context import PROVIDER

if TYPE_CHECKING:
    from gateway.generation import Sampling, TokenChunk, TokenRequest, TokenSink
    from gateway.telemetry.trace_context import Span
    from gateway.upstreams.backend import Backend


def begin_call(parent: Span, backend: Backend, operation: str, model: str) -> Span:
    """Begin and enter the span of a request."""
    address = urlsplit(backend.base_url)
    described: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": model,
        "server.address": address.hostname or "",
        "server.port": address.port or (443 if address.scheme == "https" else 80),
        "harmony.backend": backend.name,
    }
    return parent.child(f"{operation} {model}", "client", described)


def sampling_attributes(sampling: Sampling) -> dict[str, Any]:
    described = {
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.request.presence_penalty": sampling.presence_penalty or None,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty or None,
    }
    return {name: value for name, value in described.items() if value is not None}


class Attempt:
    """Span of a generation at one backend; a token sink that records what passes."""

    def __init__(self, span: Span, request: TokenRequest, sink: TokenSink) -> None:
        self._span = span
        self._request = request
        self._sink = sink
        self._began = time.perf_counter()
        self._ids = 0
        self._last: TokenChunk | None = None
        span.set(sampling_attributes(request.sampling))

    def on_tokens(self, chunk: TokenChunk) -> bool:
        if chunk.ids and not self._ids:
            seconds = time.perf_counter() - self._began
            self._span.set({"gen_ai.response.time_to_first_chunk": seconds})
        self._ids += len(chunk.ids)
        self._last = chunk
        return self._sink.on_tokens(chunk)

    async def room(self) -> bool:
        return await self._sink.room()

    def end(self, outcome: str, error: Exception | None) -> None:
        last, request = self._last, self._request
        described: dict[str, Any] = {"harmony.outcome": outcome}
        if last is not None and last.finish is not None:
            described["gen_ai.response.finish_reasons"] = [last.finish.value]
        if request.chat is None:
            described["gen_ai.usage.input_tokens"] = request.prompt_tokens
            described["gen_ai.usage.output_tokens"] = self._ids
            if last is not None and last.cached_tokens is not None:
                described["gen_ai.usage.cache_read.input_tokens"] = last.cached_tokens
        elif last is not None and last.usage is not None:
            described["gen_ai.usage.input_tokens"] = last.usage.input_tokens
            described["gen_ai.usage.output_tokens"] = last.usage.output_tokens
            described["gen_ai.usage.cache_read.input_tokens"] = last.usage.cached_tokens
        self._span.set(described)
        if error is not None:
            self._span.fail(type(error).__name__)
        self._span.end()
