"""Compressed request bodies: one gzip member or one zstd frame.

The size is bounded before decoding: a few compressed bytes may stand for gigabytes.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, Literal

import zstandard

from gateway.errors import InvalidRequest, PayloadTooLarge, UnsupportedEncoding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Coding = Literal["gzip", "zstd"]

RATIO_MAX: Final = 1_032
"""Ratio of decoded to compressed size: deflate's maximum. Conversations have about ten."""
FREE_BYTES: Final = 1 << 20
"""Decoded bytes that any body may have, whatever its ratio."""
WINDOW_BYTES_MAX: Final = 8 << 20
"""The maximum for clients of HTTP (RFC 9659)."""
ZSTD_PART_BYTES: Final = 256
"""Bytes decoded at a time. Four of them may stand for 128 KiB, so a body may exceed its bound by 8
MiB before that is noticed.
"""

_CODINGS: Final[Mapping[bytes, Coding]] = {b"gzip": "gzip", b"x-gzip": "gzip", b"zstd": "zstd"}
_MAGIC: Final[Mapping[Coding, bytes]] = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}


def coding_of(headers: Iterable[tuple[bytes, bytes]]) -> Coding | None:
    applied = _applied(headers)
    if not applied:
        return None
    if len(applied) > 1 or applied[0] not in _CODINGS:
        raise UnsupportedEncoding(
            "This Content-Encoding is not supported. Compress the body once, with gzip or zstd, or "
            "send it as it is, without the header.",
            b"identity, gzip, zstd",
        )
    return _CODINGS[applied[0]]


def check_unencoded(headers: Iterable[tuple[bytes, bytes]]) -> None:
    if _applied(headers):
        raise UnsupportedEncoding(
            "Files are not taken compressed: send the form as it is, without Content-Encoding.",
            b"identity",
        )


def _applied(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    applied: list[bytes] = []
    for header, value in headers:
        if header == b"content-encoding":
            names = (name.strip().lower() for name in value.split(b","))
            applied += [name for name in names if name not in {b"", b"identity"}]
    return applied


def decoded(coding: Coding, body: bytes, bytes_max: int) -> bytes:
    """Decode a body; raises `PayloadTooLarge`, or `InvalidRequest` for bad or truncated data."""
    room = min(bytes_max, max(FREE_BYTES, RATIO_MAX * len(body)))
    try:
        content, rest = _DECODERS[coding](body, room)
    except (zlib.error, zstandard.ZstdError):
        raise _invalid(
            f"It is not {coding} data, or is damaged: compress it as the Content-Encoding header "
            "says, or leave the header out."
        ) from None
    if len(content) > room:
        raise PayloadTooLarge(
            f"The request body has more than {room} bytes once it is decoded, which is more than "
            "is read of it. Send less input at once, or send it uncompressed."
        )
    if rest is None:
        raise _invalid(f"Its {coding} data is cut off: send all of it.")
    if rest:
        raise _invalid(
            f"There is more behind its {coding} data: send one gzip member or one zstd frame."
        )
    return content


def check_plain(body: bytes) -> None:
    """Refuse a body that is compressed although its headers do not say so."""
    for coding, magic in _MAGIC.items():
        if body.startswith(magic):
            raise _invalid(
                f"It is {coding} data: send the header 'Content-Encoding: {coding}' with it."
            )


def _gunzip(body: bytes, room: int) -> tuple[bytes, bytes | None]:
    # Returns one byte more than `room` at most, and what follows the member (None: it is cut off).
    decoder = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    content = decoder.decompress(body, room + 1)
    return content, decoder.unused_data if decoder.eof else None


def _unzstd(body: bytes, room: int) -> tuple[bytes, bytes | None]:
    decoder = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX).decompressobj()
    content = bytearray()
    for start in range(0, len(body), ZSTD_PART_BYTES):
        content += decoder.decompress(body[start : start + ZSTD_PART_BYTES])
        if decoder.eof:
            return bytes(content), decoder.unused_data + body[start + ZSTD_PART_BYTES :]
        if len(content) > room:
            break
    return bytes(content), None


def _invalid(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"We could not decode the body of your request. {why}", code="invalid_content_encoding"
    )


_DECODERS: Final[Mapping[Coding, Callable[[bytes, int], tuple[bytes, bytes | None]]]] = {
    "gzip": _gunzip,
    "zstd": _unzstd,
}
