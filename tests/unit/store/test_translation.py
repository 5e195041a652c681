from __future__ import annotations

import inspect
import ssl
from typing import Any

import asyncpg
import pytest
from asyncpg import exceptions as asyncpg_errors

from gateway.errors import StoreConflict, StoreError, StoreUnavailable
from gateway.store.postgres.driver import DRIVER_ERRORS, ends_connection, translate
from tests.fakes.cases import each

SERVER_ERRORS = [
    kind
    for _, kind in inspect.getmembers(asyncpg_errors, inspect.isclass)
    if issubclass(kind, asyncpg.PostgresError)
]
CLIENT_ERRORS = [
    kind
    for _, kind in inspect.getmembers(asyncpg_errors, inspect.isclass)
    if issubclass(kind, asyncpg.InterfaceError | asyncpg_errors.InternalClientError)
]
QUOTES_NO_ROW = {
    *("28", "3D", "3F", "53", "57", "58"),
    *("25006", "42501", "42703", "42883", "42P01", "55P03"),
}
"""SQLSTATEs, and the beginnings of some, whose text names roles, tables and the server's state."""


def test_every_error_of_the_server_has_a_meaning(subtests: pytest.Subtests) -> None:
    for kind in SERVER_ERRORS:
        with subtests.test(kind=kind.__name__):
            check_server_error(kind)


def check_server_error(kind: type[Any]) -> None:
    error = kind("a secret row")
    assert isinstance(error, DRIVER_ERRORS)
    meaning = translate(error)
    state = getattr(kind, "sqlstate", None) or ""
    if state[:2] not in QUOTES_NO_ROW and state not in QUOTES_NO_ROW:
        assert "secret" not in str(meaning)
    assert isinstance(meaning, StoreConflict) == state.startswith("23")


@each("kind", CLIENT_ERRORS)
def test_every_error_of_the_driver_has_a_meaning(kind: type[Exception]) -> None:
    error = kind("a secret row")
    assert isinstance(error, DRIVER_ERRORS)
    expected = StoreError if issubclass(kind, ValueError) else StoreUnavailable
    assert type(translate(error)) is expected
    assert "secret" not in str(translate(error))


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionRefusedError("refused"),
        FileNotFoundError("no socket"),
        ssl.SSLError("bad certificate"),
    ],
)
def test_what_passes_is_unavailable(error: Exception) -> None:
    assert isinstance(error, DRIVER_ERRORS)
    assert type(translate(error)) is StoreUnavailable


@each(
    "state",
    ["08006", "40001", "40P01", "53300", "53100", "55P03", "57014", "57P01", "57P03", "25006"],
)
def test_passing_states_of_the_server_are_unavailable(state: str) -> None:
    error = asyncpg.PostgresError.new({"C": state, "M": "no"})
    assert type(translate(error)) is StoreUnavailable


@pytest.mark.parametrize("state", ["42P01", "42601", "22P05", "22021", "42501", "0A000", "99999"])
def test_mistakes_of_ours_are_not_retried(state: str) -> None:
    error = asyncpg.PostgresError.new({"C": state, "M": "no"})
    assert type(translate(error)) is StoreError


def test_what_the_server_says_of_itself_is_told_in_its_words_on_one_line() -> None:
    said = {"C": "42501", "M": "permission denied\nto create role"}
    meaning = translate(asyncpg.PostgresError.new(said))
    assert str(meaning) == "database: permission denied to create role (42501)"
    assert meaning.state == "42501"


def test_what_no_server_said_has_no_state() -> None:
    meaning = translate(ConnectionRefusedError(111, "Connection refused"))
    assert str(meaning) == "database: ConnectionRefusedError: Connection refused"
    assert meaning.state == ""


def test_a_conflict_names_its_constraint() -> None:
    error = asyncpg.PostgresError.new({"C": "23505", "M": "duplicate", "n": "uq_tenants_name"})
    meaning = translate(error)
    assert isinstance(meaning, StoreConflict)
    assert meaning.constraint == "uq_tenants_name"


def test_a_missing_value_names_its_column() -> None:
    error = asyncpg.PostgresError.new({"C": "23502", "M": "null", "c": "model"})
    meaning = translate(error)
    assert isinstance(meaning, StoreConflict)
    assert meaning.constraint == "model"


@pytest.mark.parametrize(
    ("severity", "is_over"), [("ERROR", False), ("FATAL", True), ("PANIC", True)]
)
def test_a_connection_is_over_when_the_server_says_so(severity: str, is_over: bool) -> None:
    # What a person reads is in the server's language: only `V` is always English.
    words = {"S": "SCHWERWIEGEND", "V": severity, "C": "57P01", "M": "terminating connection"}
    assert ends_connection(asyncpg.PostgresError.new(words)) is is_over
