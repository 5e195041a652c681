"""Rows in great number, made in SQL from one that the gateway wrote itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

import asyncpg

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from uuid import UUID

    from asyncpg import Connection, Record
    from sqlalchemy import Table

T = TypeVar("T")
ITEM_ID: Final = (
    "convert_to('msg_' || replace(made.id::text, '-', '') || lpad(to_hex(one.position), 4, '0'),"
    " 'UTF8')"
)
"""The id of an item of a copied response: its own, since an index has them all."""


def copy_of(table: Table, key: str, values: Mapping[str, str]) -> str:
    """A statement that copies the rows of a table whose `key` is `$1`, for each row of `made`.

    `values` are expressions over `made` and the copied row `one`; other columns are as they were.
    """
    names = [column.name for column in table.c]
    taken = ", ".join(values.get(name, f"one.{name}") for name in names)
    return (
        f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {taken} "
        f"FROM made, {table.name} AS one WHERE one.{key} = $1"
    )


def on_database(url: str, work: Callable[[Connection[Record]], Awaitable[T]]) -> T:
    """Do it on a connection of the superuser's, whom no policy hides any row from."""

    async def connected() -> T:
        connection = await asyncpg.connect(url)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(connected())


def execute(url: str, *statements: tuple[Any, ...]) -> None:
    """Statements one after the other on one connection, each with its parameters."""

    async def work(connection: Connection[Record]) -> None:
        for statement, *parameters in statements:
            await connection.execute(statement, *parameters)

    on_database(url, work)


async def tenant_id(connection: Connection[Record]) -> UUID:
    """The tenant whose key the benchmark has."""
    found: UUID = await connection.fetchval("SELECT id FROM tenants WHERE name = 'load'")
    return found
