"""Does the database do what requests need of it: answer, have its schema, take writes?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from gateway.errors import StoreError, StoreUnavailable
from gateway.store.migration.verification import missing, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.store.postgres.database import Database

SCHEMA_INTERVAL_S: Final = 60.0
"""Between two looks at a schema that was complete: it takes the server some milliseconds."""
MENDING_INTERVAL_S: Final = 5.0
"""Between two looks at what was wrong."""


class Storage:
    """What is wrong with the database, asked as often as anybody likes."""

    def __init__(
        self,
        database: Database,
        *others: Database,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`others` write to the same database; `clock` counts seconds."""
        self._database = database
        self._writers = (database, *others)
        self._clock = clock
        self._lacks = ""
        self._schema_due = self._write_at = float("-inf")

    async def reasons(self) -> list[str]:
        """Why requests cannot be served; empty when they can."""
        try:
            await self._database.ping()
            await self._look_at_schema()
        except StoreError as error:
            return [f"the database does not answer ({error.state})".removesuffix(" ()")]
        await self._look_at_writes()
        return [reason for reason in (self._lacks, self._cannot_write()) if reason]

    async def _look_at_schema(self) -> None:
        if self._clock() < self._schema_due:
            return
        try:
            found = await missing(self._database, is_patient=False)
        except StoreError:
            # It answers, and something keeps it from telling, such as a table that is being
            # altered: all replicas would be taken away at once for what few requests need.
            self._schema_due = self._clock() + MENDING_INTERVAL_S
            return
        lacking = [fact for fact in found if fact.stops]
        self._lacks = (
            f"the database lacks what `harmony-gateway db upgrade` sees to: {told(lacking)}"
            if lacking
            else ""
        )
        self._schema_due = self._clock() + (MENDING_INTERVAL_S if lacking else SCHEMA_INTERVAL_S)

    async def _look_at_writes(self) -> None:
        """Once, and again whenever writes have failed."""
        is_first = self._write_at == float("-inf")
        is_due = self._clock() - self._write_at >= MENDING_INTERVAL_S
        if not is_first and not (is_due and self._cannot_write()):
            return
        self._write_at = self._clock()
        try:
            await self._database.try_write()
        except StoreUnavailable:
            return
        except StoreError:
            # Its owner may not make such a table: the next write that fails will tell.
            pass
        for one in self._writers:
            one.write_fault = ""

    def _cannot_write(self) -> str:
        return next((one.write_fault for one in self._writers if one.write_fault), "")
