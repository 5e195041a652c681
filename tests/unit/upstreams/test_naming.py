"""Which listed model is meant by a configured name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstreams.naming import Listed, Served, meaning, offers

NAMES = st.lists(st.sampled_from(["m", "n", "a", "b"]), min_size=1, max_size=3).map("/".join)


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("gpt-oss-120b", {"openai/gpt-oss-120b"}, "openai/gpt-oss-120b"),
        ("openai/gpt-oss-120b", {"gpt-oss-120b"}, "gpt-oss-120b"),
        ("gpt-oss-120b", {"/models/gpt-oss-120b/", "other"}, "/models/gpt-oss-120b/"),
        ("m", {"m", "a/m"}, "m"),
        ("a/m", {"m", "a/m", "b/m"}, "a/m"),
        ("m", {"a/m", "b/m"}, None),
        ("a/m", {"b/m"}, None),
        ("m", {"n"}, None),
        ("m", set(), None),
    ],
)
def test_a_name_means_itself_or_the_only_one_with_its_last_part(
    name: str, known: set[str], meant: str | None
) -> None:
    assert meaning(name, known) == meant


@given(NAMES, st.sets(NAMES))
def test_only_a_known_name_is_meant_and_an_exact_one_always(name: str, known: set[str]) -> None:
    meant = meaning(name, known)
    assert meant is None or meant in known
    if name in known:
        assert meant == name


def test_without_configured_models_all_that_is_listed_is_offered() -> None:
    listed = {"base": Listed(9), "ad": Listed(9, "base")}
    assert offers({}, listed, listed) == {
        "base": Served("base", None, 9),
        "ad": Served("ad", "base", 9),
    }


def test_of_configured_models_those_that_are_listed_are_offered() -> None:
    wanted = {"public": "ad", "gone": "missing", "base": "base"}
    listed = {"vendor/base": Listed(9), "ad": Listed(9, "vendor/base")}
    assert offers(wanted, listed, listed) == {
        "public": Served("ad", "vendor/base", 9),
        "base": Served("vendor/base", None, 9),
    }


def test_what_means_two_models_of_the_fleet_is_offered_by_neither() -> None:
    known = {"a/m", "b/m"}
    assert offers({"m": "m"}, {"a/m": Listed(9)}, known) == {}
    assert offers({"m": "b/m"}, {"a/m": Listed(9)}, known) == {}
