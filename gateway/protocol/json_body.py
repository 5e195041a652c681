"""Bytes of a request → a JSON object, within bounds.

orjson refuses what the later stages could not carry: lone surrogates, numbers beyond a double, NaN,
text that is not UTF-8, more than 1024 nested containers. Of duplicate keys the last wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.constraints.schemas import SchemaBounds
from gateway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VALUES_MAX: Final = 2_000_000
"""orjson makes all values in one call, in which no other thread runs: 0.25 s."""
DEPTH_MAX: Final = 128
"""A body is written again in a response in an event, and orjson writes 254 levels."""
MEMBER_VALUES: Final = 5
"""A member of an object counts as so many: its name is looked up among all others."""
PIECE_BYTES: Final = 64 * 1024
_CONTAINERS: Final = (dict, list)


@dataclass(frozen=True, slots=True)
class InputLimits(SchemaBounds):
    """Bounds of one body. `grammar_bytes_max` is for all custom tools of one request.
    `rejects_media` refuses images and files in new messages.
    """

    json_depth_max: int = DEPTH_MAX
    json_containers_max: int = 100_000
    items_max: int = 10_000
    tools_max: int = 512
    text_chars_max: int = 10 * 1024 * 1024
    grammar_bytes_max: int = 64 * 1024
    rejects_media: bool = False


def parse_object(body: bytes, limits: InputLimits) -> dict[str, Any]:
    """Parse a JSON object. Raises `InvalidRequest`, with a null code as OpenAI does."""
    if len(body) > min(2 * limits.json_containers_max, VALUES_MAX):
        _check_size(body, limits.json_containers_max)
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            "We could not parse the JSON body of your request. It is no valid JSON "
            f"({error}): send one JSON object, encoded as UTF-8."
        ) from None
    if not isinstance(document, dict):
        raise InvalidRequest(
            "We could not parse the JSON body of your request. It is JSON, but it is not a JSON "
            'object: send one such as {"model": "...", "input": "..."}.'
        )
    if not is_within_depth(document, limits.json_depth_max):
        raise InvalidRequest(
            "The JSON body of your request is nested too deeply. Expected at most "
            f"{limits.json_depth_max} levels."
        )
    return document


def is_within_depth(document: dict[str, Any], depth_max: int) -> bool:
    # Level by level, so that nothing recurses and a hostile body costs one look at each value.
    level: list[Any] = [document]
    for _ in range(depth_max):
        level = [
            child
            for container in level
            for child in (container.values() if type(container) is dict else container)
            if type(child) in _CONTAINERS
        ]
        if not level:
            return True
    return False


def _check_size(body: bytes, containers_max: int) -> None:
    # Runs before parsing: parsing millions of values at once would block the event loop.
    containers, values = _count(_pieces(body))
    if containers <= containers_max and values <= VALUES_MAX:
        return
    containers, values = _count(_outside_texts(body))
    if containers > containers_max:
        raise InvalidRequest(
            "The JSON body of your request has too many parts. Expected at most "
            f"{containers_max} objects and arrays."
        )
    if values > VALUES_MAX:
        raise InvalidRequest(
            "The JSON body of your request has too many parts. Expected at most "
            f"{VALUES_MAX} values, of which each member of an object counts as {MEMBER_VALUES}."
        )


def _count(parts: Iterable[bytes]) -> tuple[int, int]:
    # Objects and arrays, and values after the first one of each, as the signs in the parts tell.
    containers = commas = colons = 0
    for part in parts:
        containers += part.count(b"{") + part.count(b"[")
        commas += part.count(b",")
        colons += part.count(b":")
    return containers, commas + (MEMBER_VALUES - 1) * colons


def _pieces(body: bytes) -> Iterator[bytes]:
    return (body[start : start + PIECE_BYTES] for start in range(0, len(body), PIECE_BYTES))


def _outside_texts(body: bytes) -> Iterator[bytes]:
    in_string, rest = False, b""
    for piece in _pieces(body):
        unread = rest + piece
        content = unread.rstrip(b"\\")
        rest = b"\\" * ((len(unread) - len(content)) % 2)  # of what is escaped behind it
        parts = content.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[in_string::2])
        in_string ^= len(parts) % 2 == 0
