"""Errors of an engine that is overloaded or dead, and errors within a stream."""

from __future__ import annotations

from typing import Any

from gateway.simulator.completion_wire import SimulatedError

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
ENGINE_BUSY = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a "
    "different instance."
)


class StreamedError(SimulatedError):
    """Answer 200 to a request, and the error as the first event."""


def event_of(error: SimulatedError, engine: str = "vllm") -> dict[str, Any]:
    """Return an error for a response that is a stream already."""
    body = error.body(engine)
    return {"error": body} if engine == "sglang" else body


def injected(status: int) -> SimulatedError:
    """Return the error that a fault plan requests."""
    message = ENGINE_BUSY if status == 503 else ENGINE_DEAD if status == 500 else "Simulated fault."
    return SimulatedError(status, message)
