"""Files on their way into an interpreter and out of it: in pieces, one in each message."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Protocol

from gateway.tools.python.engine import EngineBroken, FileRefused

if TYPE_CHECKING:
    from collections.abc import Mapping


class FileOrder(Protocol):
    """Function that sends an interpreter an order about a file, and returns its answer.

    `put` takes `at` and `content`, `get` takes `at` and `size` and answers with `content`.
    """

    async def __call__(self, kind: str, path: str, /, **given: object) -> Mapping[str, Any]: ...


async def put_file(order: FileOrder, path: str, content: bytes, *, piece_bytes: int) -> None:
    """Write a file, which may be empty, in pieces. Raises what `order` does."""
    for start in range(0, max(len(content), 1), piece_bytes):
        piece = base64.b64encode(content[start : start + piece_bytes]).decode()
        await order("put", path, at=start, content=piece)


async def get_file(order: FileOrder, path: str, *, piece_bytes: int, bytes_max: int) -> bytes:
    """Read a file in pieces.

    Raises `FileRefused` if it is longer than `bytes_max`, `EngineBroken` for an invalid piece, and
    what `order` does.
    """
    content = bytearray()
    while True:
        answer = await order("get", path, at=len(content), size=piece_bytes)
        try:
            piece = base64.b64decode(answer.get("content", ""), validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise EngineBroken("the interpreter gave a piece of a file that is none") from error
        content += piece
        if len(content) > bytes_max:
            raise FileRefused(f"{path} is longer than {bytes_max} bytes")
        if len(piece) < piece_bytes:
            return bytes(content)
