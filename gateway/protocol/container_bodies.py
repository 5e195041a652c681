"""Bodies and objects of the Containers API and the Files API.

Source: https://platform.openai.com/docs/api-reference/containers and .../files, as the types of
OpenAI's client have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

from pydantic import Field, StringConstraints

from gateway.errors import InvalidRequest, ResourceNotFound, shown
from gateway.protocol.base import AS_INTEGER, BodyModel, Many, WireModel, without_nulls
from gateway.protocol.hosted_tools import FILE_IDS_MAX, MemoryLimit
from gateway.protocol.json_body import parse_object
from gateway.protocol.request_errors import (
    B,
    missing,
    number_out_of_range,
    string_too_long,
    unsupported,
    validated_body,
    wrong_type,
    wrong_value,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.protocol.json_body import InputLimits

GIB: Final = 1024**3
MEMORY_LIMITS: Final[Mapping[str, int]] = {
    name: int(name.removesuffix("g")) * GIB for name in get_args(MemoryLimit)
}
NAME_CHARS_MAX: Final = 256
MINUTES_MAX: Final = 20
"""OpenAI's bound."""
PURPOSES: Final = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
ANCHOR: Final = "expires_after[anchor]"
SECONDS: Final = "expires_after[seconds]"
UPLOAD_FIELDS: Final = ("purpose", ANCHOR, SECONDS)
"""Besides the file."""
SECONDS_MIN, SECONDS_MAX = 3600, 2_592_000
"""OpenAI's bounds on the lifetime of an uploaded file."""

_FileId = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class ExpiresAfter(WireModel):
    anchor: Literal["last_active_at"]
    minutes: Annotated[int, Field(ge=1, le=MINUTES_MAX), AS_INTEGER]


class NetworkPolicy(WireModel):
    """Code in containers has no network."""

    type: Literal["disabled", "allowlist"]


class NewContainer(BodyModel):
    """Body of `POST /v1/containers`."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=NAME_CHARS_MAX)]
    expires_after: ExpiresAfter = ExpiresAfter(anchor="last_active_at", minutes=MINUTES_MAX)
    file_ids: Annotated[Many[_FileId], Field(max_length=FILE_IDS_MAX)] = ()
    memory_limit: MemoryLimit = "1g"
    network_policy: NetworkPolicy = NetworkPolicy(type="disabled")


class NewContainerFile(BodyModel):
    """Body of `POST /v1/containers/{id}/files`, where it is JSON."""

    file_id: _FileId


def parse_container(body: bytes, *, limits: InputLimits, strict: bool = False) -> NewContainer:
    container = _parse(NewContainer, body, limits, strict=strict, extra=("skills",))
    if container.network_policy.type != "disabled":
        raise unsupported("network_policy.type", "Leave it out: code has no network.")
    return container


def parse_container_file(
    body: bytes, *, limits: InputLimits, strict: bool = False
) -> NewContainerFile:
    return _parse(NewContainerFile, body, limits, strict=strict)


def _parse(
    model: type[B], body: bytes, limits: InputLimits, *, strict: bool, extra: tuple[str, ...] = ()
) -> B:
    document = without_nulls(parse_object(body, limits))
    for name in extra:
        if document.get(name):
            raise unsupported(name, "Put what they hold into files of the container.")
    return validated_body(model, document, strict=strict, unreported=extra)


def parse_upload(fields: Mapping[str, str]) -> tuple[str, int | None]:
    purpose = fields.get("purpose")
    if purpose is None:
        raise missing("purpose")
    if purpose not in PURPOSES:
        raise wrong_value("purpose", purpose, PURPOSES)
    anchor, seconds = fields.get(ANCHOR), fields.get(SECONDS)
    if anchor is None and seconds is None:
        return purpose, None
    if anchor != "created_at":
        raise wrong_value("expires_after.anchor", anchor or "", ("created_at",))
    if seconds is None:
        raise missing("expires_after.seconds")
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) < 10):
        raise wrong_type("expires_after.seconds", "an integer", seconds)
    if not SECONDS_MIN <= int(seconds) <= SECONDS_MAX:
        is_above = int(seconds) > SECONDS_MAX
        raise number_out_of_range(
            "expires_after.seconds",
            int(seconds),
            bound=SECONDS_MAX if is_above else SECONDS_MIN,
            above=is_above,
        )
    return purpose, int(seconds)


def check_file_name(name: str) -> str:
    bare = name.replace("\\", "/").rpartition("/")[2]
    if len(bare) > NAME_CHARS_MAX:
        raise string_too_long("file", len(bare), NAME_CHARS_MAX)
    if bare in {"", ".", ".."} or not bare.isprintable():
        raise InvalidRequest(
            "Invalid 'file': expected a file with a name of printable characters.",
            code="invalid_value",
            param="file",
        )
    return bare


def memory_limit_of(memory_bytes: int) -> str | None:
    return next((name for name, size in MEMORY_LIMITS.items() if size == memory_bytes), None)


def unknown_container(container_id: str, *, param: str | None = None) -> ResourceNotFound:
    return ResourceNotFound(
        f"Container with id '{shown(container_id)}' not found. Create one with POST "
        "/v1/containers.",
        code="container_not_found",
        param=param or "container_id",
    )


def expired_container(container_id: str, *, param: str | None = None) -> InvalidRequest:
    return InvalidRequest(
        f"Container '{shown(container_id)}' has expired: its files and variables are gone. Use "
        'another one, or let the server choose one with {"type": "auto"}.',
        code="container_expired",
        param=param,
    )


def unknown_file(file_id: str, *, param: str | None = None) -> ResourceNotFound:
    return ResourceNotFound(
        f"No such File object: '{shown(file_id)}'. It was deleted, has expired, or never was.",
        param=param,
    )


def deleted(kind: str, public_id: str) -> dict[str, Any]:
    return {"id": public_id, "object": kind, "deleted": True}
