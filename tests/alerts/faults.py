"""What breaks in a deployment: each fault is there while its block is entered, and mended then."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from openai import APIError

from gateway.store.migration.verification import GRANTS
from gateway.store.schema import RUNS_ROLE
from tests.alerts.deployment import BRIEF, MCP_LABEL, MODEL, SLOTS, TENANT, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.alerts.deployment import Deployment, Service

BLOCKED_S: Final = 0.3
"""A lock is held so long, and at once taken again."""
BASELINE: Final = 1_500
"""Responses without a fault, as of the week before."""
BASELINE_WITHIN_S: Final = 600.0
LONG: Final = "[[sim tokens=1500 tokens_per_s=20 think=none]] go on"
RESUMABLE: Final = {"Idempotency-Key": "of-a-response-that-is-resumed"}
HELD: Final = "SELECT pg_current_xact_id()"
STORED: Final = "SELECT max(bytes) FROM stored_bytes"
"""All of the tenant: each project is part of it."""
WRONG_SUM: Final = """
UPDATE usage_hours SET output_tokens = output_tokens + 1
WHERE ctid = (SELECT ctid FROM usage_hours LIMIT 1)
"""


@asynccontextmanager
async def failing_responses(deployment: Deployment) -> AsyncIterator[None]:
    """One backend's errors are every backend's: the engine refuses what it is sent."""
    async with deployment.users.asking("[[sim status=500]] go on"):
        yield


@asynccontextmanager
async def slow_first_tokens(deployment: Deployment) -> AsyncIterator[None]:
    async with deployment.users.asking("[[sim first_token_delay_s=3 tokens=3 think=none]] go on"):
        yield


@asynccontextmanager
async def broken_generations(deployment: Deployment) -> AsyncIterator[None]:
    async with deployment.users.asking("[[sim die_after=5 times=1 tokens=20 think=none]] go on"):
        yield


@asynccontextmanager
async def repaired_turns(deployment: Deployment) -> AsyncIterator[None]:
    users = deployment.users
    await until(
        lambda: users.answered > BASELINE, BASELINE_WITHIN_S, lambda: f"{users.answered} answers"
    )
    async with users.asking("[[sim attack=header times=1]] go on"):
        yield


@asynccontextmanager
async def replica_dead(deployment: Deployment) -> AsyncIterator[None]:
    async with _dead(deployment.replicas[1]):
        yield


@asynccontextmanager
async def replica_dead_with_responses(deployment: Deployment) -> AsyncIterator[None]:
    """One that can be resumed, and one that ends with its replica.

    Any replica may generate one in the background.
    """
    create = deployment.others.responses.create
    resumable = await create(model=MODEL, input=LONG, stream=True, extra_headers=RESUMABLE)
    await anext(resumable)
    foreground = await create(model=MODEL, input=LONG, stream=True)
    await anext(foreground)
    async with _dead(deployment.replicas[1]):
        yield


@asynccontextmanager
async def backend_dead(deployment: Deployment) -> AsyncIterator[None]:
    async with _dead(deployment.backends[1]):
        yield


@asynccontextmanager
async def backends_dead(deployment: Deployment) -> AsyncIterator[None]:
    first, second = deployment.backends
    async with _dead(first), _dead(second):
        yield


@asynccontextmanager
async def no_slots(deployment: Deployment) -> AsyncIterator[None]:
    """More come than can be served and may wait."""

    async def flood() -> None:
        while True:
            await deployment.users.ask("[[sim tokens=20 tokens_per_s=20 think=none]] go on")

    async with _tasks([flood() for _ in range(6 * SLOTS)]):
        yield


@asynccontextmanager
async def database_dead(deployment: Deployment) -> AsyncIterator[None]:
    await asyncio.to_thread(deployment.postgres.kill)
    try:
        yield
    finally:
        await asyncio.to_thread(deployment.postgres.start)


@asynccontextmanager
async def database_read_only(deployment: Deployment) -> AsyncIterator[None]:
    """As the old primary after a failover that clients did not follow."""
    await _read_only(deployment, "on")
    try:
        yield
    finally:
        await _read_only(deployment, "off")


async def _read_only(deployment: Deployment, value: str) -> None:
    async with deployment.connection() as connection:
        await connection.execute("SET default_transaction_read_only = off")
        await connection.execute(
            f"ALTER DATABASE postgres SET default_transaction_read_only = {value}"
        )
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )


@asynccontextmanager
async def slow_commits(deployment: Deployment) -> AsyncIterator[None]:
    """Something locks the table that logs are written to, again and again."""

    async def block() -> None:
        async with deployment.connection() as connection:
            while True:
                async with connection.transaction():
                    await connection.execute("LOCK TABLE flushes IN SHARE MODE")
                    await asyncio.sleep(BLOCKED_S)

    async with _tasks([block()]), deployment.users.asking(BRIEF, background=True):
        yield


@asynccontextmanager
async def long_transaction(deployment: Deployment) -> AsyncIterator[None]:
    """Somebody's transaction stays open: what is newer may not be added up yet."""
    async with deployment.connection() as connection, connection.transaction():
        await connection.execute(HELD)
        yield


@asynccontextmanager
async def locked_sums(deployment: Deployment) -> AsyncIterator[None]:
    """Adding up fails each time: it waits for a lock until its statement is cancelled."""
    async with deployment.connection() as connection, connection.transaction():
        await connection.execute("LOCK TABLE usage_minutes IN SHARE MODE")
        yield


@asynccontextmanager
async def wrong_sums(deployment: Deployment) -> AsyncIterator[None]:
    await deployment.execute(WRONG_SUM)
    yield


@asynccontextmanager
async def no_right_to_counters(deployment: Deployment) -> AsyncIterator[None]:
    await deployment.execute(f"REVOKE ALL ON limit_reports FROM {RUNS_ROLE}")
    try:
        yield
    finally:
        privileges = GRANTS[RUNS_ROLE]["limit_reports"]
        await deployment.execute(f"GRANT {privileges} ON limit_reports TO {RUNS_ROLE}")


@asynccontextmanager
async def storage_used(deployment: Deployment) -> AsyncIterator[None]:
    """A limit of what the tenant has stored already."""
    await deployment.command("limits", "set", TENANT, "--stored-bytes", "1000000000000")
    stored = 0.0
    async with deployment.connection() as connection:
        while not stored:
            stored = float(await connection.fetchval(STORED) or 0)
            await asyncio.sleep(BLOCKED_S)
    await deployment.command("limits", "set", TENANT, "--stored-bytes", str(int(stored * 1.05)))
    try:
        yield
    finally:
        await deployment.command("limits", "set", TENANT, "--stored-bytes", "1000000000000")


@asynccontextmanager
async def billing_down(deployment: Deployment) -> AsyncIterator[None]:
    deployment.receivers.takes_usage = False
    try:
        yield
    finally:
        deployment.receivers.takes_usage = True


@asynccontextmanager
async def search_key_refused(deployment: Deployment) -> AsyncIterator[None]:
    deployment.receivers.takes_key = False
    text = "[[sim steps=search lamp]] lamp"
    try:
        async with deployment.users.asking(text, tools=[{"type": "web_search"}]):
            yield
    finally:
        deployment.receivers.takes_key = True


@asynccontextmanager
async def tool_server_dead(deployment: Deployment) -> AsyncIterator[None]:
    tool = {"type": "mcp", "server_label": MCP_LABEL, "require_approval": "never"}
    async with _dead(deployment.tool_server), deployment.users.asking(BRIEF, tools=[tool]):
        yield


@asynccontextmanager
async def discovery_broken(deployment: Deployment) -> AsyncIterator[None]:
    """Somebody's editor left half a file."""
    content = deployment.discovery.read_text("utf-8")
    deployment.discovery.write_text('{"backends": [', encoding="utf-8")
    try:
        yield
    finally:
        deployment.discovery.write_text(content, encoding="utf-8")


@asynccontextmanager
async def _dead(service: Service) -> AsyncIterator[None]:
    await asyncio.to_thread(service.kill)
    try:
        yield
    finally:
        await asyncio.to_thread(service.start)


@asynccontextmanager
async def _tasks(work: list) -> AsyncIterator[None]:  # type: ignore[type-arg]
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError, APIError):
            await asyncio.gather(*tasks, return_exceptions=True)
