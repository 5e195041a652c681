"""What an operator decides for a tenant: summaries, a budget for reasoning, the best tier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gateway.settings.sections import Backend
from tests.fakes.controlled import MODEL, SGLANG, TURN, site
from tests.fakes.gateway import gateway_settings, new_key, running_gateway

if TYPE_CHECKING:
    from gateway.tenancy.policy import PolicyChanges, ServiceTierMax
    from tests.fakes.controlled import Site
    from tests.fakes.gateway import RunningGateway
    from tests.fakes.postgres import PostgresServer

Json = dict[str, Any]


TIERS: tuple[tuple[ServiceTierMax, str, str, int], ...] = (
    ("default", "priority", "default", 0),
    ("default", "flex", "flex", -1),
    ("priority", "priority", "priority", 1),
    ("priority", "fast", "priority", 1),
    ("priority", "auto", "default", 0),
)
"""The best that a tenant may have, what it asks for, what it gets, and how that is ranked."""


async def headers_of(running: RunningGateway, tenant: str, policy: PolicyChanges) -> dict[str, str]:
    """What authenticates a tenant with this policy."""
    key = await new_key(running.process.foundation.settings, tenant, policy)
    return {"authorization": f"Bearer {key}"}


async def ask(where: Site, tenant: str, policy: PolicyChanges, **body: Any) -> Json:
    """The response that a tenant with this policy gets."""
    answer = await where.client.post(
        "/v1/responses",
        json={"model": MODEL, "input": "Think.", **body},
        headers=await headers_of(where.running, tenant, policy),
    )
    assert answer.status_code == 200, answer.text
    response: Json = answer.json()
    return response


@pytest.mark.slow
async def test_what_a_tenant_may_have_is_what_it_gets(
    postgres: PostgresServer, template: str
) -> None:
    async with site(postgres, template, TURN) as where:
        silent = await ask(
            where, "silent", {"reasoning_summary": "off"}, reasoning={"summary": "detailed"}
        )
        assert silent["reasoning"]["summary"] is None
        assert [one["summary"] for one in silent["output"] if one["type"] == "reasoning"] == [[]]
        thrifty = await ask(where, "thrifty", {"reasoning_budget_tokens": 5})
        assert thrifty["usage"]["output_tokens_details"]["reasoning_tokens"] == 5
        assert thrifty["output"][-1]["type"] == "message"
        own = await ask(
            where, "thrifty", {"reasoning_budget_tokens": 5}, reasoning={"max_tokens": 9}
        )
        assert own["usage"]["output_tokens_details"]["reasoning_tokens"] == 9


@pytest.mark.slow
@pytest.mark.parametrize(("fleet", "sign"), [((TURN,), -1), ((SGLANG,), 1)], ids=["vllm", "sglang"])
async def test_a_tier_is_a_priority_at_the_backend(
    postgres: PostgresServer, template: str, database_url: str, fleet: Any, sign: int
) -> None:
    async with site(postgres, template, *fleet) as where:
        settings = gateway_settings(database_url, []).model_copy(
            update={"backends": [Backend(name="b0", url=where.backends.urls[0], priorities=True)]}
        )
        async with running_gateway(settings) as running:
            for best, asked, got, priority in TIERS:
                headers = await headers_of(running, best, {"service_tier_max": best})
                body = {"model": MODEL, "input": "Think.", "service_tier": asked}
                url = f"{running.url}/v1/responses"
                answer = await where.client.post(url, json=body, headers=headers)
                assert answer.json()["service_tier"] == got
                (row,) = await where.backends.of_response(answer.json()["id"])
                assert row["priority"] == sign * priority


@pytest.mark.slow
async def test_a_tenant_is_shown_and_served_only_the_models_that_it_may_use(
    postgres: PostgresServer, template: str
) -> None:
    async with site(postgres, template, TURN) as where:
        cases = (("all", "*", 200), ("own", f"x,{MODEL[:8]}*", 200), ("no", "x", 404))
        for tenant, models, status in cases:
            headers = await headers_of(where.running, tenant, {"models": models})
            listed = (await where.client.get("/v1/models", headers=headers)).json()["data"]
            assert (MODEL in [row["id"] for row in listed]) is (status == 200)
            got = await where.client.get(f"/v1/models/{MODEL}", headers=headers)
            body = {"model": MODEL, "input": "Think."}
            made = await where.client.post("/v1/responses", json=body, headers=headers)
            assert (got.status_code, made.status_code) == (status, status)
            if status == 404:
                assert made.json()["error"]["code"] == "model_not_found"
