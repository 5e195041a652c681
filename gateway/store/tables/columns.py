"""Tables and their columns, with what the product has to know of them in `info`.

Text that clients or models wrote is kept in `bytea`: PostgreSQL's `text` and `jsonb` refuse NUL,
and no encoding of the server takes lone surrogates. `text` is for our own words, and for documents
that are searched.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypedDict

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
)
from sqlalchemy import text as sql
from sqlalchemy.types import UserDefinedType
from typing_extensions import Unpack, override

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy.schema import SchemaItem

metadata: Final = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


class Kept(Enum):
    """Protection of a value from a reader who has the tables alone."""

    SEALED = "sealed"
    NAME = "sealed so that equal ones look equal"
    """Value that is looked up: a reader of the table sees which rows have the same one."""
    LOG = "sealed in frames"
    ELSEWHERE = "sealed by who writes it"
    """Value under a key of the gateway, not of the tenant."""
    DIGEST = "a digest"
    """Digest: a reader who guesses the value can tell that the guess is right."""
    ID = "plain: an id"
    """Id of the gateway or a client: ids are names, and must not hold content."""
    WORD = "plain: a word of ours, or of the operator"
    DECLARED = "plain: values of metadata that the tenant wants on its bill"
    OPERATOR = "plain: what operators let be searched, or registered"


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Ends of a row; empty: none. `docs/data.md` has the same table.

    `deleted`: which DELETE of the API. `erased`: which rows go with a person. `stays`: why the row
    outlives its tenant. `expired`: SQL conditions on which `retention.sweep` removes a row, with
    settings as parameters.
    """

    deleted: str = ""
    erased: str = ""
    expires: str = ""
    stays: str = ""
    expired: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Access:
    """The privileges of the two roles, and the readers of rows besides their tenant.

    `operated`: every transaction without a tenant. `shared`: every transaction reads the rows of
    the nil tenant. `of_projects`: a transaction for one project sees its rows only. `of_others`:
    only the owner sees rows for which it is false.
    """

    app: str = ""
    runs: str = ""
    operated: bool = False
    of_runs: bool = False
    shared: bool = False
    of_projects: bool = False
    of_others: str = ""


@dataclass(frozen=True, slots=True)
class TableInfo:
    """Facts about a table besides its definition in SQL.

    `not_exported`: why `data export` leaves it out. `bound_by`: columns that a seal is bound to,
    `sealed_as`: the table, if not this one. `is_log`: it is removed with its tenant before the
    rest. `is_upserted`: statements name its primary key (`ON CONFLICT`).
    """

    lifetime: Lifetime
    access: Access
    not_exported: str = ""
    bound_by: tuple[str, ...] = ()
    sealed_as: str = ""
    is_log: bool = False
    is_upserted: bool = False


class ColumnOptions(TypedDict, total=False):
    """`exported` (default true): `data export` shows it; otherwise it is a secret, or says how the
    gateway works. `scrubbed`: set to null when the tenant is removed. `packed` (default true): the
    server compresses long values.
    """

    key: bool
    null: bool
    default: str | None
    exported: bool
    scrubbed: bool
    packed: bool


class Named(UserDefinedType[Any]):
    """A type of PostgreSQL by its name. The dialect would be slow to import for these alone."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    @override
    def get_col_spec(self, **_: object) -> str:
        return self.name


_TYPES: Final[Mapping[str, Any]] = {
    "uuid": Uuid,
    "text": Text,
    "bytea": LargeBinary,
    "boolean": Boolean,
    "smallint": SmallInteger,
    "integer": Integer,
    "bigint": BigInteger,
    "date": Date,
    "timestamptz": DateTime(timezone=True),
    "double precision": Double,
    "text[]": ARRAY(Text),
    **{name: Named(name) for name in ("tsvector", "jsonb", "xid8", "cidr[]")},
}


def _column(
    kind: str, name: str, kept: Kept | None = None, **options: Unpack[ColumnOptions]
) -> Column[Any]:
    default = options.get("default")
    return Column(
        name,
        _TYPES[kind],
        primary_key=options.get("key", False),
        autoincrement=False,
        nullable=options.get("null", False),
        server_default=None if default is None else sql(default),
        info={
            "type": kind,
            "kept": kept,
            "exported": options.get("exported", True),
            "scrubbed": options.get("scrubbed", False),
            "packed": options.get("packed", True),
        },
    )


uuid: Final = partial(_column, "uuid")
boolean: Final = partial(_column, "boolean")
smallint: Final = partial(_column, "smallint")
integer: Final = partial(_column, "integer")
bigint: Final = partial(_column, "bigint")
double: Final = partial(_column, "double precision")
date: Final = partial(_column, "date")
time: Final = partial(_column, "timestamptz")
xid8: Final = partial(_column, "xid8")
cidrs: Final = partial(_column, "cidr[]")
tsvector: Final = partial(_column, "tsvector")


def _content(kind: str) -> Callable[..., Column[Any]]:
    def column(name: str, kept: Kept, **options: Unpack[ColumnOptions]) -> Column[Any]:
        return _column(kind, name, kept, **options)

    return column


# A new column that can hold content must say how it is kept.
text: Final = _content("text")
bytea: Final = _content("bytea")
texts: Final = _content("text[]")
jsonb: Final = _content("jsonb")


def tenant_id() -> Column[Any]:
    # The first column of every key and nearly every index.
    return uuid("tenant_id", key=True)


def table(
    name: str, *items: SchemaItem, lifetime: Lifetime, access: Access, **options: Any
) -> Table:
    # `options` are the other fields of `TableInfo`, and those of SQLAlchemy's `Table`.
    facts = {one: options.pop(one) for one in TableInfo.__slots__ if one in options}
    about = TableInfo(lifetime, access, **facts)
    return Table(name, metadata, *items, info={"about": about}, **options)


def of_parent(column: str, parent: str) -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["tenant_id", column], [f"{parent}.tenant_id", f"{parent}.id"], ondelete="CASCADE"
    )


def refers(column: str, parent: str) -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["tenant_id", column], [f"{parent}.tenant_id", f"{parent}.id"])


def of_tenant() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["tenant_id"], ["tenants.id"])


def one_of(column: str, *values: str) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


def unique(*columns: str, name: str | None = None, is_upserted: bool = False) -> UniqueConstraint:
    # `is_upserted`: statements name the key.
    return UniqueConstraint(*columns, name=name, info={"is_upserted": is_upserted})


def index(*columns: str, name: str | None = None, where: str | None = None) -> Index:
    return Index(name, *columns, postgresql_where=None if where is None else sql(where))


def unique_index(name: str, *columns: str, where: str) -> Index:
    return Index(name, *columns, unique=True, postgresql_where=sql(where))


def older_than(column: str, seconds: str) -> str:
    return f"{column} < now() - make_interval(secs => {seconds})"


SETTINGS: Final = Lifetime()
"""Rows go with their tenant, or where somebody removes them."""
OF_NO_TENANT: Final = Lifetime(stays="of no tenant, or numbers of the moment")
DERIVED: Final = "counters that are made of the rest, or of the moment"
ROOM_FOR_UPDATES: Final = {"fillfactor": 50}
"""Half of each page is left for the next versions of rows."""
EVERYTHING: Final = "SELECT, INSERT, UPDATE, DELETE"


def about(one: Table) -> TableInfo:
    info: TableInfo = one.info["about"]
    return info


def kept(column: Column[Any]) -> Kept | None:
    how: Kept | None = column.info["kept"]
    return how


def columns_of(one: Table) -> dict[str, Column[Any]]:
    """Return columns by names that are plain `str`.

    SQLAlchemy's are a subclass, which orjson refuses and dictionaries look up more slowly.
    """
    return {str(column.name): column for column in one.columns}


def types(one: Table) -> dict[str, str]:
    return {name: column.info["type"] for name, column in columns_of(one).items()}


def keys_of_table(name: str) -> dict[str, str]:
    columns = columns_of(metadata.tables[name])
    return {
        column: of.info["type"]
        for column, of in columns.items()
        if of.primary_key and column != "tenant_id"
    }


def typed(one: Table, names: str = "", *, without: str = "") -> dict[str, str]:
    columns = types(one)
    chosen = names.split() or (name for name in columns if name not in without.split())
    return {name: columns[name] for name in chosen}
