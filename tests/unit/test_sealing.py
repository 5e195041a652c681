"""Seals: opened by whom they are for and by nobody else, whatever is done to them."""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.sealing import (
    Binding,
    DataKey,
    SealBroken,
    Sealer,
    SealingSecret,
    Unsealed,
    derived_keys,
)
from tests.fakes.cases import each
from tests.fakes.examples import examples

TENANT, OTHER_TENANT = UUID(int=1), UUID(int=2)
OLD = SealingSecret("old", b"a secret of sixteen or more")
NEW = SealingSecret("new", b"another secret, just as long")
SEALER = Sealer([OLD])
BINDING = Binding(TENANT, "gpt-oss-20b", "old")
CONTENT = Unsealed(ids=(200006, 173781, 1, 200007)).content
KNOWN = "hgw1.A29sZESxKnpWMF5rRWvNjRphrA1Jjb0KgT4HrCWRSf5WMJ0ScYhsmDX8Qry95QCjVw"
SURROGATE = "\ud83d"

texts = st.text(st.characters(exclude_categories=["Cs"]))
unsealed = st.one_of(
    st.lists(st.integers(0, 2**32 - 1)).map(lambda ids: Unsealed(ids=tuple(ids))),
    texts.map(lambda text: Unsealed(text=text)),
)
few = settings(max_examples=examples(50), deadline=None)


def sealed(content: bytes = CONTENT, binding: Binding = BINDING, sealer: Sealer = SEALER) -> str:
    seal = sealer.seal(binding, content)
    assert seal is not None
    return seal


def opened(seal: str, sealer: Sealer = SEALER) -> bytes:
    return sealer.open(seal, TENANT, "gpt-oss-20b")


def bytes_of(seal: str) -> bytearray:
    body = seal.removeprefix("hgw1.")
    return bytearray(urlsafe_b64decode(body + "=" * (-len(body) % 4)))


def spelled(packed: bytes | bytearray) -> str:
    return "hgw1." + urlsafe_b64encode(packed).decode().rstrip("=")


@few
@given(unsealed, texts)
def test_ids_and_text_come_back_as_they_were(said: Unsealed, model: str) -> None:
    seal = sealed(said.content, Binding(TENANT, model, "old"))
    assert Unsealed.of(SEALER.open(seal, TENANT, model)) == said


def test_a_seal_is_the_same_on_every_replica_and_in_every_release() -> None:
    assert sealed() == sealed(sealer=Sealer([NEW, OLD])) == KNOWN
    assert opened(KNOWN) == CONTENT


@few
@given(st.binary(max_size=64), st.binary(max_size=64))
def test_no_two_contents_share_a_nonce(one: bytes, other: bytes) -> None:
    nonces = {bytes(bytes_of(sealed(content))[4:16]) for content in (one, other)}
    assert len(nonces) == len({one, other})


@pytest.mark.parametrize(
    ("tenant", "model"),
    [(OTHER_TENANT, "gpt-oss-20b"), (TENANT, "gpt-oss-120b"), (TENANT, "gpt-oss-20"), (TENANT, "")],
)
def test_a_seal_is_opened_for_its_tenant_and_its_model_only(tenant: UUID, model: str) -> None:
    with pytest.raises(SealBroken):
        SEALER.open(sealed(), tenant, model)


def test_a_seal_with_any_bit_changed_is_broken() -> None:
    for position in range(len(bytes_of(KNOWN))):
        for bit in range(8):
            packed = bytes_of(KNOWN)
            packed[position] ^= 1 << bit
            assert_broken(spelled(packed))


def test_a_seal_with_any_character_changed_is_broken() -> None:
    for position in range(len(KNOWN)):
        for character in "AQ_-=. é\n":
            text = KNOWN[:position] + character + KNOWN[position + 1 :]
            if text != KNOWN:
                assert_broken(text)


def test_a_seal_that_was_cut_off_is_broken() -> None:
    for length in range(len(bytes_of(KNOWN))):
        assert_broken(spelled(bytes_of(KNOWN)[:length]))
        assert_broken(KNOWN[:length])


def assert_broken(seal: str) -> None:
    try:
        opened(seal)
    except SealBroken:
        return
    raise AssertionError(f"{seal!r} was opened")


@each(
    "text",
    [
        *("", "hgw1.", "hgw1.A", "hgw1.====", "hgw2" + KNOWN[4:], KNOWN + "=", KNOWN + "\n"),
        *(" " + KNOWN, KNOWN[5:], "gAAAAABo", SURROGATE, f"hgw1.{SURROGATE}", "hgw1.é", "\0"),
        *(spelled(b"\xff" * 300), spelled(b"\0" * 40), "hgw1." + KNOWN),
    ],
)
def test_other_text_is_broken(text: str) -> None:
    with pytest.raises(SealBroken):
        opened(text)


@given(st.text() | st.binary().map(spelled) | st.text().map(lambda text: "hgw1." + text))
def test_no_text_at_all_does_worse_than_being_broken(text: str) -> None:
    with pytest.raises(SealBroken):
        opened(text)


def test_a_key_that_seals_no_more_still_opens() -> None:
    rotated = Sealer([NEW, OLD])
    assert rotated.key_id == "new"
    assert opened(sealed(), rotated) == CONTENT
    fresh = sealed(binding=Binding(TENANT, "gpt-oss-20b", "new"), sealer=rotated)
    assert opened(fresh, rotated) == CONTENT
    assert fresh != sealed()


def test_a_key_that_is_gone_neither_seals_nor_opens() -> None:
    rotated = Sealer([NEW])
    assert rotated.seal(BINDING, CONTENT) is None
    with pytest.raises(SealBroken, match="key"):
        opened(sealed(), rotated)


def test_another_secret_under_the_same_id_opens_nothing() -> None:
    with pytest.raises(SealBroken):
        opened(sealed(), Sealer([SealingSecret("old", NEW.secret)]))


@pytest.mark.parametrize(
    "keys", [[], [OLD, OLD], [SealingSecret("", b"x")], [SealingSecret("k" * 256, b"x")]]
)
def test_keys_must_be_told_apart(keys: list[SealingSecret]) -> None:
    with pytest.raises(ValueError, match="sealing key"):
        Sealer(keys)


@pytest.mark.parametrize("content", [b"", b"\2", b"\0abc", b"\1\xff"])
def test_content_of_no_known_kind_is_broken(content: bytes) -> None:
    with pytest.raises(SealBroken):
        Unsealed.of(content)


def test_an_id_that_is_no_id_cannot_be_sealed() -> None:
    with pytest.raises(struct.error):
        _ = Unsealed(ids=(2**32,)).content


@few
@given(st.binary(min_size=1, max_size=200), st.binary(max_size=80))
def test_keys_are_derived_as_the_standard_says(secret: bytes, info: bytes) -> None:
    whole = HKDF(SHA256(), length=64, salt=None, info=info).derive(secret)
    assert b"".join(derived_keys(secret, info)) == whole


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_data_key_has_32_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        DataKey(bytes(size))


def test_a_data_key_seals_otherwise_each_time_and_names_the_same() -> None:
    key = DataKey(bytes(32))
    one, two = (key.seal(b"words", b"place") for _ in range(2))
    assert one != two
    assert len(one) == len(b"words") + DataKey.OVERHEAD_BYTES
    assert key.seal_name(b"name", b"place") == key.seal_name(b"name", b"place")
    assert key.open(key.seal_name(b"name", b"place"), b"place") == b"name"
    with pytest.raises(SealBroken):
        key.open(one, b"elsewhere")


def test_a_name_has_a_nonce_for_each_place() -> None:
    """Two seals under one nonce would give away what makes their tags."""
    key = DataKey(bytes(32))
    nonces = {key.seal_name(name, place)[:12] for name in (b"a", b"b") for place in (b"x", b"y")}
    assert len(nonces) == 4
