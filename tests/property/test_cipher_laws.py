"""Laws of sealed values and sealed logs: only its tenant reads it, in its place."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.encryption.cipher import (
    FRAMES,
    MAGIC,
    PLAIN_KEY,
    ContentCipher,
    keys_of,
    keys_of_log,
    plain_frame,
)
from gateway.errors import ContentSealed
from gateway.sealing import DataKey

ONE, TWO = DataKey(bytes(32)), DataKey(bytes(31) + b"\1")
TENANT, OTHER = UUID(int=1), UUID(int=2)
OLD = ContentCipher(TENANT, {1: ONE}, 1)
NEW = ContentCipher(TENANT, {1: ONE, 200: TWO}, 200)
PLAIN = ContentCipher(TENANT, {})
THEIRS = ContentCipher(OTHER, {1: ONE, 200: TWO}, 200)
RESPONSE = bytes(range(16))
values = st.binary(max_size=64) | st.binary(max_size=8).map(MAGIC.__add__)
places = st.tuples(st.sampled_from(["a.b", "a.c"]), st.lists(values | st.uuids() | st.integers(0)))
parts = st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=6)


@pytest.mark.slow
@given(values, places, st.sampled_from([OLD, NEW, PLAIN]))
def test_what_is_sealed_opens_with_any_key_there_is(
    value: bytes, place: tuple[str, list[bytes]], cipher: ContentCipher
) -> None:
    column, row = place
    stored = cipher.seal(value, column, *row)
    assert NEW.open(stored, column, *row) == value
    assert keys_of(stored) == {cipher.sealing}
    if cipher.seals:
        assert len(value) < 8 or value not in stored
        for reader in (PLAIN, THEIRS):
            with pytest.raises(ContentSealed):
                reader.open(stored, column, *row)
        with pytest.raises(ContentSealed):
            NEW.open(stored, column + "x", *row)
        with pytest.raises(ContentSealed):
            NEW.open(stored, column, *row, b"")
        with pytest.raises(ContentSealed):
            NEW.open(stored[:-1] + bytes([stored[-1] ^ 1]), column, *row)
    assert cipher.seal(None, column) is None
    assert cipher.open(None, column) is None


@pytest.mark.slow
@given(st.binary(max_size=30), st.lists(values, max_size=3))
def test_a_reader_says_which_keys_it_lacks(content: bytes, more: list[bytes]) -> None:
    # Whatever content begins with, it is a value: only a log is looked at as one.
    for plain in (content, FRAMES + content):
        assert keys_of(PLAIN.seal(plain, "a.b")) == {PLAIN_KEY}
        assert not PLAIN.lacks(PLAIN.seal(plain, "a.b")) or MAGIC in plain
        old, new = OLD.seal(plain, "a.b"), NEW.seal(plain, "a.b")
        assert not OLD.lacks(old)
        assert OLD.lacks(new)
        assert OLD.lacks(b"".join([*(OLD.seal(one, "a.b") for one in more), new]))
        assert not NEW.lacks(old + new)
    log = NEW.seal_entries(b"\1" + content, RESPONSE, 3, 0)
    assert OLD.lacks_of_log(log)
    assert not NEW.lacks_of_log(log)
    assert not PLAIN.lacks_of_log(b"\1" + content)


@pytest.mark.slow
@given(values, values)
def test_a_name_is_found_under_whichever_key_it_was_sealed(name: bytes, other: bytes) -> None:
    for writer in (PLAIN, OLD, NEW):
        stored = writer.seal_name(name, "files.name")
        assert stored == writer.seal_name(name, "files.name")
        assert stored in NEW.names(name, "files.name")
        assert (stored in NEW.names(other, "files.name")) == (name == other)
        assert NEW.open(stored, "files.name") == name


@pytest.mark.slow
@given(parts, st.data())
def test_frames_are_cut_and_joined_without_a_key(some: list[bytes], data: st.DataObject) -> None:
    frames = []
    for number, part in enumerate(some):
        cipher = data.draw(st.sampled_from([OLD, NEW, None]))
        packed = b"\1" + part
        frames.append(
            plain_frame(packed, 3, number)
            if cipher is None
            else cipher.seal_entries(packed, RESPONSE, 3, number)
        )
    begin = data.draw(st.integers(0, len(frames) - 1))
    joined = FRAMES + b"".join(frame[1:] for frame in frames[begin:])
    assert NEW.open_entries(joined, RESPONSE) == b"\1" + b"".join(some[begin:])
    if keys_of_log(joined) != {PLAIN_KEY}:
        for reader, response in ((THEIRS, RESPONSE), (PLAIN, RESPONSE), (NEW, RESPONSE[::-1])):
            with pytest.raises(ContentSealed):
                reader.open_entries(joined, response)
    if len(frames) - begin > 1:
        swapped = FRAMES + b"".join(frame[1:] for frame in frames[begin:][::-1])
        with pytest.raises(ValueError, match="order"):
            NEW.open_entries(swapped, RESPONSE)


@given(st.binary(max_size=40))
def test_damaged_bytes_are_an_error_of_a_known_kind(stored: bytes) -> None:
    if stored[:1] != b"\0":
        with pytest.raises(ContentSealed):
            NEW.open(MAGIC + stored, "a.b")
    with suppress(ContentSealed, ValueError):
        NEW.open_entries(FRAMES + stored, RESPONSE)


def test_plain_logs_stay_as_they_are() -> None:
    assert PLAIN.seal_entries(b"\1ab", RESPONSE, 1, 0) == b"\1ab"
    assert NEW.open_entries(b"\1ab", RESPONSE) == b"\1ab"
    assert NEW.open_entries(FRAMES, RESPONSE) == b""
    with pytest.raises(ValueError, match="several versions"):
        NEW.open_entries(
            FRAMES + plain_frame(b"\1a", 1, 0)[1:] + plain_frame(b"\2a", 1, 1)[1:], RESPONSE
        )
    with pytest.raises(ValueError, match="too long"):
        NEW.open_entries(FRAMES + b"\xff" * 12, RESPONSE)
    for reader in (NEW, PLAIN):
        assert not reader.lacks(MAGIC)
        assert not reader.lacks_of_log(FRAMES + b"\xff" * 12)
    with pytest.raises(ValueError, match="cut off"):
        NEW.open_entries(FRAMES + b"\x7f" * 2, RESPONSE)
