from __future__ import annotations

from tests.fakes.wayward_engine.instruments import BLOCK_IDS, PrefixCache

SEEN = list(range(3 * BLOCK_IDS + 5))


def _cache(blocks_max: int = 100) -> PrefixCache:
    cache = PrefixCache(blocks_max)
    cache.add(SEEN, "a")
    return cache


def test_nothing_is_cached_that_was_never_seen() -> None:
    assert PrefixCache(100).cached_ids(SEEN, "a") == 0
    assert _cache().cached_ids([7, *SEEN], "a") == 0


def test_whole_blocks_of_a_seen_prefix_are_cached() -> None:
    assert _cache().cached_ids([*SEEN, 1, 2, 3], "a") == 3 * BLOCK_IDS
    assert _cache().cached_ids(SEEN[: 2 * BLOCK_IDS + 1], "a") == 2 * BLOCK_IDS


def test_a_block_counts_only_behind_the_same_blocks() -> None:
    other = [*reversed(SEEN[:BLOCK_IDS]), *SEEN[BLOCK_IDS:]]
    assert _cache().cached_ids(other, "a") == 0


def test_another_salt_sees_nothing() -> None:
    assert _cache().cached_ids(SEEN, "b") == 0


def test_the_last_id_of_a_prompt_is_always_computed() -> None:
    assert _cache().cached_ids(SEEN[: 2 * BLOCK_IDS], "a") == BLOCK_IDS


def test_the_id_sampled_last_is_not_in_the_cache() -> None:
    cache = PrefixCache(100)
    cache.add(SEEN[:BLOCK_IDS], "a")
    assert cache.cached_ids(SEEN, "a") == 0


def test_the_least_recently_used_blocks_go_first() -> None:
    cache = PrefixCache(3)
    cache.add(SEEN[: BLOCK_IDS + 1], "a")
    cache.add(SEEN[: BLOCK_IDS + 1], "b")
    assert cache.cached_ids(SEEN, "a") == BLOCK_IDS
    cache.add([*range(500, 500 + 2 * BLOCK_IDS + 1)], "c")
    assert cache.usage == 1.0
    assert cache.cached_ids(SEEN, "b") == 0
    assert cache.cached_ids(SEEN, "a") == BLOCK_IDS


def test_a_cleared_cache_is_empty() -> None:
    cache = _cache()
    cache.clear()
    assert (cache.usage, cache.cached_ids(SEEN, "a")) == (0.0, 0)
