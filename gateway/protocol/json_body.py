"""Bytes of a request → a JSON object, within bounds.

orjson refuses what the later stages could not carry: lone surrogates, numbers beyond a double,
NaN, text that is not UTF-8, more than 1024 nested containers. Of duplicate keys the last wins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.protocol.limits import InputLimits

    Container = dict[str, Any] | list[Any]

DEPTH_MAX: Final = 200
"""Whatever the settings say: what is read must be written again, and orjson writes 254 levels."""

PIECE_BYTES: Final = 64 * 1024
_CONTAINERS: Final = (dict, list)  # a union would be made anew for each value


def parse_object(body: bytes, limits: InputLimits) -> dict[str, Any]:
    """The object that `body` spells. Raises `InvalidRequest`, whose code is null (OpenAI's way)."""
    if len(body) > 2 * limits.json_containers_max:
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
    for value in document.values():
        if isinstance(value, _CONTAINERS):
            _check_depth(document, min(limits.json_depth_max, DEPTH_MAX))
            break
    return document


def _check_size(body: bytes, containers_max: int) -> None:
    """Before anything is made of it: millions of values are made in one go, while all else waits.

    Most bodies have too few brackets at all. In others those are told apart that text is made of.
    """
    brackets = sum(map(_brackets, _pieces(body)))
    if brackets > containers_max and _containers(body) > containers_max:
        raise _too_many(containers_max)


def _pieces(body: bytes) -> Iterator[bytes]:
    return (body[start : start + PIECE_BYTES] for start in range(0, len(body), PIECE_BYTES))


def _brackets(piece: bytes) -> int:
    return piece.count(b"{") + piece.count(b"[")


def _containers(body: bytes) -> int:
    """How many objects and arrays it opens, if it is JSON."""
    count, in_string, rest = 0, False, b""
    for piece in _pieces(body):
        unread = rest + piece
        content = unread.rstrip(b"\\")
        rest = b"\\" * ((len(unread) - len(content)) % 2)  # of what is escaped behind it
        parts = content.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        count += sum(map(_brackets, parts[in_string::2]))
        in_string ^= len(parts) % 2 == 0
    return count


def _too_many(containers_max: int) -> InvalidRequest:
    return InvalidRequest(
        "The JSON body of your request has too many parts. Expected at most "
        f"{containers_max} objects and arrays."
    )


def _check_depth(document: dict[str, Any], depth_max: int) -> None:
    """Raise `InvalidRequest` for a document that is nested more deeply.

    Level by level, so that nothing recurses and a hostile body costs one look at each value.
    """
    level: list[Container] = [document]
    depth = 0
    while level:
        depth += 1
        if depth > depth_max:
            raise InvalidRequest(
                "The JSON body of your request is nested too deeply. Expected at most "
                f"{depth_max} levels."
            )
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, _CONTAINERS)
        ]
