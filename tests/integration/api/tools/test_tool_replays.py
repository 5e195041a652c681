"""A response that begins with a call which the user approved, made anew with its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gateway.admin.replays import Replay
from gateway.admin.responses import Reveal
from gateway.audit import COMMAND_LINE, Actor, Author
from gateway.wiring.admin import operator_services
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.mcp_server import serving
from tests.integration.api.following import ended
from tests.integration.api.tools.test_mcp_servers import MODEL, TOOLS, ask, items, mcp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.gateway import RunningGateway
    from tests.fakes.observation import Backends

ANNA = Author(Actor("operator", "op_1", None, "anna"))


@pytest.fixture(scope="module")
async def hosting(own_database_url: str, backends: Backends) -> AsyncIterator[RunningGateway]:
    settings = gateway_settings(
        own_database_url, backends.urls, models=[{"id": MODEL}], tools=TOOLS
    )
    async with running_gateway(settings) as running:
        yield running


@pytest.mark.parametrize("background", [True, False])
async def test_behind_an_approved_call_a_replay_has_its_result(
    hosting: RunningGateway, backends: Backends, background: bool
) -> None:
    services = operator_services(hosting.process)
    (tenant, *_) = await services.tenants.list()
    policy = {"operator_content_access": "always"}
    await services.tenants.set_policy(COMMAND_LINE, tenant.name, policy)
    with serving() as server:
        wary = mcp(server.url, require_approval="always")
        async with http_client(hosting.url, headers=hosting.headers) as client:
            asked = await ask(client, 'mcp srv.say {"text": "hi"}; say done', wary)
            (request,) = items(asked, "mcp_approval_request")
            approval: dict[str, Any] = {
                "type": "mcp_approval_response",
                "approval_request_id": request["id"],
                "approve": True,
            }
            body = {"model": MODEL, "previous_response_id": asked["id"], "input": [approval]}
            body |= {"tools": [wary], "background": background}
            made = (await client.post("/v1/responses", json=body)).json()
            made = await ended(client, made["id"])
        await services.responses.reveal(ANNA, made["id"], Reveal(reason="ticket 7"))
        got = await services.replays.replay(ANNA, made["id"], Replay())
    (run, *_) = await backends.of_response(made["id"])
    again = max(await backends.seen("continuation-"), key=lambda row: str(row["request_id"]))
    assert again["prompt_ids"] == run["prompt_ids"]
    assert got["first_difference"] is None
    expected = len(run["prompt_ids"]) if background else None
    assert got["prompt"]["expected_tokens"] == expected
    assert got["source"] == ("log" if background else "items")
