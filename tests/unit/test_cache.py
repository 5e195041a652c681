from __future__ import annotations

import tracemalloc

import orjson

from gateway.cache import LruCache
from gateway.json_output import lasting_json


def cache_of(*keys: str, size_max: int = 4) -> LruCache[str, str]:
    cache: LruCache[str, str] = LruCache(size_max=size_max)
    for key in keys:
        cache.put(key, key.upper(), size=2)
    return cache


def test_a_value_is_found_again() -> None:
    cache = cache_of("a")
    assert cache.get("a") == "A"
    assert cache.get("b") is None


def test_what_was_not_asked_for_longest_goes_first() -> None:
    cache = cache_of("a", "b")
    cache.get("a")
    cache.put("c", "C", size=2)
    assert [cache.get(key) for key in "abc"] == ["A", None, "C"]


def test_as_many_go_as_a_large_one_needs_room_for() -> None:
    cache = cache_of("a", "b")
    cache.put("c", "C", size=4)
    assert [cache.get(key) for key in "abc"] == [None, None, "C"]


def test_what_is_put_twice_counts_once() -> None:
    cache = cache_of("a", "a", "a", "b")
    assert cache.get("a") == "A"
    assert cache.get("b") == "B"


def test_what_is_too_large_is_not_kept_and_drives_out_nothing() -> None:
    cache = cache_of("a", "b")
    cache.put("c", "C", size=5)
    assert [cache.get(key) for key in "abc"] == ["A", "B", None]


def test_what_is_dropped_makes_room() -> None:
    cache = cache_of("a", "b")
    cache.drop("a")
    cache.drop("a")
    cache.put("c", "C", size=2)
    assert [cache.get(key) for key in "abc"] == [None, "B", "C"]


def test_json_that_is_kept_takes_no_more_memory_than_it_needs() -> None:
    tracemalloc.start()
    try:
        kept = [lasting_json({"delta": str(number)}) for number in range(100)]
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert orjson.loads(kept[7]) == {"delta": "7"}
    assert used < 100 * 1024
