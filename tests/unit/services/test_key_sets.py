"""When keys of issuers are fetched, and when not: against a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from gateway.errors import IssuerUnavailable
from gateway.services.federation import (
    KEYS_MAX,
    IssuerClient,
    KeyOrigin,
    KeySetPolicy,
    KeySets,
    by_id,
    key_for,
)
from gateway.tenancy.issuers import KeySource
from tests.fakes.cases import each
from tests.fakes.clock import Clock
from tests.fakes.issuer import SigningKey

if TYPE_CHECKING:
    from collections.abc import Sequence

POLICY = KeySetPolicy(fresh_s=100, stale_s=1000, unknown_interval_s=60, retry_s=5, issuers_max=2)
KEY = SigningKey.new("a").jwk
ISSUER = KeyOrigin("https://a.example", KeySource(jwks_url="https://a.example/keys"))


class Keys(IssuerClient):
    """What issuers list; `is_away`: they do not answer. `gate`: they answer when it is set."""

    def __init__(self) -> None:
        self.listed: list[object] = [KEY]
        self.is_away = False
        self.asked: Counter[str] = Counter()
        self.gate = asyncio.Event()
        self.gate.set()

    @override
    async def keys(self, origin: KeyOrigin) -> Sequence[object]:
        self.asked[origin.issuer] += 1
        await self.gate.wait()
        if self.is_away:
            raise IssuerUnavailable("away")
        return list(self.listed)

    @override
    async def close(self) -> None:
        self.gate.set()


@pytest.fixture
def fetcher() -> Keys:
    return Keys()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sets(fetcher: Keys, clock: Clock) -> KeySets:
    return KeySets(fetcher, POLICY, clock=clock)


async def settled() -> None:
    """What was begun in the background is over: a task is, after two rounds of the loop."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_keys_are_fetched_once_for_all_that_wait(sets: KeySets, fetcher: Keys) -> None:
    fetcher.gate.clear()
    waiting = [asyncio.create_task(sets.find(ISSUER, "a", "ES256")) for _ in range(50)]
    await settled()
    waiting[0].cancel()  # whose leaving does not end it for the others
    fetcher.gate.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert [one["kid"] for one in found[1:] if isinstance(one, dict)] == ["a"] * 49
    assert fetcher.asked == {ISSUER.issuer: 1}


async def test_keys_are_fetched_again_while_nobody_waits(
    sets: KeySets, fetcher: Keys, clock: Clock
) -> None:
    await sets.find(ISSUER, "a", "ES256")
    clock.now += 49
    await sets.find(ISSUER, "a", "ES256")
    assert fetcher.asked.total() == 1
    clock.now += 2
    fetcher.gate.clear()
    assert await sets.find(ISSUER, "a", "ES256") is not None
    assert await sets.find(ISSUER, "a", "ES256") is not None
    await settled()
    assert fetcher.asked.total() == 2
    fetcher.gate.set()
    await settled()
    clock.now += 49
    await sets.find(ISSUER, "a", "ES256")
    await settled()
    assert fetcher.asked.total() == 2


async def test_a_key_that_is_withdrawn_ends_with_the_next_fetch(
    sets: KeySets, fetcher: Keys, clock: Clock
) -> None:
    await sets.find(ISSUER, "a", "ES256")
    fetcher.listed = [SigningKey.new("b").jwk]
    clock.now += 51
    await sets.find(ISSUER, "a", "ES256")
    await settled()
    assert await sets.find(ISSUER, "b", "ES256") is not None
    assert await sets.find(ISSUER, "a", "ES256") is None


async def test_unknown_ids_do_not_become_requests(
    sets: KeySets, fetcher: Keys, clock: Clock
) -> None:
    await sets.find(ISSUER, "a", "ES256")
    for at in range(1000):
        assert await sets.find(ISSUER, f"made up {at}", "ES256") is None
        clock.now += 0.01
    assert fetcher.asked.total() == 2
    fetcher.listed.append(SigningKey.new("b").jwk)
    assert await sets.find(ISSUER, "b", "ES256") is None
    clock.now += 60
    assert await sets.find(ISSUER, "b", "ES256") is not None


async def test_the_last_good_keys_outlive_an_outage_for_a_time(
    sets: KeySets, fetcher: Keys, clock: Clock
) -> None:
    await sets.find(ISSUER, "a", "ES256")
    fetcher.is_away = True
    for _ in range(200):
        clock.now += 5.4
        assert await sets.find(ISSUER, "a", "ES256") is not None
        assert await sets.find(ISSUER, "unknown", "ES256") is None
        await settled()
    # Asked at most every five seconds, and not at all before they were old.
    assert 150 < fetcher.asked.total() < 210
    clock.now += 30
    with pytest.raises(IssuerUnavailable):
        await sets.find(ISSUER, "a", "ES256")
    fetcher.is_away = False
    clock.now += 6
    assert await sets.find(ISSUER, "a", "ES256") is not None


async def test_an_issuer_that_never_answered_is_asked_only_now_and_then(
    sets: KeySets, fetcher: Keys, clock: Clock
) -> None:
    fetcher.is_away = True
    for _ in range(100):
        with pytest.raises(IssuerUnavailable) as caught:
            await sets.find(ISSUER, "a", "ES256")
        assert caught.value.retry_after_s == 5
    assert fetcher.asked.total() == 1
    clock.now += 6
    fetcher.is_away = False
    assert await sets.find(ISSUER, "a", "ES256") is not None


async def test_only_so_many_issuers_are_remembered(sets: KeySets, fetcher: Keys) -> None:
    others = [KeyOrigin(f"https://{name}.example", ISSUER.source) for name in "bc"]
    for origin in (ISSUER, *others, ISSUER):
        assert await sets.find(origin, "a", "ES256") is not None
    assert fetcher.asked[ISSUER.issuer] == 2


async def test_what_is_being_fetched_ends_with_the_process(sets: KeySets, fetcher: Keys) -> None:
    fetcher.gate.clear()
    waiting = asyncio.create_task(sets.find(ISSUER, "a", "ES256"))
    await settled()
    await sets.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


RSA = SigningKey.new("r", "RS256").jwk


@each(
    "key",
    [
        "a", None, {}, {**KEY, "kid": None}, {**KEY, "kid": 7}, {**KEY, "use": "enc"},
        {**KEY, "kty": "oct", "k": "c2VjcmV0"}, {**KEY, "kty": None}, {**KEY, "key_ops": ["sign"]},
        {**KEY, "key_ops": "verify"}, {**RSA, "n": "AQAB"}, {**RSA, "n": "A" * 1_400},
        {**RSA, "n": None},
    ],
)  # fmt: skip
def test_what_is_no_key_to_verify_with_is_left_out(key: object) -> None:
    assert by_id([key, KEY]) == by_id([KEY])


def test_a_key_is_for_its_algorithm_alone_and_private_parts_are_forgotten() -> None:
    both: dict[str, Any] = {**RSA, "kid": "a", "d": "secret", "key_ops": ["verify"]}
    keys = by_id([KEY, both])
    assert key_for(keys, "a", "ES256") is not None
    found = key_for(keys, "a", "RS256")
    assert found is not None
    assert "d" not in found
    for algorithm in ("RS512", "HS256", "none", "EdDSA", ""):
        assert key_for(keys, "a", algorithm) is None
    assert key_for(keys, "b", "ES256") is None
    many = [{**KEY, "kid": str(at)} for at in range(KEYS_MAX + 1)]
    assert len(by_id(many)) == KEYS_MAX
