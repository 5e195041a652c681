"""Keeping a response: what is written at its start and at its end, whoever ends it."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson
import pytest
from typing_extensions import override

from gateway import ids
from gateway.engine.archive import Archive, Ownership
from gateway.entries import Finished, Queued, Tokens, TurnEnded, TurnStarted, pack
from gateway.errors import ClaimLost, KeyTaken, RateLimited, StoreUnavailable
from gateway.eventlog.fold.fold import Fold
from gateway.limits.accounting import Charge
from gateway.models.harmony.parsing import Parser
from gateway.store import claims, events, messages, responses
from gateway.store.events import LogBatch, LogRow, day_of
from gateway.store.notices import Notice
from gateway.store.postgres.database import Database
from gateway.store.postgres.statements import Statement
from gateway.store.responses import IdempotencyKey, find_key
from gateway.telemetry.metrics import Metrics
from gateway.tenancy.policy import TenantPolicy
from tests.fakes.fold_formats import parsed_by
from tests.fakes.harmony_script import script_ids, vocabulary
from tests.fakes.limited import admitted, caller, limit, limiter, running
from tests.fakes.replica import (
    SEALER,
    TERMS,
    background,
    folded,
    foreground,
    load,
    log_of,
    new_fold_for,
    shown_text,
)
from tests.fakes.staged_run import FRAMING, NO_RULES, STOP
from tests.fakes.stored import item, let_time_pass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from gateway.engine.row_mapping import NewFoldFor
    from gateway.engine.run_spec import RunSpec
    from gateway.entries import Entry
    from gateway.protocol.context_item import ContextItem
    from gateway.protocol.responses.response_object import ResponseHead
    from gateway.protocol.stream_events import Event
    from gateway.store.claims import Claim
    from gateway.tenancy import TenantId

COMPLETED = Finished("completed", 1_795_000_009)
FAILED = Finished("failed", 1_795_000_009, code="server_error", message="No.")
ANSWER = "<|channel|>final<|message|>Hello<|return|>"
MALFORMED = "<|channel|>final to=nobody?<|message|>Hello<|return|>"


class Kept:
    """An archive and what it announced."""

    def __init__(
        self,
        database: Database,
        *,
        wait_s: float = 5.0,
        new_fold_for: NewFoldFor = new_fold_for,
        of: type[Archive] = Archive,
        adopt_charge: Callable[[TenantId, str, dict[str, Any]], Charge] | None = None,
    ) -> None:
        self.notices: list[Notice] = []
        self.metrics = Metrics()
        self.archive = of(
            database,
            new_fold_for,
            Ownership("replica_a", 600.0, commit_wait_s=wait_s, claim_wait_s=wait_s),
            announce=self.notices.append,
            metrics=self.metrics,
            sealer=SEALER,
            approval_key=b"",
            adopt_charge=adopt_charge,
        )


@pytest.fixture
def kept(database: Database) -> Kept:
    return Kept(database)


def said(script: str) -> list[Entry]:
    return [TurnStarted(7), Tokens(tuple(script_ids(script))), TurnEnded(STOP)]


def with_input(tenant: TenantId) -> RunSpec:
    added = (item("msg_in1"), item("msg_in2"))
    return replace(background(tenant), added=added, inputs=2)


async def append(
    database: Database, spec: RunSpec, claim: Claim, first: int, entries: Sequence[Entry]
) -> None:
    stored = await load(database, spec)
    parcel = LogBatch(claim, day_of(stored.created_at), first, len(entries), pack(entries))
    assert await events.append(database, [parcel]) == {claim.uuid}


async def history(database: Database, spec: RunSpec) -> list[ContextItem]:
    found = await messages.history(
        database, spec.principal.tenant_id, spec.head.uuid, depth_max=10, items_max=10
    )
    assert found is not None
    return list(found.items)


async def used(database: Database, spec: RunSpec) -> list[int]:
    """The output tokens that were booked, line by line."""
    async with database.transaction(spec.principal.tenant_id) as connection:
        statement = Statement("SELECT output_tokens FROM usage WHERE response_id = :id")
        return list(await connection.scalars(statement, {"id": spec.head.uuid}))


def written(entries: int) -> LogRow:
    """All that there is of a log is written already."""
    return LogRow(entries, 0, pack([]))


async def test_a_malformed_message_is_stored_as_it_should_have_been(
    database: Database, tenant: TenantId, kept: Kept
) -> None:
    spec = foreground(tenant)
    fold = folded(spec, [*said(MALFORMED), COMPLETED])
    claim = await kept.archive.begin(spec)
    await kept.archive.finish(spec, COMPLETED, fold, claim, None)
    (message,) = await history(database, spec)
    expected = "<|start|>assistant<|channel|>final<|message|>Hello<|end|>"
    assert list(message.ids or ()) == script_ids(expected)
    stored = await load(database, spec)
    assert orjson.loads(stored.body or b"") == fold.response()
    assert orjson.loads(stored.recoveries or b"") == {"header_leftover": 1, "unknown_recipient": 1}


async def test_the_same_end_may_be_written_twice(
    database: Database, tenant: TenantId, kept: Kept
) -> None:
    spec = foreground(tenant)
    fold = folded(spec, [*said(ANSWER), COMPLETED])
    claim = await kept.archive.begin(spec)
    for _ in range(2):
        await kept.archive.finish(spec, COMPLETED, fold, claim, None)
    assert len(await history(database, spec)) == 1
    assert len(await used(database, spec)) == 1


async def test_a_foreground_response_is_held_while_it_is_generated(
    database: Database, tenant: TenantId, kept: Kept
) -> None:
    spec = foreground(tenant)
    claim = await kept.archive.begin(spec)
    assert (await load(database, spec)).is_held
    assert await claims.heartbeat(database, "replica_a", [claim], lease_s=600) == {claim.uuid}


@pytest.mark.slow
async def test_a_database_that_stays_away_is_given_up(tenant: TenantId) -> None:
    database = Database(
        "postgresql://nobody:x@127.0.0.1:1/none",
        pool_size_max=1,
        command_timeout_s=1,
        connect_timeout_s=1,
    )
    spec = foreground(tenant)
    kept = Kept(database, wait_s=0.5)
    claim = claims.Claim(tenant, spec.head.uuid, 1)
    with pytest.raises(StoreUnavailable):
        await kept.archive.finish(spec, COMPLETED, folded(spec, [COMPLETED]), claim, None)
    await database.close()


async def test_an_accepted_response_waits_with_all_that_is_needed_to_generate_it(
    database: Database, tenant: TenantId, kept: Kept
) -> None:
    spec = with_input(tenant)
    assert await kept.archive.accept(spec, None, owned=False) is None
    assert kept.notices == [Notice("work")]
    stored = await load(database, spec)
    assert (stored.status, stored.durable, stored.next_entry) == ("queued", True, 1)
    assert await log_of(database, spec) == [Queued()]
    assert [one.item_id for one in await history(database, spec)] == ["msg_in1", "msg_in2"]
    (claimed,) = await claims.claim(database, "replica_b", TERMS, limit=1, take_over=True)
    assert claimed.prompt_ids == array("I", spec.prompt_ids)


async def test_what_is_accepted_for_a_waiting_client_is_claimed_from_the_start(
    database: Database, tenant: TenantId, kept: Kept
) -> None:
    spec = background(tenant)
    claim = await kept.archive.accept(spec, None, owned=True)
    assert claim == claims.Claim(tenant, spec.head.uuid, 1)
    stored = await load(database, spec)
    assert (stored.status, stored.next_entry, stored.is_held) == ("in_progress", 0, True)
    assert kept.notices == []


async def test_a_tenant_may_only_have_so_many_responses_queued(
    tenant: TenantId, kept: Kept
) -> None:
    spec = background(tenant)
    policy = TenantPolicy(background_queued_max=2)
    spec = replace(spec, principal=replace(spec.principal, policy=policy))
    for _ in range(2):
        await kept.archive.accept(background(tenant, spec=spec), None, owned=False)
    with pytest.raises(RateLimited):
        await kept.archive.accept(background(tenant, spec=spec), None, owned=False)
    assert await kept.archive.accept(background(tenant, spec=spec), None, owned=True)


async def test_what_is_not_written_yet_is_committed_with_the_end(
    database: Database, tenant: TenantId, kept: Kept
) -> None:
    spec = with_input(tenant)
    claim = await kept.archive.accept(spec, None, owned=True)
    assert claim is not None
    log = said(ANSWER)
    await append(database, spec, claim, 0, log[:1])
    rest = LogRow(1, len(log) - 1, pack(log[1:]))
    await kept.archive.finish(spec, COMPLETED, folded(spec, [*log, COMPLETED]), claim, rest)
    assert await log_of(database, spec) == [*log, COMPLETED]
    stored = await responses.load(database, tenant, spec.head.uuid)
    assert stored is not None
    assert stored.next_entry == len(log) + 1


async def test_the_end_of_a_durable_response_follows_on_its_log(
    database: Database, tenant: TenantId, kept: Kept
) -> None:
    spec = with_input(tenant)
    claim = await kept.archive.accept(spec, None, owned=True)
    assert claim is not None
    await append(database, spec, claim, 0, said(ANSWER))
    fold = folded(spec, [*said(ANSWER), COMPLETED])
    await kept.archive.finish(spec, COMPLETED, fold, claim, written(3))
    assert await log_of(database, spec) == [*said(ANSWER), COMPLETED]
    contexts = await history(database, spec)
    assert [one.item_id for one in contexts[:2]] == ["msg_in1", "msg_in2"]
    assert [one.role for one in contexts] == ["user", "user", "assistant"]
    assert kept.notices == [Notice("log", (spec.head.uuid,))]


async def test_an_end_that_would_leave_a_gap_is_refused(tenant: TenantId, kept: Kept) -> None:
    spec = background(tenant)
    claim = await kept.archive.accept(spec, None, owned=True)
    assert claim is not None
    with pytest.raises(ClaimLost):
        await kept.archive.finish(spec, COMPLETED, folded(spec, [COMPLETED]), claim, written(3))


async def test_a_key_is_free_again_when_its_response_failed_before_it_said_anything(
    database: Database, tenant: TenantId, kept: Kept
) -> None:
    key = IdempotencyKey(b"k" * 32, b"f" * 32, ttl_s=600)
    failing, speaking = background(tenant), background(tenant)
    claim = await kept.archive.accept(failing, key, owned=True)
    assert claim is not None
    with pytest.raises(KeyTaken):
        await kept.archive.accept(speaking, key, owned=True)
    await kept.archive.finish(failing, FAILED, folded(failing, [FAILED]), claim, written(0))
    assert await find_key(database, tenant, key.key_hash, ttl_s=600) is None
    claim = await kept.archive.accept(speaking, key, owned=True)
    assert claim is not None
    await append(database, speaking, claim, 0, said(ANSWER))
    fold = folded(speaking, [*said(ANSWER), FAILED])
    await kept.archive.finish(speaking, FAILED, fold, claim, written(3))
    assert await find_key(database, tenant, key.key_hash, ttl_s=600)


async def test_cancelling_keeps_what_was_said_and_stops_its_owner(
    database: Database, tenant: TenantId, kept: Kept
) -> None:
    spec = with_input(tenant)
    claim = await kept.archive.accept(spec, None, owned=True)
    assert claim is not None
    open_turn = said("<|channel|>final<|message|>Hello")[:2]
    await append(database, spec, claim, 0, open_turn)
    stored = await kept.archive.cancel(tenant, spec.head.uuid)
    assert stored is not None
    assert (stored.status, stored.epoch) == ("cancelled", claim.epoch + 1)
    assert shown_text(orjson.loads(stored.body or b"")) == "Hello"
    entries = await log_of(database, spec)
    assert entries[:-1] == open_turn
    assert isinstance(entries[-1], Finished)
    assert [one.role for one in await history(database, spec)] == ["user", "user", "assistant"]
    assert await used(database, spec) == [len(script_ids("<|channel|>final<|message|>Hello"))]
    assert kept.notices == [Notice("ended", (spec.head.uuid,))]
    assert b'status="cancelled"' in kept.metrics.exposition()
    with pytest.raises(ClaimLost):
        await kept.archive.finish(spec, COMPLETED, folded(spec, [COMPLETED]), claim, written(2))


async def test_nobody_waits_while_a_log_is_folded_for_its_end(
    database: Database, tenant: TenantId
) -> None:
    """A long one takes seconds, and what is said meanwhile is part of it, too."""
    connections: list[int] = []
    claim: Claim | None = None
    spec = background(tenant)

    class LogQuery(Fold):
        @override
        def apply(self, entry: Entry) -> list[Event]:
            connections.append(database.taken)
            return super().apply(entry)

    def watched(head: ResponseHead) -> Callable[[], Fold]:
        return lambda: LogQuery(
            head, parsed_by(lambda _trace: Parser(vocabulary(), None), FRAMING), NO_RULES
        )

    class Meanwhile(Archive):
        @override
        async def _read_ahead(self, *arguments: Any) -> Any:
            read = await super()._read_ahead(*arguments)
            assert claim is not None
            await append(database, spec, claim, 2, [Tokens(tuple(script_ids(" there, you")))])
            return read

    kept = Kept(database, new_fold_for=watched, of=Meanwhile)
    claim = await kept.archive.accept(spec, None, owned=True)
    assert claim is not None
    await append(database, spec, claim, 0, said("<|channel|>final<|message|>Hello")[:2])
    stored = await kept.archive.cancel(tenant, spec.head.uuid)
    assert stored is not None
    assert shown_text(orjson.loads(stored.body or b"")) == "Hello there, you"
    assert [type(entry) for entry in await log_of(database, spec)] == [
        TurnStarted,
        Tokens,
        Tokens,
        Finished,
    ]
    assert connections == [0, 0, 1, 1]


async def test_a_queued_response_is_cancelled_before_it_begins(
    database: Database, tenant: TenantId, kept: Kept
) -> None:
    spec = background(tenant)
    await kept.archive.accept(spec, None, owned=False)
    stored = await kept.archive.cancel(tenant, spec.head.uuid)
    assert stored is not None
    assert stored.status == "cancelled"
    assert orjson.loads(stored.body or b"")["output"] == []
    assert await claims.claim(database, "replica_b", TERMS, limit=9, take_over=True) == []


@pytest.mark.parametrize("said_of_it", [[], said("<|channel|>final<|message|>Hello")[:2]])
async def test_who_ends_a_response_settles_what_its_key_was_charged(
    database: Database, tenant: TenantId, said_of_it: Sequence[Entry]
) -> None:
    """Whoever accepted it, or had begun with it, has left that."""
    day = limit("tokens", 100_000, window_s=86_400)
    one = limiter(database, "one")
    async with running(one):
        charge = await admitted(one, caller(day, tenant_id=tenant))
    assert isinstance(charge, Charge)
    kept = Kept(database, adopt_charge=one.gates.adopt)
    spec = replace(background(tenant), charge=charge)
    claim = await kept.archive.accept(spec, None, owned=bool(said_of_it))
    if claim is not None:
        await append(database, spec, claim, 0, said_of_it)
    charge.hand_over()
    ((_, bucket),) = one.gates.live_buckets()
    before, (reserved,) = bucket.held, [each.reserved for each in charge.tokens]
    for _ in range(2):
        await kept.archive.cancel(tenant, spec.head.uuid)
    spent = len(spec.prompt_ids) + sum(await used(database, spec)) if said_of_it else 0
    assert bucket.held - before == reserved - spent


@pytest.mark.requirement("cancel.wins-once")
async def test_cancelling_does_nothing_to_what_has_ended_or_cannot_be_cancelled(
    tenant: TenantId, kept: Kept
) -> None:
    done, running = foreground(tenant), foreground(tenant)
    claim = await kept.archive.begin(done)
    await kept.archive.finish(
        done, COMPLETED, folded(done, [*said(ANSWER), COMPLETED]), claim, None
    )
    await kept.archive.begin(running)
    for spec, status in ((done, "completed"), (running, "in_progress")):
        stored = await kept.archive.cancel(tenant, spec.head.uuid)
        assert stored is not None
        assert stored.status == status
    assert await kept.archive.cancel(tenant, ids.new_uuid()) is None
    assert kept.notices == []


async def test_a_response_that_is_held_is_not_abandoned(
    database: Database, tenant: TenantId, kept: Kept
) -> None:
    spec = foreground(tenant)
    await kept.archive.begin(spec)
    stored = await kept.archive.end_abandoned(tenant, spec.head.uuid)
    assert stored is not None
    assert stored.status == "in_progress"
    await let_time_pass(database, tenant, seconds=601)
    stored = await kept.archive.end_abandoned(tenant, spec.head.uuid)
    assert stored is not None
    body = orjson.loads(stored.body or b"")
    assert (body["status"], body["usage"], body["output"]) == ("failed", None, [])
    assert body["error"]["code"] == "server_error"
    assert await used(database, spec) == []


@pytest.mark.parametrize(
    "damage",
    [
        "WITH log AS (DELETE FROM events RETURNING tenant_id, response_id, day)"
        " INSERT INTO events SELECT tenant_id, response_id, 0, day, 1, 3, 'no log' FROM log",
        "DELETE FROM events",
        "UPDATE responses SET plan = 'no plan'",
        "UPDATE responses SET plan = '{\"version\": 99}'",
        "UPDATE responses SET fold_version = 99",
    ],
)
async def test_a_response_ends_even_when_its_log_cannot_be_folded(
    database: Database, tenant: TenantId, kept: Kept, damage: str
) -> None:
    spec = background(tenant)
    claim = await kept.archive.accept(spec, None, owned=True)
    assert claim is not None
    await append(database, spec, claim, 0, said(ANSWER))
    async with database.transaction(tenant) as connection:
        await connection.execute(Statement(damage))
    stored = await kept.archive.cancel(tenant, spec.head.uuid)
    assert stored is not None
    body = orjson.loads(stored.body or b"")
    assert (body["status"], body["output"], body["usage"]) == ("cancelled", [], None)
    assert await used(database, spec) == []


async def test_only_who_holds_a_response_can_say_that_it_is_defective(
    tenant: TenantId, kept: Kept
) -> None:
    spec = background(tenant)
    claim = await kept.archive.accept(spec, None, owned=True)
    assert claim is not None
    old = replace(claim, epoch=0)
    for held, status in ((old, "in_progress"), (claim, "failed")):
        stored = await kept.archive.end_defective(held, ValueError("damaged"))
        assert stored is not None
        assert stored.status == status


async def test_what_an_unstored_response_used_is_booked_once(
    database: Database, tenant: TenantId, kept: Kept
) -> None:
    spec = replace(foreground(tenant), store=False)
    fold = folded(spec, [*said(ANSWER), COMPLETED])
    for _ in range(2):
        kept.archive.meter(spec, COMPLETED, fold)
    await kept.archive.flush()
    assert await used(database, spec) == [len(script_ids(ANSWER))]
    assert await responses.load(database, tenant, spec.head.uuid) is None
