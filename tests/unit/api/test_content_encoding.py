"""Compressed bodies: decoded within bounds, or refused with what is wrong with them."""

from __future__ import annotations

import gzip
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.content_encoding import (
    FREE_BYTES,
    RATIO_MAX,
    ZSTD_PART_BYTES,
    check_plain,
    coding_of,
    decoded,
)
from gateway.errors import InvalidRequest, PayloadTooLarge, UnsupportedEncoding
from tests.fakes.cases import each

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.api.content_encoding import Coding

BYTES_MAX = 16 << 20
BODY = b'{"model": "gpt-oss-20b", "input": "hi"}'


def zstd(content: bytes, window_log: int = 21) -> bytes:
    """A frame as clients stream it: it does not say how long its content is."""
    terms = zstandard.ZstdCompressionParameters(window_log=window_log, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=terms).compressobj()
    return compressor.compress(content) + compressor.flush()


COMPRESSED: dict[Coding, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd}
both = pytest.mark.parametrize("coding", COMPRESSED)


@both
@given(st.binary(max_size=4_000) | st.binary(max_size=50).map(lambda part: part * 500))
def test_a_body_is_what_was_compressed(coding: Coding, content: bytes) -> None:
    assert decoded(coding, COMPRESSED[coding](content), BYTES_MAX) == content


def test_a_frame_may_say_how_long_its_content_is() -> None:
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(BODY * 10_000)
    assert decoded("zstd", frame, BYTES_MAX) == BODY * 10_000


@both
def test_the_bound_is_that_of_any_body(coding: Coding) -> None:
    body = COMPRESSED[coding](BODY)
    assert decoded(coding, body, len(BODY)) == BODY
    with pytest.raises(PayloadTooLarge, match=f"more than {len(BODY) - 1} bytes once"):
        decoded(coding, body, len(BODY) - 1)


@pytest.mark.parametrize("size_bytes", [64 << 20, 1 << 30])
def test_little_is_made_of_a_bomb(size_bytes: int) -> None:
    """The same block again and again, which is all zeros."""
    frame = bytearray(zstd(bytes(4 << 20)))
    block = b"\x02\x00\x10" + b"\x00"  # of one repeated byte, 128 KiB long, and not the last
    bomb = bytes(frame[:6]) + block * (size_bytes >> 17)
    with pytest.raises(PayloadTooLarge):
        decoded("zstd", bomb, BYTES_MAX)


def test_a_short_body_has_a_bound_of_its_own() -> None:
    body = zstd(bytes(4 << 20))
    room = max(FREE_BYTES, RATIO_MAX * len(body))
    assert room < 4 << 20
    with pytest.raises(PayloadTooLarge, match=f"more than {room} bytes once"):
        decoded("zstd", body, BYTES_MAX)
    assert decoded("zstd", zstd(bytes(FREE_BYTES)), BYTES_MAX) == bytes(FREE_BYTES)


@both
def test_a_body_that_is_cut_off_is_refused(coding: Coding) -> None:
    body = COMPRESSED[coding](BODY * 100)
    for length in range(len(body)):
        with pytest.raises(InvalidRequest) as refusal:
            decoded(coding, body[:length], BYTES_MAX)
        assert refusal.value.code == "invalid_content_encoding"
        assert "is cut off" in refusal.value.message


@both
@pytest.mark.parametrize("behind", [b"x", b"\x00" * ZSTD_PART_BYTES])
def test_nothing_may_stand_behind_it(coding: Coding, behind: bytes) -> None:
    body = COMPRESSED[coding](BODY)
    for more in (behind, body):
        with pytest.raises(InvalidRequest, match="There is more behind"):
            decoded(coding, body + more, BYTES_MAX)


@both
@given(st.data())
def test_what_is_damaged_is_refused_or_read(coding: Coding, data: st.DataObject) -> None:
    body = bytearray(COMPRESSED[coding](BODY * 20))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    with suppress(InvalidRequest, PayloadTooLarge):
        decoded(coding, bytes(body), BYTES_MAX)


@both
def test_a_body_of_another_kind_is_refused(coding: Coding) -> None:
    others = [compressed(BODY) for other, compressed in COMPRESSED.items() if other != coding]
    for body in (BODY, zlib.compress(BODY), *others):
        with pytest.raises(InvalidRequest, match="as the Content-Encoding header says"):
            decoded(coding, body, BYTES_MAX)


def test_a_frame_may_not_ask_for_much_memory() -> None:
    assert decoded("zstd", zstd(BODY, window_log=23), BYTES_MAX) == BODY
    with pytest.raises(InvalidRequest):
        decoded("zstd", zstd(BODY, window_log=24), BYTES_MAX)


@each(
    ("values", "coding"),
    [
        ([], None),
        ([b""], None),
        ([b"identity"], None),
        ([b"identity, Identity"], None),
        ([b"gzip"], "gzip"),
        ([b" X-GZip "], "gzip"),
        ([b"identity", b"zstd"], "zstd"),
        ([b"ZSTD, identity"], "zstd"),
    ],
)
def test_headers_say_how_it_is_compressed(values: list[bytes], coding: Coding | None) -> None:
    assert coding_of([(b"content-encoding", value) for value in values]) == coding


@pytest.mark.parametrize(
    "values", [[b"br"], [b"deflate"], [b"gzip, gzip"], [b"gzip", b"zstd"], [b"gzip;q=1"], [b"\xff"]]
)
def test_what_is_compressed_otherwise_is_refused(values: list[bytes]) -> None:
    with pytest.raises(UnsupportedEncoding) as refusal:
        coding_of([(b"content-encoding", value) for value in values])
    assert refusal.value.accepted == b"identity, gzip, zstd"


@both
def test_compressed_data_without_a_header_is_named(coding: Coding) -> None:
    with pytest.raises(InvalidRequest, match=f"'Content-Encoding: {coding}'"):
        check_plain(COMPRESSED[coding](BODY))
    check_plain(BODY)
    check_plain(zlib.compress(BODY))
