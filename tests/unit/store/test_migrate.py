"""What the errors of a migration mean, which come wrapped in SQLAlchemy's."""

from __future__ import annotations

import asyncpg
import pytest
from sqlalchemy import exc

from gateway.errors import StoreConflict, StoreError, StoreUnavailable
from gateway.store.migration.migrate import meaning


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (asyncpg.DeadlockDetectedError("a secret"), StoreUnavailable),
        (asyncpg.UniqueViolationError("a secret"), StoreConflict),
        (asyncpg.DataError("a secret"), StoreError),
    ],
)
def test_an_error_of_the_driver_means_the_same_when_it_is_wrapped(
    error: Exception, kind: type[StoreError]
) -> None:
    wrapped = exc.DBAPIError("SELECT 'a secret'", {}, error)
    for one in (error, wrapped):
        assert type(meaning(one)) is kind
        assert "secret" not in str(meaning(one))


def test_a_connection_that_is_lost_may_come_again() -> None:
    cause = asyncpg.DataError("closed")
    error = exc.DBAPIError("SELECT 'a secret'", {}, cause, connection_invalidated=True)
    assert type(meaning(error)) is StoreUnavailable


def test_a_mistake_is_not_retried() -> None:
    error = exc.ArgumentError("a secret")
    assert type(meaning(error)) is StoreError
    assert "secret" not in str(meaning(error))
