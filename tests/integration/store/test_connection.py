"""Statements as asyncpg executes them: what goes over the wire and what comes back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import ids
from gateway.errors import StoreError, StoreUnavailable
from gateway.store.postgres.database import Database
from gateway.store.postgres.statements import Batch, Rows, Statement, by_tenant
from gateway.tenancy import TenantId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.postgres import PostgresServer

COLUMNS = {
    "a_text": "text",
    "bytes": "bytea",
    "a_time": "timestamptz",
    "a_day": "date",
    "a_while": "interval",
    "an_id": "uuid",
    "yes": "boolean",
    "number": "integer",
}


@pytest.fixture
def database(shared_database: Database) -> Database:
    return shared_database


@pytest.fixture(params=[0, 1, None])
async def with_cache(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Database]:
    """A connection that keeps no statement, one, or as many as it likes."""
    opened = Database(
        database_url,
        pool_size_max=1,
        command_timeout_s=30,
        connect_timeout_s=30,
        statement_cache_size=request.param,
    )
    yield opened
    await opened.close()


async def test_statements_take_turns_on_one_connection(with_cache: Database) -> None:
    first = Statement("SELECT CAST(:one AS integer) + 1 AS sum")
    second = Statement("SELECT CAST(:word AS text)")
    for number in range(3):
        async with with_cache.owner_transaction() as connection:
            assert await connection.scalar(first, {"one": number}) == number + 1
            assert await connection.scalar(second, {"word": "w"}) == "w"


async def test_rows_have_named_fields_and_unpack(database: Database) -> None:
    statement = Statement("SELECT 1 AS one, 'b' AS two UNION ALL SELECT 2, 'c' ORDER BY 1")
    async with database.owner_transaction() as connection:
        result = await connection.execute(statement)
        assert [(row.one, row.two) for row in result] == [(1, "b"), (2, "c")]
        assert [tuple(row) for row in result] == [(1, "b"), (2, "c")]
        assert await connection.scalars(statement) == [1, 2]
        with pytest.raises(ValueError, match="unpack"):
            result.one_or_none()
        none = await connection.execute(Statement("SELECT 1 WHERE false"))
        assert none.one_or_none() is None
        assert await connection.scalar(Statement("SELECT 1 WHERE false")) is None


async def test_a_parameter_stands_in_several_places(database: Database) -> None:
    statement = Statement("SELECT :one::text AS a, CAST(:two AS text) AS b, :one || 'c' AS c")
    async with database.owner_transaction() as connection:
        row = (await connection.execute(statement, {"two": "y", "one": "x", "three": "z"})).one()
        with pytest.raises(KeyError, match="two"):
            await connection.execute(statement, {"one": "x"})
    assert row == ("x", "y", "xc")


FINITE = (datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001 - hypothesis adds the zone
"""asyncpg takes the first and the last moment of all for infinity."""


ROW = st.fixed_dictionaries(
    {
        "a_text": st.none() | st.text(st.characters(codec="ascii", exclude_characters="\0")),
        "bytes": st.none() | st.binary(max_size=20),
        "a_time": st.none() | st.datetimes(*FINITE, timezones=st.just(UTC)),
        "a_day": st.none() | st.dates(*(one.date() for one in FINITE)),
        "a_while": st.none() | st.timedeltas(timedelta(days=-99), timedelta(days=99)),
        "an_id": st.none() | st.uuids(),
        "yes": st.none() | st.booleans(),
        "number": st.none() | st.integers(-(2**31), 2**31 - 1),
    }
)


@pytest.mark.slow
@given(rows=st.lists(ROW, max_size=5))
async def test_rows_in_arrays_are_the_rows_one_by_one(
    shared_database: Database, rows: list[dict[str, object]]
) -> None:
    many = Rows("sent", COLUMNS)
    together = Statement(f"SELECT * FROM {many.source}")
    values = (f"CAST(:{name} AS {kind}) AS {name}" for name, kind in COLUMNS.items())
    one = Statement(f"SELECT {', '.join(values)}")
    async with shared_database.owner_transaction() as connection:
        received = await connection.execute(together, many.parameters(rows))
        assert [dict(row) for row in received] == rows
        for row in rows:
            assert dict((await connection.execute(one, row)).one()) == row


@pytest.mark.slow
@given(rows=st.lists(st.tuples(ROW, st.integers(0, 99)), max_size=12))
async def test_rows_of_a_batch_are_those_that_it_was_given_however_many_they_are(
    shared_database: Database, rows: list[tuple[dict[str, object], int]]
) -> None:
    numbered = [{"place": place, **row} for row, place in rows]
    sent = Rows("sent", {"place": "integer", **COLUMNS})
    also = Rows("also", {"place": "integer"})
    batch = Batch("SELECT sent.*, (SELECT count(*) FROM {also}) AS others FROM {sent}", sent, also)
    statement, parameters = batch.of(numbered, [{"place": 1}] * (12 - len(rows)))
    async with shared_database.owner_transaction() as connection:
        received = await connection.execute(statement, parameters)
    assert [dict(row) for row in received] == [
        {**row, "others": 12 - len(rows)} for row in numbered
    ]


def test_tenants_are_ascending_and_their_rows_in_order_with_their_places() -> None:
    tenants = sorted(TenantId(ids.new_uuid()) for _ in range(3))
    rows = [(tenants[at % 3], at) for at in (5, 1, 0, 4, 3)]
    assert by_tenant(rows) == [
        (tenants[0], [(2, 0), (4, 3)]),
        (tenants[1], [(1, 1), (3, 4)]),
        (tenants[2], [(0, 5)]),
    ]


async def test_a_failure_that_was_overlooked_is_not_taken_for_a_commit(database: Database) -> None:
    async def overlook() -> None:
        async with database.owner_transaction() as connection:
            with pytest.raises(asyncpg.DivisionByZeroError):
                await connection.execute(Statement("SELECT 1 / 0"))

    with pytest.raises(StoreUnavailable):
        await overlook()


async def test_an_error_of_the_caller_undoes_everything(database: Database) -> None:
    async def break_off() -> None:
        async with database.owner_transaction() as connection:
            await connection.script("CREATE TABLE passing ()")
            raise KeyError

    with pytest.raises(KeyError):
        await break_off()
    async with database.owner_transaction() as connection:
        assert await connection.scalar(Statement("SELECT to_regclass('passing')")) is None


async def test_a_direct_connection_keeps_its_statements_and_nothing_else(
    postgres: PostgresServer, database_url: str
) -> None:
    opened = Database(database_url, pool_size_max=1, command_timeout_s=30, connect_timeout_s=30)
    async with opened.transaction(TenantId(ids.new_uuid())) as connection:
        await connection.execute(Statement("SELECT 1"))
    async with opened.owner_transaction() as connection:
        await connection.script("ROLLBACK; BEGIN")
        state = Statement(
            "SELECT current_user = session_user, current_setting('app.tenant_id'),"
            " (SELECT count(*) FROM pg_prepared_statements) > 0"
        )
        assert tuple((await connection.execute(state)).one()) == (True, "", True)
    await opened.close()


async def test_a_mistake_names_no_value(database: Database) -> None:
    with pytest.raises(StoreError) as caught:
        async with database.owner_transaction() as connection:
            await connection.execute(Statement("SELECT CAST(:word AS integer)"), {"word": "secret"})
    assert "secret" not in str(caught.value)
