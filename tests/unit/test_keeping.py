from __future__ import annotations

from gateway.keeping import SPARED_AT_ONCE, Kept


def kept_of(*keys: str, size_max: int = 4) -> Kept[str, str]:
    kept: Kept[str, str] = Kept(size_max=size_max)
    for key in keys:
        kept.put(key, key.upper(), size=2)
    return kept


def test_a_value_is_found_again() -> None:
    kept = kept_of("a")
    assert kept.get("a") == "A"
    assert kept.get("b") is None


def test_what_nobody_asked_for_goes_before_what_somebody_did() -> None:
    kept = kept_of("a", "b")
    kept.get("a")
    kept.put("c", "C", size=2)
    assert [kept.get(key) for key in "abc"] == ["A", None, "C"]


def test_where_all_are_wanted_the_oldest_goes() -> None:
    kept = kept_of("a", "b")
    assert kept.get("a")
    assert kept.get("b")
    kept.put("c", "C", size=4)
    assert [kept.get(key) for key in "abc"] == [None, None, "C"]


def test_what_is_put_twice_counts_once() -> None:
    kept = kept_of("a", "a", "a", "b")
    assert kept.get("a") == "A"
    assert kept.get("b") == "B"


def test_what_is_too_large_is_not_kept_and_drives_out_nothing() -> None:
    kept = kept_of("a", "b")
    kept.put("c", "C", size=5)
    assert [kept.get(key) for key in "abc"] == ["A", "B", None]


def test_only_so_many_are_spared_for_one_that_is_put() -> None:
    names = [str(at) for at in range(SPARED_AT_ONCE + 2)]
    kept = kept_of(*names, size_max=2 * len(names))
    assert all(map(kept.get, names))
    kept.put("new", "NEW", size=2)
    # Those before it were spared, and are asked for again.
    assert [name for name in names if kept.get(name) is None] == [str(SPARED_AT_ONCE)]
    assert kept.get("new") == "NEW"
