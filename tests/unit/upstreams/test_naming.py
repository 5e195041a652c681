"""Which listed model is meant by a configured name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstreams.backend import Listed, ServedModel
from gateway.upstreams.served_models import meanings, offers, parents
from tests.fakes.cases import each

NAMES = st.lists(st.sampled_from(["m", "n", "a", "b"]), min_size=1, max_size=3).map("/".join)


@each(
    ("name", "known", "meant"),
    [
        ("gpt-oss-120b", {"openai/gpt-oss-120b"}, ["openai/gpt-oss-120b"]),
        ("openai/gpt-oss-120b", {"gpt-oss-120b"}, ["gpt-oss-120b"]),
        ("gpt-oss-120b", {"/models/gpt-oss-120b/", "other"}, ["/models/gpt-oss-120b/"]),
        ("m", {"m", "a/m"}, ["m", "a/m"]),
        ("a/m", {"m", "a/m"}, ["a/m", "m"]),
        ("m", {"m", "a/m", "b/m"}, ["m"]),
        ("a/m", {"m", "a/m", "b/m"}, ["a/m"]),
        ("a/m", {"m", "b/m"}, ["m"]),
        ("m", {"a/m", "b/m"}, []),
        ("a/m", {"b/m"}, []),
        ("m", {"n"}, []),
        ("m", set(), []),
    ],
)
def test_a_name_means_all_that_differ_in_naming_the_one_maker(
    name: str, known: set[str], meant: list[str]
) -> None:
    assert meanings(name, known) == meant


@pytest.mark.slow
@given(NAMES, st.sets(NAMES))
def test_only_known_names_are_meant_an_exact_one_first_and_never_two_makers(
    name: str, known: set[str]
) -> None:
    meant = meanings(name, known)
    assert known.issuperset(meant)
    assert (name in known) == (meant[:1] == [name])
    assert len({one for one in meant if "/" in one}) <= 1


def test_each_backend_offers_a_model_under_its_own_name_of_it() -> None:
    known = {"m", "a/m"}
    assert offers({"x": "m"}, {"a/m": Listed(9)}, known) == {"x": ServedModel("a/m", None, 9)}
    both = {"a/m": Listed(9), "m": Listed(8)}
    assert offers({"x": "m"}, both, known) == {"x": ServedModel("m", None, 8)}


def test_without_configured_models_all_that_is_listed_is_offered() -> None:
    listed = {"base": Listed(9), "ad": Listed(9, "base")}
    assert offers({}, listed, listed) == {
        "base": ServedModel("base", None, 9),
        "ad": ServedModel("ad", "base", 9),
    }


def test_of_configured_models_those_that_are_listed_are_offered() -> None:
    wanted = {"public": "ad", "gone": "missing", "base": "base"}
    listed = {"vendor/base": Listed(9), "ad": Listed(9, "vendor/base")}
    assert offers(wanted, listed, listed) == {
        "public": ServedModel("ad", "vendor/base", 9),
        "base": ServedModel("vendor/base", None, 9),
    }


def test_what_means_two_models_of_the_fleet_is_offered_by_neither() -> None:
    known = {"a/m", "b/m"}
    assert offers({"m": "m"}, {"a/m": Listed(9)}, known) == {}
    assert offers({"m": "b/m"}, {"a/m": Listed(9)}, known) == {}


def test_adapters_of_a_model_are_offered_where_that_was_decided() -> None:
    listed = {
        "vendor/base": Listed(9),
        "ad": Listed(9, "vendor/base"),
        "other": Listed(7),
        "odd": Listed(7, "other"),
        "base": Listed(9, "vendor/base"),
    }
    wanted = {"public": "vendor/base", "other": "other", "base": "gone"}
    found = offers(wanted, listed, listed, adapters_of=["public"])
    assert found == {
        "public": ServedModel("vendor/base", None, 9),
        "other": ServedModel("other", None, 7),
        "ad": ServedModel("ad", "vendor/base", 9),
    }
    assert parents(found) == {"ad": "public"}
    assert "ad" not in offers(wanted, listed, listed)
    assert "ad" not in offers({"other": "other"}, listed, listed, adapters_of=["other", "public"])


def test_an_adapter_whose_base_nobody_may_ask_for_has_no_parent() -> None:
    assert parents({"ad": ServedModel("ad", "base", 9)}) == {}
