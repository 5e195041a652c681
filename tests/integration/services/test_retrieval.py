"""What is said of responses that exist: each rule of reading, following, cancelling, deleting."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway import ids
from gateway.entries import Finished, Tokens, TurnEnded, TurnStarted, pack
from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.eventlog.feed import Feed, FeedLimits
from gateway.eventlog.live_log import LiveLogRegistry
from gateway.eventlog.log_watcher import LogWatcher
from gateway.protocol.pages import PageParams
from gateway.services.retrieval import Retrieval
from gateway.store import events, flushes, remote_logs, responses
from gateway.store.events import LogBatch, LogRow
from gateway.store.postgres.statements import Statement
from gateway.tenancy import Principal
from gateway.tenancy.policy import TenantPolicy
from tests.fakes.following import collected
from tests.fakes.harmony_script import harmony_of, script_ids
from tests.fakes.replica import Replica, background, foreground, new_fold_for, talkative
from tests.fakes.staged_run import LENGTH, STOP
from tests.fakes.stored import item

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from gateway.engine.run_spec import RunSpec
    from gateway.entries import Entry, Status
    from gateway.store.claims import Claim
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

ANSWER = "<|channel|>final<|message|>Hello there"
SAID: list[Entry] = [TurnStarted(3), Tokens(tuple(script_ids(ANSWER)))]
NOT_FOUND = "Response with id '.*' not found"


@pytest.fixture
def database(shared_database: Database) -> Database:
    return shared_database


class Office:
    """A retrieval service for one tenant, and the means to make responses of every kind."""

    def __init__(
        self, database: Database, tenant: TenantId, policy: TenantPolicy | None = None
    ) -> None:
        self.database = database
        self.tenant = tenant
        self.principal = Principal(tenant, "tenant", ids.new_uuid(), policy or TenantPolicy())
        self.archive = Replica(database, talkative(ANSWER)).archive
        feed = Feed(
            LiveLogRegistry(),
            LogWatcher(partial(remote_logs.poll, database), interval_s=3600),
            partial(flushes.read, database),
            new_fold_for,
            limits=FeedLimits(read_bytes_max=65_536),
            followers=lambda _: None,
        )
        self.retrieval = Retrieval(
            database=database, feed=feed, archive=self.archive, format_of=harmony_of
        )

    async def queued(self, spec: RunSpec | None = None) -> str:
        """A background response that nobody has begun."""
        spec = spec or self.streamed()
        await self.archive.accept(spec, None, owned=False)
        return ids.response_id(spec.head.uuid)

    def streamed(self) -> RunSpec:
        return replace(background(self.tenant), streamed=True)

    async def running(self, spec: RunSpec | None = None) -> tuple[RunSpec, Claim, int]:
        """A durable response that has said something; its claim and its next entry."""
        spec = spec or self.streamed()
        claim = await self.archive.accept(spec, None, owned=True)
        assert claim is not None
        await self.append(spec, claim, 0, SAID)
        return spec, claim, len(SAID)

    async def append(
        self, spec: RunSpec, claim: Claim, first: int, entries: Sequence[Entry]
    ) -> None:
        parcel = LogBatch(claim, (await self.load(spec)).day, first, len(entries), pack(entries))
        assert await events.append(self.database, [parcel])

    async def over(self, status: Status, spec: RunSpec | None = None) -> str:
        """A durable response that ended."""
        spec, claim, next_entry = await self.running(spec)
        turn_end = TurnEnded(STOP if status == "completed" else LENGTH)
        end = Finished(status, spec.head.created_at + 1, reason="r", code="c", message="m")
        fold = new_fold_for(spec.head)()
        for entry in (*SAID, turn_end, end):
            fold.apply(entry)
        rest = LogRow(next_entry, 1, pack([turn_end]))
        await self.archive.finish(spec, end, fold, claim, rest)
        return ids.response_id(spec.head.uuid)

    async def kept(self) -> str:
        """A stored foreground response that ended."""
        spec = foreground(self.tenant)
        claim = await self.archive.begin(spec)
        fold = new_fold_for(spec.head)()
        end = Finished("completed", spec.head.created_at + 1)
        fold.apply(end)
        await self.archive.finish(spec, end, fold, claim, None)
        return ids.response_id(spec.head.uuid)

    async def load(self, spec: RunSpec) -> responses.StoredResponse:
        stored = await responses.load(self.database, self.tenant, spec.head.uuid)
        assert stored is not None
        return stored

    async def get(self, response_id: str) -> dict[str, Any]:
        shown: dict[str, Any] = orjson.loads(await self.retrieval.get(self.principal, response_id))
        return shown

    async def numbers(self, response_id: str, after: int = -1) -> list[int]:
        """Sequence numbers of a stream that ends."""
        source = await self.retrieval.stream(self.principal, response_id, after=after)
        return [event.sequence_number for event in await collected(source)]

    async def change(self, response_id: str, assignment: str, **values: object) -> None:
        uuid = ids.parse_response_id(response_id)
        statement = Statement(f"UPDATE responses SET {assignment} WHERE id = :id")
        async with self.database.transaction(self.tenant) as connection:
            await connection.execute(statement, {"id": uuid, **values})


@pytest.fixture
def office(database: Database, tenant: TenantId) -> Office:
    return Office(database, tenant)


async def refused(deed: Awaitable[object], *, param: str | None = None) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await deed
    assert caught.value.param == param
    return caught.value.message


async def test_a_response_that_ended_is_shown_as_it_was_sent(office: Office) -> None:
    shown = await office.get(await office.over("completed"))
    assert (shown["status"], shown["output"][0]["content"][0]["text"]) == (
        "completed",
        "Hello there",
    )


async def test_a_background_response_is_shown_as_far_as_it_has_come(office: Office) -> None:
    waiting = await office.get(await office.queued())
    assert (waiting["status"], waiting["output"], waiting["usage"]) == ("queued", [], None)
    spec, _, _ = await office.running()
    shown = await office.get(ids.response_id(spec.head.uuid))
    assert shown["status"] == "in_progress"
    assert shown["output"][0]["content"][0]["text"] == "Hello there"
    assert shown["output"][0]["status"] == "in_progress"


async def test_of_a_log_in_another_form_only_the_status_is_shown(office: Office) -> None:
    spec, _, _ = await office.running()
    running, waiting = ids.response_id(spec.head.uuid), await office.queued()
    for response_id, status in ((running, "in_progress"), (waiting, "queued")):
        await office.change(response_id, "fold_version = 99")
        shown = await office.get(response_id)
        assert (shown["id"], shown["status"], shown["output"]) == (response_id, status, [])


async def test_what_must_not_be_known_looks_as_if_it_were_not_there(
    office: Office, database: Database, other_tenant: TenantId
) -> None:
    stranger = Office(database, other_tenant)
    running = foreground(office.tenant)
    await office.archive.begin(running)
    retrieval, principal = office.retrieval, office.principal
    for response_id in (
        "resp_1",
        ids.response_id(ids.new_uuid()),
        ids.response_id(running.head.uuid),
        await stranger.over("completed"),
        await stranger.queued(),
    ):
        for deed in (
            retrieval.get(principal, response_id),
            retrieval.stream(principal, response_id),
            retrieval.cancel(principal, response_id),
            retrieval.delete(principal, response_id),
            retrieval.input_items(principal, response_id, PageParams(1)),
        ):
            with pytest.raises(ResourceNotFound, match=NOT_FOUND):
                await deed
    assert (await office.load(running)).status == "in_progress"


async def test_a_stream_is_replayed_from_anywhere(office: Office) -> None:
    response_id = await office.over("completed")
    whole = await office.numbers(response_id)
    assert whole == list(range(len(whole)))
    assert await office.numbers(response_id, after=4) == whole[5:]
    assert await office.numbers(response_id, after=whole[-1]) == []


async def test_only_what_was_asked_for_as_a_background_stream_is_streamed(office: Office) -> None:
    silent = await office.queued(background(office.tenant))
    for response_id, why in ((await office.kept(), "background=true"), (silent, "stream=true")):
        message = await refused(
            office.retrieval.stream(office.principal, response_id), param="stream"
        )
        assert message.startswith(
            f"This response cannot be streamed because it was not created with {why}."
        )


async def test_a_log_in_another_form_is_not_streamed(office: Office) -> None:
    response_id = await office.queued()
    await office.change(response_id, "fold_version = 99")
    message = await refused(office.retrieval.stream(office.principal, response_id), param="stream")
    assert "can no longer be streamed because its model, or the release of this" in message


async def test_a_log_in_a_format_that_its_model_has_no_more_is_not_read(office: Office) -> None:
    spec = office.streamed()
    spec = replace(spec, head=replace(spec.head, format="passthrough"))
    await office.running(spec)
    response_id = ids.response_id(spec.head.uuid)
    shown = await office.get(response_id)
    assert (shown["status"], shown["output"]) == ("in_progress", [])
    await refused(office.retrieval.stream(office.principal, response_id), param="stream")
    cancelled = orjson.loads(await office.retrieval.cancel(office.principal, response_id))
    assert (cancelled["status"], cancelled["output"]) == ("cancelled", [])


@pytest.mark.parametrize(
    ("kept_s", "span"), [(86_400, "24 hours"), (5_400, "90 minutes"), (61, "61 seconds")]
)
async def test_a_stream_expires(
    database: Database, tenant: TenantId, kept_s: int, span: str
) -> None:
    office = Office(database, tenant, TenantPolicy(log_retention_s=kept_s))
    response_id = await office.over("completed")
    just_in_time = datetime.now(UTC) - timedelta(seconds=kept_s - 30)
    await office.change(response_id, "completed_at = :at", at=just_in_time)
    assert await office.numbers(response_id)
    await office.change(response_id, "completed_at = :at", at=just_in_time - timedelta(seconds=31))
    message = await refused(office.retrieval.stream(office.principal, response_id), param="stream")
    assert message.startswith(
        f"This response can no longer be streamed because its log is kept for {span} after the end."
    )
    assert (await office.get(response_id))["status"] == "completed"


async def test_a_log_that_is_gone_is_not_streamed(office: Office) -> None:
    response_id = await office.over("completed")
    async with office.database.transaction(office.tenant) as connection:
        await connection.execute(Statement("DELETE FROM events"))
    message = await refused(office.retrieval.stream(office.principal, response_id), param="stream")
    assert "its log is kept for 24 hours after the end" in message


async def test_a_response_is_cancelled_once_and_says_so_for_ever(office: Office) -> None:
    spec, _, _ = await office.running()
    shown: dict[str, Any] = {}
    for response_id in (await office.queued(), ids.response_id(spec.head.uuid)):
        first = await office.retrieval.cancel(office.principal, response_id)
        shown = orjson.loads(first)
        assert (shown["status"], shown["completed_at"], shown["error"]) == ("cancelled", None, None)
        assert await office.retrieval.cancel(office.principal, response_id) == first
        assert await office.retrieval.get(office.principal, response_id) == first
        assert await office.numbers(response_id)
    assert shown["output"][0]["content"][0]["text"] == "Hello there"


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("completed", "Cannot cancel a completed response."),
        ("failed", "Cannot cancel a failed response."),
        ("incomplete", "Cannot cancel a response in terminal state."),
    ],
)
async def test_what_ended_otherwise_cannot_be_cancelled(
    office: Office, status: Status, message: str
) -> None:
    response_id = await office.over(status)
    refusal = await refused(office.retrieval.cancel(office.principal, response_id))
    assert refusal.startswith(f"{message} Retrieve it to see ")


async def test_what_was_generated_for_a_waiting_client_cannot_be_cancelled_afterwards(
    office: Office,
) -> None:
    durable = office.streamed()
    durable = replace(durable, head=replace(durable.head, background=False))
    for response_id in (await office.kept(), await office.over("completed", durable)):
        message = await refused(office.retrieval.cancel(office.principal, response_id))
        assert message.startswith("Cannot cancel a synchronous response. ")


async def test_a_durable_foreground_response_can_be_cancelled_while_it_runs(office: Office) -> None:
    durable = office.streamed()
    spec, _, _ = await office.running(
        replace(durable, head=replace(durable.head, background=False))
    )
    response_id = ids.response_id(spec.head.uuid)
    first = await office.retrieval.cancel(office.principal, response_id)
    assert orjson.loads(first)["status"] == "cancelled"
    assert await office.retrieval.cancel(office.principal, response_id) == first


async def test_what_is_being_generated_cannot_be_deleted(office: Office) -> None:
    spec, _, _ = await office.running()
    for response_id in (await office.queued(), ids.response_id(spec.head.uuid)):
        message = await refused(office.retrieval.delete(office.principal, response_id))
        assert message.startswith("Cannot delete an in-flight response. Cancel it first")


async def test_what_is_deleted_is_gone_for_every_use(office: Office) -> None:
    for response_id in (await office.over("completed"), await office.kept()):
        await office.retrieval.delete(office.principal, response_id)
        for deed in (office.retrieval.get, office.retrieval.stream, office.retrieval.delete):
            with pytest.raises(ResourceNotFound, match=NOT_FOUND):
                await deed(office.principal, response_id)


async def test_what_a_background_response_was_asked_is_listed_from_the_start(
    office: Office,
) -> None:
    spec = replace(office.streamed(), added=(item("msg_a"), item("msg_b")), inputs=2)
    page = await office.retrieval.input_items(
        office.principal, await office.queued(spec), PageParams(1, order="desc")
    )
    assert [orjson.loads(one)["id"] for one in page.rows] == ["msg_b"]
    assert page.has_more
