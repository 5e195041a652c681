"""Errors in vLLM's words: `{"error": {message, type, param, code}}`, code = HTTP status.

Sources: responses of vLLM 0.32.0, and of SGLang 0.5.23, which leaves the outer object away, but not
in a stream.
"""

from __future__ import annotations

from typing import Any

from gateway.errors import GatewayError

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    500: "InternalServerError",
    503: "Service Unavailable",
}

_SGLANG_TYPES = {400: "BadRequest", 500: "InternalServerError", 503: "SERVICE_UNAVAILABLE"}


class SimulatedError(GatewayError):
    """Answer to a request with `status` and `body()`."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind or _TYPES.get(status, "InternalServerError")
        self.param = param

    def body(self, engine: str = "vllm") -> dict[str, Any]:
        return self._flat() if engine == "sglang" else self._nested()

    def _flat(self) -> dict[str, Any]:
        return {
            "object": "error",
            "message": self.message,
            "type": _SGLANG_TYPES.get(self.status, str(self.status)),
            "param": None,
            "code": self.status,
        }

    def _nested(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.status,
            }
        }


def bad_request(message: str, param: str | None = None) -> SimulatedError:
    return SimulatedError(400, message, param=param)


def bad_shape(place: str, kind: str, message: str, value: object) -> SimulatedError:
    """Return the error of vLLM's request validation."""
    detail = {"type": kind, "loc": f"body.{place}", "msg": message, "input": str(value)[:100]}
    return SimulatedError(
        400, f"1 validation error:\n  {detail}", kind="Bad Request", param=f"body.{place}"
    )
