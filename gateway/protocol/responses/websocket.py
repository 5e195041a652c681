"""WebSocket mode: frames of clients, one JSON object each (responses-api §1.12).

`response.create` is the body of `POST /v1/responses` with `type`, and with `stream_id` and
`generate`, which only this transport has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from gateway.errors import InvalidRequest
from gateway.protocol.hosted_tools import NO_FAMILIES
from gateway.protocol.json_body import parse_object
from gateway.protocol.request_errors import invalid, missing, wrong_type, wrong_value
from gateway.protocol.responses.create_request import parse_create, warm_up

if TYPE_CHECKING:
    from collections.abc import Collection

    from gateway.protocol.hosted_tools import HostedFamily
    from gateway.protocol.json_body import InputLimits
    from gateway.protocol.responses.create_request import CreateResponse

FrameType = Literal["response.create", "response.steer"]

CREATE: Final = "response.create"
STEER: Final = "response.steer"
FRAME_TYPES: Final = (CREATE, STEER)
STREAM_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")
STEER_FIELDS: Final = ("previous_response_id", "input")

_ENVELOPE: Final = frozenset({"type", "stream_id", "generate"})
_TRANSPORT: Final = ("stream", "stream_options", "background")
"""Parameters that the connection settles."""


@dataclass(frozen=True, slots=True)
class ClientFrame:
    """Frame parsed as far as needed to find its lane; `stream_id` None is the unnamed one."""

    kind: object
    stream_id: str | None
    previous_response_id: str | None
    text: bytes

    @property
    def type(self) -> FrameType:
        """Return the type. Raises `InvalidRequest`: by now the lane on which it is refused is
        known.
        """
        if self.kind is None:
            raise missing("type")
        if not isinstance(self.kind, str):
            raise wrong_type("type", "a string", self.kind)
        if self.kind not in FRAME_TYPES:
            raise wrong_value("type", self.kind, FRAME_TYPES)
        return cast("FrameType", self.kind)


@dataclass(frozen=True, slots=True)
class CreateFrame:
    """Request of a frame. Without `generate` the model is not asked; padding (`obfuscated`) is
    opt-in here.
    """

    request: CreateResponse
    generate: bool
    obfuscated: bool


def read_frame(text: bytes, limits: InputLimits) -> ClientFrame:
    fields = parse_object(text, limits)
    previous = fields.get("previous_response_id")
    return ClientFrame(
        kind=fields.get("type"),
        stream_id=_stream_id(fields.get("stream_id")),
        previous_response_id=previous if isinstance(previous, str) else None,
        text=text,
    )


def read_turn(
    text: bytes,
    *,
    limits: InputLimits,
    strict: bool,
    served: Collection[HostedFamily] = NO_FAMILIES,
) -> CreateFrame:
    """Parse the request of a frame that `read_frame` took. Raises as `create_request.parse_create`.

    Clients that share their code with HTTP send `stream`, `stream_options` and `background` (Codex,
    OpenAI's Agents SDK). Unless `strict`, they may have the values that a connection implies.
    """
    fields = parse_object(text, limits)
    _check_transport(fields, strict=strict)
    body = {name: value for name, value in fields.items() if name not in _ENVELOPE}
    request = parse_create(
        body | {"stream": True},
        limits=limits,
        strict=strict,
        served=served,
        # A warm-up may have instructions and tools, and no input yet.
        needs_input=fields.get("generate") is not False,
    )
    is_warm_up = not _generate(fields.get("generate"))
    options = fields.get("stream_options") or {}
    return CreateFrame(
        warm_up(request, "'generate' set to false") if is_warm_up else request,
        generate=not (is_warm_up or request.prewarms),
        obfuscated=options.get("include_obfuscation") is True,
    )


def read_steer(text: bytes, limits: InputLimits) -> dict[str, Any]:
    """Return the content of a `response.steer`, which is sent back."""
    fields = parse_object(text, limits)
    for name in STEER_FIELDS:
        if name not in fields:
            raise missing(name)
    return {name: fields[name] for name in STEER_FIELDS}


def _stream_id(value: object) -> str | None:
    if value is None or (isinstance(value, str) and STREAM_ID.fullmatch(value)):
        return value
    expected = "expected a string of 1 to 256 letters, digits, underscores, dashes or dots."
    raise invalid("stream_id", expected, "invalid_stream_id")


def _generate(value: object) -> bool:
    if isinstance(value, bool | None):
        return value is not False
    raise wrong_type("generate", "a boolean", value)


def _check_transport(fields: dict[str, Any], *, strict: bool) -> None:
    for name in _TRANSPORT:
        if name in fields and (strict or _asks_otherwise(name, fields[name])):
            raise InvalidRequest(
                f"Unsupported parameter: '{name}' is not supported in WebSocket mode: a response "
                "is always streamed, and never generated in the background. Leave it out, or use "
                "POST /v1/responses.",
                code="unsupported_parameter",
                param=name,
            )


def _asks_otherwise(name: str, value: object) -> bool:
    usual = {"stream": True, "background": False}
    return name in usual and value is not None and value is not usual[name]
