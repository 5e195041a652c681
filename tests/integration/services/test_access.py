from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from gateway import ids
from gateway.admin.projects import ProjectCreate, Projects
from gateway.admin.transactions import AdminCaller, Transactions
from gateway.audit import COMMAND_LINE
from gateway.errors import AuthenticationError, InvalidRequest, ResourceNotFound, StoreUnavailable
from gateway.services.access import Access
from gateway.store import callers
from gateway.store.postgres.statements import Statement
from gateway.tenancy.policy import TenantPolicy
from gateway.tenancy.secrets import secret_of
from tests.fakes.clock import Clock
from tests.fakes.gateway import tenants_of
from tests.fakes.logs import captured_logs

if TYPE_CHECKING:
    from gateway.admin.tenants import Tenants
    from gateway.store.postgres.database import Database
    from gateway.tenancy import Principal
    from gateway.tenancy.policy import PolicyChanges
    from tests.fakes.postgres import PostgresServer


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def access(database: Database, clock: Clock) -> Access:
    return Access(database, b"pepper", 5.0, 3, cache_stale_s=100.0, clock=clock)


@pytest.fixture
def tenants(database: Database, access: Access) -> Tenants:
    return tenants_of(database, access)


async def new_secret(tenants: Tenants, tenant: str = "acme") -> str:
    await tenants.create(COMMAND_LINE, tenant)
    return (await tenants.create_key(COMMAND_LINE, tenant, "key"))[1]


async def test_a_key_is_its_tenant(access: Access, tenants: Tenants) -> None:
    tenant = await tenants.create(COMMAND_LINE, "acme")
    key, secret = await tenants.create_key(COMMAND_LINE, "acme", "laptop")
    principal = await access.authenticate(secret)
    assert (principal.tenant_id, principal.tenant_name) == (tenant.id, "acme")
    assert (principal.key_id, key.hint, key.name) == (key.id, secret[-4:], "laptop")


async def test_tenants_and_keys_are_listed_without_secrets(tenants: Tenants) -> None:
    await tenants.create(COMMAND_LINE, "globex")
    secret = await new_secret(tenants)
    assert [one.name for one in await tenants.list()] == ["acme", "globex"]
    assert [one.hint for one in await tenants.keys()] == [secret[-4:]]
    assert len(await tenants.keys("acme")) == 1
    assert await tenants.keys("globex") == []
    assert secret[:-4] not in repr(await tenants.keys())


async def test_the_database_holds_no_secret(
    tenants: Tenants, postgres: PostgresServer, database_url: str
) -> None:
    secret = await new_secret(tenants)
    rows = await postgres.fetch(
        "SELECT api_keys::text AS row, hash FROM api_keys", url=database_url
    )
    assert secret not in rows[0]["row"]
    assert len(rows[0]["hash"]) == 32


async def test_another_pepper_knows_none_of_the_keys(tenants: Tenants, database: Database) -> None:
    secret = await new_secret(tenants)
    with pytest.raises(AuthenticationError):
        await Access(database, b"other", 5.0, 3).authenticate(secret)


async def test_names_are_unique_and_plain(tenants: Tenants) -> None:
    await tenants.create(COMMAND_LINE, "acme")
    for name in ("acme", "", "-x", "a b", "a\x00", "é", "x" * 65, "a\n"):
        with pytest.raises(InvalidRequest) as caught:
            await tenants.create(COMMAND_LINE, name)
        assert caught.value.param == "name"
    with pytest.raises(InvalidRequest):
        await tenants.create_key(COMMAND_LINE, "acme", "no name")


async def test_an_unknown_tenant_is_reported(tenants: Tenants) -> None:
    for attempt in (
        tenants.create_key(COMMAND_LINE, "nobody", "key"),
        tenants.keys("nobody"),
        tenants.disable(COMMAND_LINE, "nobody"),
        tenants.get("nobody"),
        tenants.set_policy(COMMAND_LINE, "nobody", {"on_disconnect": None}),
    ):
        with pytest.raises(ResourceNotFound, match="nobody"):
            await attempt


async def refusal(access: Access, secret: str) -> AuthenticationError:
    with pytest.raises(AuthenticationError) as caught:
        await access.authenticate(secret)
    return caught.value


async def test_an_unknown_key_that_comes_again_and_again_stays_known_as_one(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = []
    decided = access._decide

    async def counting(given: tuple[str, str | None], *rest: object) -> object:
        looked_up.append(given[0])
        return await decided(given, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(access, "_decide", counting)
    again, *others = [secret_of("project", os.urandom(32)) for _ in range(6)]
    for other in others:
        await refusal(access, again)
        await refusal(access, other)
    assert looked_up.count(again) == 1


async def test_unknown_and_disabled_look_the_same(access: Access, tenants: Tenants) -> None:
    unknown = await refusal(access, secret_of("project", os.urandom(32)))
    secret = await new_secret(tenants)
    key = (await tenants.keys())[0]
    await access.authenticate(secret)
    await tenants.disable_key(COMMAND_LINE, str(key.id))
    disabled = await refusal(access, secret)
    second = await new_secret(tenants, "globex")
    await access.authenticate(second)
    await tenants.disable(COMMAND_LINE, "globex")
    of_tenant = await refusal(access, second)
    messages = set()
    for error in (unknown, disabled, of_tenant):
        assert (error.code, error.param) == ("invalid_api_key", None)
        messages.add(re.sub(r": sk-..\*\*\*....\.", "", error.message))
    assert len(messages) == 1
    shown = f"{secret[:5]}***{secret[-4:]}"
    assert disabled.message.startswith(f"Incorrect API key provided: {shown}. Check it")


@pytest.mark.parametrize(
    "secret", ["", "short", "sk-12345678", "sk-\x00" * 9, "\udc80" * 20, "é" * 20]
)
async def test_what_cannot_be_masked_is_not_shown(access: Access, secret: str) -> None:
    message = (await refusal(access, secret)).message
    assert message.startswith("Incorrect API key provided: ***. ")


async def test_a_key_is_disabled_by_id_or_by_hint(tenants: Tenants) -> None:
    await tenants.create(COMMAND_LINE, "acme")
    first, secret = await tenants.create_key(COMMAND_LINE, "acme", "first")
    second, _ = await tenants.create_key(COMMAND_LINE, "acme", "second")
    disabled = await tenants.disable_key(COMMAND_LINE, secret[-4:])
    assert disabled.id == first.id
    assert disabled.disabled_at is not None
    again = await tenants.disable_key(COMMAND_LINE, str(first.id))
    assert again.disabled_at == disabled.disabled_at
    assert {one.id: one.disabled_at is None for one in await tenants.keys()} == {
        first.id: False,
        second.id: True,
    }
    with pytest.raises(ResourceNotFound):
        await tenants.disable_key(COMMAND_LINE, "????")


async def test_a_hint_that_several_keys_share_is_refused(
    tenants: Tenants, postgres: PostgresServer, database_url: str
) -> None:
    await tenants.create(COMMAND_LINE, "acme")
    keys = [(await tenants.create_key(COMMAND_LINE, "acme", name))[0] for name in ("a", "b")]
    name = database_url.partition("?")[0].rpartition("/")[2]
    await postgres.execute("UPDATE api_keys SET hint = 'same'", database=name)
    with pytest.raises(InvalidRequest, match="give the id"):
        await tenants.disable_key(COMMAND_LINE, "same")
    await tenants.disable_key(COMMAND_LINE, str(keys[0].id))
    assert (await tenants.disable_key(COMMAND_LINE, "same")).id == keys[1].id


async def test_a_disabled_tenant_gets_no_new_keys(tenants: Tenants) -> None:
    await tenants.create(COMMAND_LINE, "acme")
    await tenants.disable(COMMAND_LINE, "acme")
    with pytest.raises(InvalidRequest, match="disabled"):
        await tenants.create_key(COMMAND_LINE, "acme", "key")


async def test_another_replica_forgets_a_disabled_key_after_the_ttl(
    tenants: Tenants, database: Database, clock: Clock
) -> None:
    replica = Access(database, b"pepper", 5.0, 3, clock=clock)
    secret = await new_secret(tenants)
    await replica.authenticate(secret)
    await tenants.disable(COMMAND_LINE, "acme")
    clock.now += 5.0
    await replica.authenticate(secret)
    clock.now += 0.1
    await refusal(replica, secret)


async def test_a_key_is_known_for_as_long_as_nobody_has_to_be_asked(
    access: Access, tenants: Tenants, clock: Clock
) -> None:
    secret, wrong = await new_secret(tenants), secret_of("project", os.urandom(32))
    assert access.cached(secret) is None
    principal = await access.authenticate(secret)
    await refusal(access, wrong)
    assert access.cached(secret) == principal
    assert access.cached(wrong) is None
    clock.now += 5.0
    assert access.cached(secret) == principal
    clock.now += 0.1
    assert access.cached(secret) is None
    await access.authenticate(secret)
    await tenants.disable(COMMAND_LINE, "acme")
    assert access.cached(secret) is None


async def test_a_key_in_use_is_looked_up_again_before_its_requests_have_to_wait(
    access: Access, tenants: Tenants, clock: Clock
) -> None:
    secret = await new_secret(tenants)
    principal = await access.authenticate(secret)
    async with asyncio.TaskGroup() as group:
        renewing = group.create_task(access.run())
        for _ in range(3):
            clock.now += 3.0
            assert access.cached(secret) == principal
            await _looked_up(access, secret)
            clock.now += 2.5
            assert access.cached(secret) == principal
            clock.now -= 2.5
        await tenants.disable(COMMAND_LINE, "acme")
        assert access.cached(secret) is None
        renewing.cancel()


async def _looked_up(access: Access, secret: str) -> None:
    """Wait for the look that is about to begin."""
    await asyncio.sleep(0)
    await access._lookups[access._mark(secret)].over.wait()


async def test_what_was_read_before_a_key_was_disabled_is_not_kept(
    access: Access, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = await new_secret(tenants)
    find, is_read, is_disabled = callers.find_principal, asyncio.Event(), asyncio.Event()

    async def slow(*given: Any) -> Principal | None:
        principal = await find(*given)
        is_read.set()
        await is_disabled.wait()
        return principal

    monkeypatch.setattr(callers, "find_principal", slow)
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(access.authenticate(secret))
        await is_read.wait()
        await tenants.disable(COMMAND_LINE, "acme")
        is_disabled.set()
    assert asking.result().tenant_name == "acme"
    assert access.cached(secret) is None
    await refusal(access, secret)


async def test_a_key_that_was_disabled_during_a_look_that_failed_is_not_taken(
    access: Access, tenants: Tenants, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = await new_secret(tenants)
    await access.authenticate(secret)
    clock.now += 6.0
    is_asked, is_disabled = asyncio.Event(), asyncio.Event()

    async def failing(*_: Any) -> Principal | None:
        is_asked.set()
        await is_disabled.wait()
        raise StoreUnavailable("away")

    monkeypatch.setattr(callers, "find_principal", failing)
    asking = asyncio.ensure_future(access.authenticate(secret))
    await is_asked.wait()
    await tenants.disable(COMMAND_LINE, "acme")
    is_disabled.set()
    with pytest.raises(StoreUnavailable):
        await asking


@pytest.mark.slow
async def test_a_key_that_cannot_be_looked_up_again_is_asked_for_by_its_next_request(
    access: Access, tenants: Tenants, clock: Clock, postgres: PostgresServer, database_url: str
) -> None:
    secret = await new_secret(tenants)
    principal = await access.authenticate(secret)
    clock.now += 3.0
    assert access.cached(secret) == principal
    access.forget()
    await close_database(postgres, database_url)
    async with asyncio.TaskGroup() as group:
        with captured_logs(of="gateway.services.access") as logged:
            renewing = group.create_task(access.run())
            await _looked_up(access, secret)
        await open_database(postgres, database_url)
        assert access.cached(secret) is None
        assert await access.authenticate(secret) == principal
        renewing.cancel()
    assert logged[0]["event"] == "a key was not looked up again, its next request is"


DEFAULTS = TenantPolicy(log_retention_s=7200, background_queued_max=5)


async def test_the_caller_has_its_tenant_s_policy_and_the_settings_for_the_rest(
    database: Database,
) -> None:
    access = Access(database, b"pepper", 5.0, 3, defaults=DEFAULTS)
    tenants = tenants_of(database, access)
    secret = await new_secret(tenants)
    assert (await access.authenticate(secret)).policy == DEFAULTS
    detail = await tenants.set_policy(
        COMMAND_LINE, "acme", {"on_disconnect": "continue", "log_retention_s": 60}
    )
    expected = TenantPolicy("continue", log_retention_s=60, background_queued_max=5)
    assert (await access.authenticate(secret)).policy == detail.policy == expected
    await tenants.set_policy(COMMAND_LINE, "acme", {"log_retention_s": None})
    detail = await tenants.get("acme")
    assert detail.tenant.name == "acme"
    assert (detail.own, detail.policy.log_retention_s) == ({"on_disconnect": "continue"}, 7200)


async def test_another_replica_follows_a_policy_after_the_ttl(
    tenants: Tenants, database: Database, clock: Clock
) -> None:
    replica = Access(database, b"pepper", 5.0, 3, clock=clock)
    secret = await new_secret(tenants)
    await replica.authenticate(secret)
    await tenants.set_policy(COMMAND_LINE, "acme", {"background_running_max": 1})
    clock.now += 5.0
    assert (await replica.authenticate(secret)).policy.background_running_max == 64
    clock.now += 0.1
    assert (await replica.authenticate(secret)).policy.background_running_max == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"on_disconnect": "pause"},
        {"log_retention_s": 0},
        {"log_retention_s": 366 * 86_400},
        {"response_retention_s": -1},
        {"response_retention_s": 2**31},
        {"background_running_max": 1.5},
        {"background_queued_max": 2**31},
        {"reasoning_summary": "model"},
        {"reasoning_budget_tokens": -1},
        {"reasoning_budget_tokens": 1_000_001},
        {"service_tier_max": "flex"},
        {"log_retention_s": "60"},
        {"unheard_of": 1},
    ],
)
async def test_a_policy_out_of_bounds_is_refused(tenants: Tenants, changes: PolicyChanges) -> None:
    await tenants.create(COMMAND_LINE, "acme")
    with pytest.raises(InvalidRequest) as caught:
        await tenants.set_policy(COMMAND_LINE, "acme", changes)
    assert caught.value.param == (next(iter(changes)) if changes else None)
    assert (await tenants.get("acme")).own == {}


async def close_database(postgres: PostgresServer, url: str) -> None:
    """No connection is left, and no new one is let in."""
    name = url.partition("?")[0].rpartition("/")[2]
    await postgres.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    await postgres.execute(
        f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'"
    )


async def open_database(postgres: PostgresServer, url: str) -> None:
    name = url.partition("?")[0].rpartition("/")[2]
    await postgres.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


async def test_a_cached_decision_needs_no_database(
    access: Access, tenants: Tenants, postgres: PostgresServer, database_url: str
) -> None:
    secret, wrong = await new_secret(tenants), secret_of("project", os.urandom(32))
    await access.authenticate(secret)
    await refusal(access, wrong)
    await close_database(postgres, database_url)
    await access.authenticate(secret)
    await refusal(access, wrong)


@pytest.mark.slow
async def test_known_keys_outlive_the_database_for_a_bounded_time(
    access: Access, tenants: Tenants, clock: Clock, postgres: PostgresServer, database_url: str
) -> None:
    secret, wrong = await new_secret(tenants), secret_of("project", os.urandom(32))
    expected = await access.authenticate(secret)
    await refusal(access, wrong)
    await close_database(postgres, database_url)
    clock.now += 105.0
    assert await access.authenticate(secret) == expected
    with pytest.raises(StoreUnavailable):
        await access.authenticate(wrong)
    clock.now += 0.1
    with pytest.raises(StoreUnavailable):
        await access.authenticate(secret)
    await open_database(postgres, database_url)
    assert await access.authenticate(secret) == expected
    await refusal(access, wrong)


WAITING = Statement(
    "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database"
    " WHERE NOT granted AND datname = current_database()"
)


@pytest.mark.slow
async def test_who_asks_at_once_is_answered_by_one_look(
    access: Access, tenants: Tenants, clock: Clock, database: Database
) -> None:
    secret = await new_secret(tenants)
    expected = await access.authenticate(secret)
    clock.now += 6.0
    async with asyncio.TaskGroup() as group, database.owner_transaction() as holding:
        await holding.script("LOCK TABLE api_keys IN ACCESS EXCLUSIVE MODE")
        asked = [group.create_task(access.authenticate(secret)) for _ in range(3)]
        while not (waiting := await holding.scalar(WAITING)):
            assert not asked[0].done()
        asked[0].cancel()  # it is the one who asks: others have to ask anew
    assert waiting == 1
    assert [await one for one in asked[1:]] == [expected] * 2


async def test_who_asks_at_once_hears_of_the_same_failure(
    access: Access, tenants: Tenants, postgres: PostgresServer, database_url: str
) -> None:
    secret = await new_secret(tenants)
    await close_database(postgres, database_url)
    asked = [access.authenticate(secret) for _ in range(3)]
    heard = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in heard] == [StoreUnavailable] * 3


async def test_wrong_keys_do_not_drive_out_right_ones(
    access: Access, tenants: Tenants, postgres: PostgresServer, database_url: str
) -> None:
    secret = await new_secret(tenants)
    await access.authenticate(secret)
    for _ in range(10):
        await refusal(access, secret_of("project", os.urandom(32)))
    await close_database(postgres, database_url)
    await access.authenticate(secret)


async def test_the_least_recently_used_key_is_forgotten_first(
    access: Access, tenants: Tenants, postgres: PostgresServer, database_url: str
) -> None:
    await tenants.create(COMMAND_LINE, "acme")
    secrets = [
        (await tenants.create_key(COMMAND_LINE, "acme", f"key{place}"))[1] for place in range(4)
    ]
    for secret in [*secrets[:3], secrets[0], secrets[3]]:
        await access.authenticate(secret)
    await close_database(postgres, database_url)
    for secret in (secrets[0], secrets[2], secrets[3]):
        await access.authenticate(secret)
    with pytest.raises(StoreUnavailable):
        await access.authenticate(secrets[1])


async def test_a_new_project_leaves_cached_keys_and_an_archived_one_does_not(
    access: Access, tenants: Tenants, database: Database
) -> None:
    secret = await new_secret(tenants)
    principal = await access.authenticate(secret)
    caller = AdminCaller(principal.tenant_id)
    projects = Projects(Transactions(database, access.forget))
    project = await projects.create(caller, ProjectCreate(name="another"))
    assert access.cached(secret) == principal
    await projects.archive(caller, ids.project_id(project.id))
    assert access.cached(secret) is None
