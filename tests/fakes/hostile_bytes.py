"""The worst that bytes may be which others sent, one after the other: each may be of many MiB."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from gateway.protocol.json_body import MEMBER_VALUES, VALUES_MAX, InputLimits
from gateway.settings import Settings
from gateway.upstreams.pool import ANSWER_BYTES_MAX
from gateway.upstreams.tokenization import IDS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.api.content_encoding import Coding

_SETTINGS: Final = Settings()
BODY_BYTES: Final = _SETTINGS.limits.body_bytes_max
_CHAT_PART: Final = b'{"type":"text","text":"a"}'
_CHAT_CALL: Final = b'{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}'


def distinct_members(count: int) -> bytes:
    """Of an object."""
    return b",".join(b'"%x":1' % number for number in range(count))


def repeated(element: bytes, count: int) -> bytes:
    """Of an array."""
    return b",".join([element] * count)


def json_bodies() -> Iterator[bytes]:
    """Some are refused before they are parsed, the others are the longest to parse."""
    for piece in (b"1,", b"[],", b'"\\\\[",', b"[", b'"",', b'"":1,'):
        yield b'{"input":[' + piece * ((BODY_BYTES - 20) // len(piece)) + b"1]}"
    yield b'{"input":[%b]}' % repeated('"é"'.encode(), VALUES_MAX - 10)
    yield b"{%b}" % distinct_members(VALUES_MAX // MEMBER_VALUES - 10)


def chat_bodies() -> Iterator[bytes]:
    """As many parts, calls, messages and parameters as may be."""
    limits = InputLimits()
    parts = repeated(_CHAT_PART, limits.json_containers_max - 10)
    calls = repeated(_CHAT_CALL, limits.json_containers_max // 2 - 10)
    for messages in (
        b'{"role":"user","content":[%b]}' % parts,
        b'{"role":"assistant","tool_calls":[%b]}' % calls,
        repeated(b'{"role":"user","content":"a"}', limits.items_max),
    ):
        yield b'{"model":"m","messages":[%b]}' % messages
    yield b'{"model":"m","messages":[],%b}' % distinct_members(VALUES_MAX // MEMBER_VALUES - 10)


def compressed_bodies() -> Iterator[tuple[Coding, bytes]]:
    """Blocks of nothing without end, and bombs."""
    gzip_head, zstd_head = b"\x1f\x8b\x08" + bytes(7), b"\x28\xb5\x2f\xfd\x00\x58"
    empty_blocks = sum(2 << 10 * at for at in range(4)).to_bytes(5, "little")
    yield "gzip", gzip_head + empty_blocks * (BODY_BYTES // 5 - 10)
    bomb = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    yield "gzip", bomb.compress(bytes(8 * BODY_BYTES)) + bomb.flush()
    yield "zstd", zstd_head + bytes(BODY_BYTES - 10)
    yield "zstd", zstd_head + b"\x02\x00\x10\x00" * (8 * BODY_BYTES >> 17)


def data_urls() -> Iterator[str]:
    """Of images that are none."""
    for kind, end in (("png", ""), ("png", "=A"), ("bmp", "")):
        yield f"data:image/{kind};base64,{'A' * (BODY_BYTES - 100)}{end}"


def event_streams(event_bytes: int) -> Iterator[bytes]:
    """Of a backend that may send events of so many bytes, and 20 times that with logprobs."""
    told = b'data: {"choices":[{"index":0,"token_ids":[1],"delta":{"content":"a"},"x":%b}]}\n\n'
    for value in (
        b"[" + b"[]," * (event_bytes // 3) + b"1]",
        b"[" + b"[]," * (20 * event_bytes // 3) + b"1]",
        b"{%b}" % distinct_members(event_bytes // 10),
        b"[" * event_bytes,
        b'"%b"' % (b"\\ud800" * (event_bytes // 6)),
    ):
        yield told % value
    yield b"data:\n" * event_bytes
    yield b"\n" * 4 * event_bytes


def renderings() -> Iterator[bytes]:
    """Answers of a backend that renders a chat template."""
    size = 8 * IDS_MAX - 100
    yield b'{"tokens":[%b]}' % repeated(b"100000", IDS_MAX)
    yield b'{"tokens":[%b]}' % repeated(b"[]", size // 3)
    yield b'{"tokens":[1],"x":[%b]}' % repeated(b"[]", size // 3)
    yield b'{"tokens":[1],"x":' + b"[" * size


def proxied_answers() -> Iterator[bytes]:
    """Answers with embeddings, or what should be some."""
    size = ANSWER_BYTES_MAX - 100
    yield b'{"data":[%b]}' % repeated(b"[]", size // 3)
    yield b'{"x":[%b]}' % repeated(b"[]", size // 3)
    yield b"{%b}" % distinct_members(size // 12)
    yield b'{"data":' + b"[" * size


def forms() -> Iterator[bytes]:
    """Of the boundary `b`, and of 8 MiB: files of lines like it, heads, and fields without end."""
    file = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    field = b'--b\r\ncontent-disposition: form-data; name="x"\r\n\r\n\r\n'
    size = 1 << 23
    yield file + b"\r\n--" * (size // 4) + b"\r\n--b--\r\n"
    yield file + b"\r\n" * (size // 2) + b"\r\n--b--\r\n"
    yield b"--b\r\n" + b"a: b\r\n" * (size // 6)
    yield field * (size // len(field))
    yield b'--b\r\ncontent-disposition: form-data; name="' + b"a" * size
    yield b"\r\n" * (size // 2)
