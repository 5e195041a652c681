"""OpenAI's SDK sets limits of projects, spend limits and spend alerts, and they bind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai
import pytest

from gateway import ids
from gateway.admin.limits import UNLIMITED, LimitOwner, Limits
from gateway.admin.prices import PriceCreate, Prices
from gateway.admin.spend_limits import SpendLimits
from gateway.audit import COMMAND_LINE
from gateway.limits.money import NANO

if TYPE_CHECKING:
    from gateway.limits.rules import Mode
    from tests.integration.api.admin.conftest import AdminSite

MODEL = "gpt-oss-20b"
CHANNEL: dict[str, Any] = {"type": "email", "recipients": ["ops@example.com"]}


async def new_project(admin: openai.AsyncOpenAI) -> str:
    return (await admin.admin.organization.projects.create(name="limited")).id


async def test_a_project_is_limited_by_what_its_administrator_sets(
    admin: openai.AsyncOpenAI, site: AdminSite
) -> None:
    organization = admin.admin.organization.projects
    project = await new_project(admin)
    before, _ = [one async for one in organization.rate_limits.list_rate_limits(project)]
    assert (before.id, before.model, before.object) == (f"rl-{MODEL}", MODEL, "project.rate_limit")
    changed = await organization.rate_limits.update_rate_limit(
        before.id, project_id=project, max_requests_per_1_minute=1, max_tokens_per_1_minute=50_000
    )
    assert (changed.max_requests_per_1_minute, changed.max_tokens_per_1_minute) == (1, 50_000)
    account = await organization.service_accounts.create(project, name="ci")
    assert account.api_key is not None
    async with site.user(account.api_key.value) as user:
        body = {"model": MODEL, "input": "x", "store": False}
        answers = [await user.post("/v1/responses", json=body) for _ in range(2)]
    assert [one.status_code for one in answers] == [200, 429]
    assert answers[0].headers["x-ratelimit-limit-project-tokens"] == "50000"
    assert f"in project {project} on requests per min" in answers[1].json()["error"]["message"]


@pytest.mark.slow
async def test_the_name_of_a_model_may_have_a_slash(
    admin: openai.AsyncOpenAI, site: AdminSite
) -> None:
    organization = admin.admin.organization.projects
    project, model = await new_project(admin), "lab/gpt-oss-20b"
    _, listed = [one async for one in organization.rate_limits.list_rate_limits(project)]
    changed = await organization.rate_limits.update_rate_limit(
        listed.id, project_id=project, max_requests_per_1_minute=1
    )
    assert (changed.id, changed.model) == (f"rl-{model}", model)
    account = await organization.service_accounts.create(project, name="ci")
    assert account.api_key is not None
    async with site.user(account.api_key.value) as user:
        body = {"model": model, "input": "x", "store": False}
        answers = [await user.post("/v1/responses", json=body) for _ in range(2)]
    assert [one.status_code for one in answers] == [200, 429]


OURS = {
    "max_concurrent_responses": 4,
    "max_stored_bytes": 10**9,
    "max_running_background": 2,
    "max_queued_background": 50,
}


@pytest.mark.slow
async def test_what_a_rate_limit_does_not_have_is_said(admin: openai.AsyncOpenAI) -> None:
    rate_limits = admin.admin.organization.projects.rate_limits
    project = await new_project(admin)
    with pytest.raises(openai.BadRequestError, match="max_images_per_1_minute"):
        await rate_limits.update_rate_limit(
            f"rl-{MODEL}", project_id=project, max_images_per_1_minute=1
        )
    with pytest.raises(openai.NotFoundError):
        await rate_limits.update_rate_limit(
            "rl-gpt-9", project_id=project, max_requests_per_1_minute=1
        )
    changed = await rate_limits.update_rate_limit(
        "rl-*", project_id=project, extra_body={"harmony": {**OURS, "mode": "observe"}}
    )
    assert (changed.model_extra or {})["harmony"] == {**OURS, "mode": "observe"}
    for name in OURS.keys() - {"max_concurrent_responses"}:
        with pytest.raises(openai.BadRequestError, match="of all models together"):
            await rate_limits.update_rate_limit(
                f"rl-{MODEL}", project_id=project, extra_body={"harmony": {name: 1}}
            )


async def test_a_limit_is_taken_away_by_null_and_by_what_means_none(
    admin: openai.AsyncOpenAI, site: AdminSite
) -> None:
    service = Limits(site.gateway.process.foundation.database)
    tenant = LimitOwner.of_tenant(await service.tenant("acme"))
    rate_limits = admin.admin.organization.projects.rate_limits
    named: dict[str, Any] = {"rate_limit_id": f"rl-{MODEL}", "project_id": await new_project(admin)}
    daily = {"max_tokens_per_1_day": 9}
    await service.set_limits(tenant, {("requests", 60): 10**6}, model=MODEL)
    try:
        await rate_limits.update_rate_limit(
            **named,
            max_requests_per_1_minute=5,
            max_tokens_per_1_minute=6,
            extra_body={"harmony": daily},
        )
        changed = await rate_limits.update_rate_limit(**named, max_requests_per_1_minute=UNLIMITED)
        assert changed.max_requests_per_1_minute == UNLIMITED
        with pytest.raises(openai.BadRequestError, match="1000000 at most"):
            await rate_limits.update_rate_limit(**named, max_requests_per_1_minute=UNLIMITED - 1)
    finally:
        await service.set_limits(tenant, {("requests", 60): None}, model=MODEL)
    nulls = {"max_tokens_per_1_minute": None, "max_images_per_1_minute": None}
    changed = await rate_limits.update_rate_limit(
        **named, extra_body={**nulls, "harmony": {"max_tokens_per_1_day": None}}
    )
    assert changed.max_tokens_per_1_minute == UNLIMITED
    assert (changed.model_extra or {})["harmony"] == {"mode": "enforce"}
    left = [one for one in await service.limits(tenant.tenant_id) if one.scope == "project"]
    assert ids.parse_project_id(named["project_id"]) not in {one.scope_id for one in left}


async def test_a_mode_that_is_left_out_stays(admin: openai.AsyncOpenAI) -> None:
    rate_limits = admin.admin.organization.projects.rate_limits
    named: dict[str, Any] = {"rate_limit_id": f"rl-{MODEL}", "project_id": await new_project(admin)}

    async def mode_after(harmony: object, **values: Any) -> str:
        changed = await rate_limits.update_rate_limit(
            **named, **values, extra_body={} if harmony is None else {"harmony": harmony}
        )
        mode: str = (changed.model_extra or {})["harmony"]["mode"]
        return mode

    assert await mode_after({"mode": "observe"}, max_requests_per_1_minute=5) == "observe"
    assert await mode_after(None, max_requests_per_1_minute=6) == "observe"
    assert await mode_after({"mode": None}, max_tokens_per_1_minute=6) == "observe"
    assert await mode_after({"mode": "enforce"}) == "enforce"
    assert await mode_after({}, max_requests_per_1_minute=7) == "enforce"


@pytest.mark.slow
@pytest.mark.parametrize("of", ["organization", "project"])
async def test_spend_limits_and_alerts_are_kept_as_openai_shows_them(
    admin: openai.AsyncOpenAI, site: AdminSite, of: str
) -> None:
    database = site.gateway.process.foundation.database
    service, budgets = Limits(database), SpendLimits(database)
    await Prices(database).set(
        COMMAND_LINE, PriceCreate(model=MODEL, tenant="acme", nano_per_unit={"output": 200})
    )
    organization = admin.admin.organization
    if of == "project":
        named: dict[str, Any] = {"project_id": await new_project(admin)}
        limit: Any = organization.projects.spend_limit
        alerts: Any = organization.projects.spend_alerts
    else:
        named, limit, alerts = {}, organization.spend_limit, organization.spend_alerts
    with pytest.raises(openai.NotFoundError):
        await limit.retrieve(**named)
    money = {"currency": "USD", "interval": "month"}
    made = await limit.update(**named, **money, threshold_amount=12_345)
    assert (made.object, made.threshold_amount) == (f"{of}.spend_limit", 12_345)
    assert made.enforcement.status == "inactive"
    (state,) = [
        one
        for one in await budgets.budgets(await service.tenant("acme"))
        if one.budget.scope == of and one.budget.cap == 12_345 * NANO // 100
    ]
    assert of == "organization" or state.spent == 0  # other tests spend what is its money, too
    ids = [
        (await alerts.create(**named, **money, threshold_amount=n, notification_channel=CHANNEL)).id
        for n in (100, 200, 300)
    ]
    listed = [one.id async for one in alerts.list(**named, limit=2)]
    assert [one for one in listed if one in ids] == ids  # an organization has those of other tests
    page = await alerts.list(**named, before=ids[2], limit=1)
    assert ([one.id for one in page.data], page.has_more) == ([ids[1]], True)
    changed = await alerts.update(
        ids[0], **named, **money, threshold_amount=150, notification_channel=CHANNEL
    )
    assert (changed.object, changed.threshold_amount) == (f"{of}.spend_alert", 150)
    assert (await alerts.retrieve(ids[0], **named)).notification_channel.recipients == [
        "ops@example.com"
    ]
    assert (await alerts.delete(ids[0], **named)).deleted
    with pytest.raises(openai.NotFoundError):
        await alerts.retrieve(ids[0], **named)
    assert (await limit.delete(**named)).deleted
    # A list goes on behind what was deleted meanwhile.
    async for one in alerts.list(**named, limit=1):
        await alerts.delete(one.id, **named)
    assert (await alerts.list(**named)).data == []


async def test_a_spend_limit_that_is_only_observed_is_not_shown_as_enforced(
    admin: openai.AsyncOpenAI, site: AdminSite
) -> None:
    database, project = site.gateway.process.foundation.database, await new_project(admin)
    price = PriceCreate(model=MODEL, tenant="acme", nano_per_unit={"output": 200})
    await Prices(database).set(COMMAND_LINE, price)
    service = Limits(database)
    owner = await service.of_project(await service.tenant("acme"), project)
    limits = admin.admin.organization.projects.spend_limit
    modes: tuple[tuple[Mode, str], ...] = (("enforce", "enforcing"), ("observe", "inactive"))
    for mode, status in modes:
        await SpendLimits(database).set_budget(owner, 0, mode=mode)
        assert (await limits.retrieve(project_id=project)).enforcement.status == status


async def test_what_the_operator_set_beside_a_budget_is_not_the_administrators(
    admin: openai.AsyncOpenAI, site: AdminSite
) -> None:
    """Not of dollars, nor of a month, as OpenAI's object has it, and not theirs to silence."""
    database = site.gateway.process.foundation.database
    service, budgets = Limits(database), SpendLimits(database)
    project = await new_project(admin)
    uuid = ids.parse_project_id(project)
    assert uuid is not None
    place = LimitOwner(await service.tenant("acme"), "project", uuid)
    await budgets.set_budget(place, 1000, unit="tokens", interval="day", alert_at=[50])
    (ours,) = await budgets.alerts(place)
    alerts = admin.admin.organization.projects.spend_alerts
    money: Any = {"currency": "USD", "interval": "month", "notification_channel": CHANNEL}
    made = await alerts.create(project, **money, threshold_amount=100)
    assert [one.id async for one in alerts.list(project)] == [made.id]
    shown = ids.spend_alert_id(ours.id)
    for asked in (
        alerts.retrieve(shown, project_id=project),
        alerts.update(shown, project_id=project, **money, threshold_amount=10**9),
        alerts.delete(shown, project_id=project),
    ):
        with pytest.raises(openai.NotFoundError, match="No spend alert"):
            await asked
    assert ours in await budgets.alerts(place)
