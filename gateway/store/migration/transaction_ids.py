"""Ids of transactions in the ledger, which go on after a dump was restored into another cluster.

Lines of usage have the id of the transaction that wrote them, and readers remember ids
(`store.ledger.cursors`). A new cluster counts its transactions from the beginning, so lines that it
writes would lie before what readers have read already. `ledger_tx` adds a number to the ids of this
cluster, so that they lie behind all that the dump brought. Readers outside of the database keep
their places, and no line is changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.store.schema import RUNS_ROLE

if TYPE_CHECKING:
    from sqlalchemy import Connection

DROP_LEDGER_TX: Final = "DROP FUNCTION ledger_tx(xid8)"
_LAST_AND_NEXT: Final = """
SELECT greatest(
    (SELECT CAST(CAST(tx AS text) AS bigint) FROM usage
     WHERE tx IS NOT NULL ORDER BY tx DESC LIMIT 1),
    (SELECT max(greatest(CAST(CAST(tx AS text) AS bigint), CAST(CAST(end_tx AS text) AS bigint)))
     FROM usage_cursors),
    0
), CAST(CAST(ledger_tx(pg_snapshot_xmax(pg_current_snapshot())) AS text) AS bigint)
"""


def create_ledger_tx(added: int) -> str:
    """Return the statement that makes the function, which adds `added` to an id."""
    return f"""
CREATE OR REPLACE FUNCTION ledger_tx(id xid8) RETURNS xid8
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CAST(CAST(CAST(CAST(id AS text) AS bigint) + {added} AS text) AS xid8)
$$
"""


def continue_ids(connection: Connection) -> bool:
    """Let ids go on behind those that a dump of another cluster brought. False: it has its own.

    A transaction that can be seen has an id below the end of the snapshot that sees it.
    """
    # The owner is bound by row-level security as well; this role sees the rows of all tenants.
    connection.exec_driver_sql(f"SET LOCAL ROLE {RUNS_ROLE}")
    last, next_ = connection.exec_driver_sql(_LAST_AND_NEXT).one()
    connection.exec_driver_sql("RESET ROLE")
    is_foreign = bool(last > next_)
    if is_foreign:
        connection.exec_driver_sql(create_ledger_tx(last))
    connection.commit()
    return is_foreign
