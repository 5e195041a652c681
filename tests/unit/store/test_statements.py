from __future__ import annotations

import pytest

from gateway.store.postgres.statements import Statement, insert_into


def test_parameters_are_numbered_as_they_come_and_keep_their_number() -> None:
    statement = Statement("SELECT :b, :a_1, :b")
    assert statement.sql == "SELECT $1, $2, $1"
    assert statement.names == ("b", "a_1")
    assert statement.arguments({"a_1": 1, "b": 2, "c": 3}) == [2, 1]


def test_a_cast_is_no_parameter() -> None:
    statement = Statement("SELECT '1'::text, :a::text, CAST(:b::uuid AS text)")
    assert statement.sql == "SELECT '1'::text, $1::text, CAST($2::uuid AS text)"


def test_a_parameter_that_is_not_given_is_named() -> None:
    with pytest.raises(KeyError, match="missing"):
        Statement("SELECT :given, :missing").arguments({"given": 1})


def test_a_row_is_inserted_by_the_names_of_its_columns() -> None:
    statement = Statement(insert_into("usage", ["at", "model"]))
    assert statement.sql == "INSERT INTO usage (at, model) VALUES ($1, $2)"
    assert statement.names == ("at", "model")
