from __future__ import annotations

from gateway.harmony.repeated import RepeatedTexts


def test_ids_are_found_again() -> None:
    kept = RepeatedTexts(ids_max=10)
    kept.put(b"a", [1, 2])
    found = kept.get(b"a")
    assert found is not None
    assert list(found) == [1, 2]
    assert kept.get(b"b") is None


def test_the_least_recently_used_go_first() -> None:
    kept = RepeatedTexts(ids_max=4)
    for digest in (b"a", b"b"):
        kept.put(digest, [1, 2])
    kept.get(b"a")
    kept.put(b"c", [3])
    assert kept.get(b"b") is None
    assert kept.get(b"a") is not None
    assert kept.get(b"c") is not None


def test_what_is_put_twice_counts_once() -> None:
    kept = RepeatedTexts(ids_max=4)
    for _ in range(3):
        kept.put(b"a", [1, 2])
    kept.put(b"b", [3, 4])
    assert kept.get(b"a") is not None


def test_what_is_too_long_is_not_kept_and_drives_out_nothing() -> None:
    kept = RepeatedTexts(ids_max=4)
    kept.put(b"a", [1])
    kept.put(b"b", [1] * 5)
    assert kept.get(b"a") is not None
    assert kept.get(b"b") is None
