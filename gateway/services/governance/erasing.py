"""Erasure of a person: which data is theirs, in which order it goes.

A response is theirs whose request names them, or whose token did, as usage knows it. So is one that
continues such a response, or its conversation, and names nobody: its words follow on theirs. These
conversations are, too. What a response used goes with it unless a response of others uses it as
well: containers with their files, uploaded files, pages of the browser. So do traces that name it,
what was asked to be approved and what is audited of calls of tools; and usage forgets who it was.

What the next run finds them by goes last, so that it finds all again where one breaks off: the
responses that name the person, and behind these what usage knows of a token. That stays, too, for
conversations that are left. Whether somebody is adding to one is seen under the lock under which it
goes: nobody can begin to between the two.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gateway.errors import ConversationLocked
from gateway.store import conversations, responses
from gateway.store.governance import persons
from gateway.store.governance.persons import BEFORE_ALL, UsedKeys

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from uuid import UUID

    from gateway.store.governance.persons import ReadPage, ReadResponse
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

ROWS_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Erased:
    """Result of an erasure: what was erased, and how many responses were examined (`seen`). `rows`
    are those of other tables, by their names; those of `usage` lost the person and their tags.

    `sealed` responses could not be opened, because their key is gone: they are left. `busy`
    conversations are left, too, with the person's responses in them: somebody else's response is
    being added to each. Another run finds them.
    """

    seen: int
    responses: int
    conversations: int
    sealed: int = 0
    busy: int = 0
    rows: Mapping[str, int] = field(default_factory=dict)


class Erasing:
    """One erasure of the person with the name `person` at a tenant. It may miss what others create
    meanwhile.
    """

    def __init__(
        self, database: Database, tenant_id: TenantId, person: str, digest: bytes | None
    ) -> None:
        """Erase `person`; `digest` is the person's digest in usage lines, None if unknown."""
        self._database = database
        self._tenant_id = tenant_id
        self._person = person
        self._digest = digest
        self._metered: set[UUID] = set()
        self._named: dict[UUID, ReadResponse] = {}
        self._nameless: dict[UUID, ReadResponse] = {}
        """Those that continue theirs, each behind what it continues."""
        self._places: set[UUID] = set()
        self._seen = self._sealed = 0

    async def run(self) -> Erased:
        """Find and erase everything.

        Raises `StoreUnavailable` and `DataHeld`; earlier deletions stay, and the next run
        continues.
        """
        await self._find()
        await self._follow()
        rows: Counter[str] = Counter()
        rows.update(await self._erase_used())
        for some in _batches(list(self._theirs)):
            erased = await persons.erase_of_responses(self._database, self._tenant_id, some)
            rows.update(erased)
        for some in _batches([one for one in self._theirs if one not in self._metered]):
            erased = await persons.forget_responses(self._database, self._tenant_id, some)
            rows.update(erased)
        gone, busy = await self._delete_places()
        kept = {uuid for uuid, one in self._theirs.items() if one.conversation in busy}
        count = await self._delete(one for one in reversed(self._nameless) if one not in kept)
        count += await self._delete(one for one in self._named if one not in kept)
        if self._digest is not None:
            erased = await persons.forget_metered(
                self._database, self._tenant_id, self._digest, besides=kept
            )
            rows.update(erased)
        told = {table: number for table, number in rows.items() if number}
        return Erased(self._seen, count, gone, self._sealed, len(busy), told)

    async def _find(self) -> None:
        if self._digest is not None:
            self._metered = await persons.metered(self._database, self._tenant_id, self._digest)
        async for page in self._pages():
            self._seen += page.seen
            self._sealed += page.sealed
            self._named |= {one.uuid: one for one in page.responses if self._is_named(one)}

    async def _pages(self) -> AsyncIterator[ReadPage]:
        after: UUID | None = BEFORE_ALL
        while after is not None:
            page = await persons.page(
                self._database, self._tenant_id, after=after, rows_max=ROWS_AT_ONCE
            )
            yield page
            after = page.last

    @property
    def _theirs(self) -> dict[UUID, ReadResponse]:
        return self._named | self._nameless

    def _is_named(self, one: ReadResponse) -> bool:
        return self._person in one.names or one.uuid in self._metered

    async def _follow(self) -> None:
        # Also finds what continues those, to any depth.
        newest: list[ReadResponse] = list(self._named.values())
        while newest:
            places = {one.conversation for one in newest if one.conversation is not None}
            places -= self._places
            self._places |= places
            found: list[ReadResponse] = []
            for some in _batches([one.uuid for one in newest]):
                found += await persons.continuing(self._database, self._tenant_id, responses=some)
            for some in _batches(list(places)):
                found += await persons.continuing(
                    self._database, self._tenant_id, conversations=some
                )
            newest = await self._nobodys(found)
            self._nameless |= {one.uuid: one for one in newest}

    async def _nobodys(self, found: Iterable[ReadResponse]) -> list[ReadResponse]:
        known = self._named.keys() | self._nameless.keys()
        some = {one.uuid: one for one in found if not one.names and one.uuid not in known}
        others: set[UUID] = set()
        for batch in _batches(list(some)):
            others |= await persons.metered_for_others(
                self._database, self._tenant_id, self._digest, batch
            )
        return [one for uuid, one in some.items() if uuid not in others]

    async def _erase_used(self) -> Mapping[str, int]:
        theirs = self._theirs
        used = UsedKeys()
        for one in theirs.values():
            used |= one.used
        for some in _batches(list(theirs)):
            used |= await persons.used_by_items(self._database, self._tenant_id, responses=some)
        for some in _batches(list(self._places)):
            used |= await persons.used_by_items(self._database, self._tenant_id, conversations=some)
        used = await persons.still_there(self._database, self._tenant_id, used)
        if used.may_be_shared:
            used -= await self._find_used_by_others(theirs.keys() | self._places)
        return await persons.erase_used(self._database, self._tenant_id, used)

    async def _find_used_by_others(self, theirs: set[UUID]) -> UsedKeys:
        used = await persons.used_by_items_of_others(
            self._database, self._tenant_id, theirs, rows_max=ROWS_AT_ONCE
        )
        async for page in self._pages():
            for one in page.responses:
                if one.uuid not in theirs:
                    used |= one.used
        return used

    async def _delete(self, some: Iterable[UUID]) -> int:
        count = 0
        for uuid in some:
            count += await responses.delete(self._database, self._tenant_id, uuid)
        return count

    async def _delete_places(self) -> tuple[int, set[UUID]]:
        # A conversation is busy while somebody else's response is added to it. This end user's own
        # responses are deleted next and keep none.
        theirs, gone = self._theirs, 0
        busy: set[UUID] = set()
        for place in self._places:
            try:
                gone += await conversations.delete_conversation(
                    self._database, self._tenant_id, place, despite=theirs
                )
            except ConversationLocked:
                busy.add(place)
        return gone, busy


def _batches(some: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    for at in range(0, len(some), ROWS_AT_ONCE):
        yield some[at : at + ROWS_AT_ONCE]
