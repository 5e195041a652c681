"""Every method of `client.admin` in the installed SDK gets an answer that says what there is."""

from __future__ import annotations

import inspect
import re
import time
from typing import TYPE_CHECKING, Any, Final, Literal

import openai
import pytest

from gateway import ids
from gateway.admin.prices import PriceCreate, Prices
from gateway.audit import COMMAND_LINE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from tests.integration.api.admin.conftest import AdminSite

Answer = Literal["served", "unsupported", "refused"]
SERVED: Final = re.compile(
    r"admin_api_keys\.\w+|audit_logs\.list|(projects\.)?(data_retention|spend_limit|spend_alerts)\.\w+"
    r"|projects\.(create|list|retrieve|update|archive)|usage\.\w+"
    r"|projects\.(api_keys|model_permissions|rate_limits|hosted_tool_permissions)\.\w+"
    r"|projects\.service_tier_settings\.\w+|projects\.service_accounts\.(api_keys\.)?\w+"
    r"|workload_identity_providers\.(federation_rules\.)?\w+|(projects\.)?roles\.(list|retrieve)"
)
REST: Final[dict[str, Answer]] = {
    # There are no others than the predefined ones (400).
    r"(projects\.)?roles\.(create|update|delete)": "refused",
    # Nobody signs in here, keys and certificates are the operator's.
    r"(projects\.)?(users|groups|certificates)\..+|invites\..+": "unsupported",
    r"(external_keys|external_storage)\..+": "unsupported",
}


def methods(resource: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The paths of all methods below a resource of the SDK, as `projects.create`."""
    for name, member in inspect.getmembers(type(resource)):
        if name.startswith(("_", "with_")):
            continue
        if inspect.isfunction(member):
            yield f"{path}{name}", getattr(resource, name)
        elif hasattr(found := getattr(resource, name), "_client"):
            yield from methods(found, f"{path}{name}.")


def expected(path: str) -> Answer:
    if SERVED.fullmatch(path):
        return "served"
    (found,) = [answer for form, answer in REST.items() if re.fullmatch(form, path)]
    return found


def test_each_method_is_accounted_for(admin: openai.AsyncOpenAI) -> None:
    named = [path for path, _ in methods(admin.admin.organization)]
    assert len(named) == 143, "the SDK has others now: say what becomes of them"
    for path in named:
        expected(path)
    # No form stands for nothing.
    for form in REST:
        assert any(re.fullmatch(form, path) for path in named), form


async def asked(call: Any, project: str) -> Any:
    """What a method answers to good arguments, with ids that nothing has."""
    given: dict[str, Any] = {}
    good = {
        "project_id": project,
        "role_name": "x", "permissions": ["projects.read"], "certificate_ids": ["cert_1"],
        "type": "aws", "role": "member", "start_time": int(time.time()) - 60,
        "certificate": "x", "email": "a@example.com", "role_id": "role-x", "provider": "aws",
        "aws": {}, "attribute_matchers": {"a": "b"}, "interval": "month", "currency": "USD",
        "threshold_amount": 1, "issuer": "https://x.example", "audience": "a",
        "mode": "deny_list", "model_ids": [], "retention_type": "none",
        "notification_channel": {"type": "email", "recipients": ["a@example.com"]},
    }  # fmt: skip
    for name, parameter in inspect.signature(call).parameters.items():
        if parameter.default is inspect.Parameter.empty:
            given[name] = good.get(name, "nothing")
    if "email" in given:
        given["role"] = "reader"
    if "issuer" in given:
        given["type"] = "oidc"
    if "kms_arn" in inspect.signature(call).parameters:
        given |= {"kms_arn": "x", "role_arn": "x", "external_id": "x"}
    return await call(**given)


async def told(call: Any, project: str) -> tuple[str | None, Any]:
    """The code of a refusal, and its message; or what was returned."""
    try:
        return None, await asked(call, project)
    except openai.APIStatusError as error:
        return f"{error.status_code} {error.code}", error.message


async def test_each_method_is_answered_as_what_it_is(
    site: AdminSite, admin: openai.AsyncOpenAI
) -> None:
    price = PriceCreate(model="gpt-oss-20b", tenant="acme", nano_per_unit={"output": 1})
    await Prices(site.gateway.process.foundation.database).set(COMMAND_LINE, price)
    project = (await admin.admin.organization.projects.create(name="surface")).id
    for path, call in methods(admin.admin.organization):
        if path == "projects.archive":
            continue  # of what follows
        answer = expected(path)
        code, found = await told(call, project)
        match answer:
            case "served":
                # Where an id is asked for that nothing has, it says so.
                assert code is None or re.fullmatch(r"404 \w+_not_found", code), (path, found)
            case "unsupported":
                assert code == "404 unsupported_endpoint", (path, found)
            case "refused":
                assert code == "400 unsupported_value", (path, found)
    # Other tests are of the same organization.
    await admin.admin.organization.spend_limit.delete()
    async for alert in admin.admin.organization.spend_alerts.list():
        await admin.admin.organization.spend_alerts.delete(alert.id)


QUERY: Final[dict[str, Any]] = {
    "after": "x", "before": "x", "limit": 1, "order": "asc", "include_archived": True,
    "owner_project_access": "any", "purpose": "ekm", "effective_at": {"gt": 1, "lte": 2},
    "tenant_only": False, "batch": False, "bucket_width": "1d", "end_time": 2**31, "page": "x",
    "group_by": ["project_id"], "start_time": 2**30, "service_account_id": "x", "project_id": "x",
}  # fmt: skip
"""Parameters of lists and reports; those that are not here are lists of words."""
NOT_OF_THE_API: Final = ("extra_headers", "extra_query", "extra_body", "timeout")


@pytest.mark.slow
async def test_lists_and_reports_take_all_parameters_of_the_sdk(admin: openai.AsyncOpenAI) -> None:
    project = (await admin.admin.organization.projects.create(name="queries")).id
    for path, call in methods(admin.admin.organization):
        if not re.fullmatch(r"usage\..*|(.*\.)?list(_\w+)?", path):
            continue
        given = {
            name: QUERY.get(name, ["x"])
            for name in inspect.signature(call).parameters
            if name not in NOT_OF_THE_API and not name.endswith("_id")
        }
        named = {
            name: project if name == "project_id" else "nothing"
            for name, one in inspect.signature(call).parameters.items()
            if name.endswith("_id") and one.default is inspect.Parameter.empty
        }
        code, message = await refused(call(**given, **named))
        assert code != "unknown_parameter", (path, message)


async def refused(asked: Awaitable[object]) -> tuple[str | None, str]:
    """The code and the message of a refusal; what is answered has neither."""
    try:
        await asked
    except openai.APIStatusError as error:
        return error.code, error.message
    return None, ""


@pytest.mark.slow
async def test_a_project_s_tools_are_switched_off(
    site: AdminSite, admin: openai.AsyncOpenAI
) -> None:
    projects = admin.admin.organization.projects
    project = (await projects.create(name="without tools")).id
    account = await projects.service_accounts.create(project, name="ci")
    assert account.api_key is not None
    tools = projects.hosted_tool_permissions
    before = await tools.retrieve(project)
    assert (before.code_interpreter.enabled, before.mcp.enabled) == (True, True)
    assert (before.file_search.enabled, before.image_generation.enabled) == (False, False)
    asked_for = {
        "model": "gpt-oss-20b", "input": "x",
        "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}],
    }  # fmt: skip

    async def offered() -> list[Any]:
        async with site.user(account.api_key.value) as user:  # type: ignore[union-attr]
            answer = await user.post("/v1/responses", json=asked_for)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["tools"])

    assert await offered()
    changed = await tools.update(project, code_interpreter={"enabled": False})
    assert (changed.code_interpreter.enabled, changed.mcp.enabled) == (False, True)
    assert await offered() == []
    await tools.update(project, mcp={"enabled": False}, code_interpreter={"enabled": True})
    assert await offered()
    assert (await tools.retrieve(project)).mcp.enabled is False
    with pytest.raises(openai.BadRequestError, match="no such hosted tool"):
        await tools.update(project, file_search={"enabled": True})
    await tools.update(project, file_search={"enabled": False})
    with pytest.raises(openai.NotFoundError):
        await tools.retrieve(ids.project_id(ids.new_uuid()))


@pytest.mark.slow
async def test_a_project_s_service_tiers(site: AdminSite, admin: openai.AsyncOpenAI) -> None:
    projects = admin.admin.organization.projects
    project = (await projects.create(name="tiers")).id
    account = await projects.service_accounts.create(project, name="ci")
    assert account.api_key is not None
    settings = projects.service_tier_settings

    async def got(tier: str | None) -> str:
        async with site.user(account.api_key.value) as user:  # type: ignore[union-attr]
            body = {"model": "gpt-oss-20b", "input": "x", "service_tier": tier, "store": False}
            answer = await user.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["service_tier"])

    tenants = site.gateway.tenants
    await tenants.set_policy(COMMAND_LINE, "acme", {"service_tier_max": "priority"})
    try:
        found = await settings.retrieve(project)
        assert (found.object, found.default, found.enabled_tiers) == (
            "project.service_tier_settings", "standard", "all",
        )  # fmt: skip
        assert [await got(one) for one in (None, "flex", "priority")] == [
            "default", "flex", "priority",
        ]  # fmt: skip
        found = await settings.update(project, default="fast", enabled_tiers=["fast"])
        assert (found.default, found.enabled_tiers) == ("fast", ["fast"])
        assert [await got(one) for one in (None, "auto", "flex")] == [
            "priority", "priority", "default",
        ]  # fmt: skip
        found = await settings.update(project, enabled_tiers=[])
        assert (found.default, found.enabled_tiers) == ("fast", [])
        assert [await got(one) for one in (None, "flex", "priority")] == ["default"] * 3
        assert (await settings.update(project, enabled_tiers="all")).enabled_tiers == "all"
        assert await got(None) == "priority"
        wrong: Any = ["turbo"]
        with pytest.raises(openai.BadRequestError) as refused:
            await settings.update(project, enabled_tiers=wrong)
        assert refused.value.param == "enabled_tiers[0]"
    finally:
        await tenants.set_policy(COMMAND_LINE, "acme", {"service_tier_max": None})
