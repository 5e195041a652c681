"""openai for Node.js against a real process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway import ids
from gateway.admin.federation_rules import RuleCreate
from gateway.admin.identity_providers import ProviderCreate
from gateway.admin.limits import LimitOwner, Limits
from gateway.admin.spend_limits import SpendLimits
from gateway.admin.transactions import AdminCaller
from gateway.limits.rules import MINUTE_S
from gateway.store.postgres.database import Database
from gateway.wiring.admin import admin_services
from gateway.wiring.databases import access
from tests.e2e.conftest import PAGE_ORIGIN
from tests.fakes.gateway import gateway_settings, new_key
from tests.fakes.issuer import Issuer, SigningKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.client_process import ClientProcess, Clients
    from tests.fakes.processes import GatewayProcess


@pytest.fixture(scope="module")
def openai(clients: Clients) -> Iterator[ClientProcess]:
    with clients.started("openai_node") as process:
        yield process


@pytest.mark.client("openai (npm)", "text")
def test_create_answers(openai: ClientProcess) -> None:
    found = openai.check("create")
    assert found["status"] == "completed"
    assert "Hello there" in found["text"]
    assert found["request"].startswith("req_")


@pytest.mark.client("openai (npm)", "streaming")
def test_the_stream_helper_ends_with_what_is_stored(openai: ClientProcess) -> None:
    found = openai.check("stream")
    assert found["numbers"] == list(range(len(found["numbers"])))
    assert found["said"] == found["final"] == found["stored"] != ""


@pytest.mark.client("openai (npm)", "background")
def test_a_stream_is_resumed_where_it_broke_off(openai: ClientProcess) -> None:
    found = openai.check("resume")
    assert found["numbers"] == list(range(len(found["numbers"])))
    assert found["last"] == "response.completed"
    assert "Hello there" in found["final"]


@pytest.mark.client("openai (npm)", "background")
def test_a_background_response_is_cancelled(openai: ClientProcess) -> None:
    assert openai.check("cancel") == {"queued": "queued", "cancelled": "cancelled"}


@pytest.mark.client("openai (npm)", "tools")
@pytest.mark.client("openai (npm)", "replayed history")
@pytest.mark.parametrize("stateful", [True, False])
def test_a_tool_loop_ends_in_an_answer_that_quotes_the_tool(
    openai: ClientProcess, stateful: bool
) -> None:
    found = openai.check("tools", stateful=stateful)
    assert found["arguments"] == {"location": "Paris"}
    assert "17 degrees" in found["text"]


@pytest.mark.client("openai (npm)", "structured output")
def test_a_zod_schema_is_answered_with_its_object(openai: ClientProcess) -> None:
    assert openai.check("parse") == {"location": "Paris"}


@pytest.mark.client("openai (npm)", "conversations")
def test_a_conversation_is_made_continued_listed_and_deleted(openai: ClientProcess) -> None:
    found = openai.check("conversations")
    assert "Ada" in found["text"]
    assert found["kinds"] == ["message", "message", "reasoning", "message"]
    assert found["deleted"] is True


@pytest.mark.client("openai (npm)", "stored responses")
def test_input_items_are_paged_until_the_response_is_deleted(openai: ClientProcess) -> None:
    found = openai.check("inputItems")
    assert found["texts"] == ["text 1", "text 2", "text 3"]
    assert found["gone"]["kind"] == "NotFoundError"


@pytest.mark.client("openai (npm)", "errors")
def test_refusals_are_typed_and_name_their_cause(openai: ClientProcess) -> None:
    found = openai.check("errors")
    assert {name: (one["kind"], one["code"], one["param"]) for name, one in found.items()} == {
        "key": ("AuthenticationError", "invalid_api_key", None),
        "model": ("NotFoundError", "model_not_found", "model"),
        "value": ("BadRequestError", "decimal_above_max_value", "temperature"),
    }
    assert {one["type"] for one in found.values()} == {"invalid_request_error"}
    assert all(one["named"] for one in found.values())


@pytest.mark.client("openai (npm)", "errors")
def test_a_stream_that_breaks_off_raises(openai: ClientProcess) -> None:
    assert openai.check("broken")["kind"] == "APIError"


@pytest.mark.requirement("retry.delay")
@pytest.mark.requirement("retry.statuses")
@pytest.mark.client("openai (npm)", "retries")
def test_a_busy_fleet_is_asked_again_when_it_said(openai: ClientProcess) -> None:
    found = openai.check("retried")
    assert found["tries"][0] == {"status": 503, "wait": "2"}
    assert found["tries"][-1]["status"] == 200
    assert found["status"] == "completed"


AUDIENCE = "https://gateway.example.com"


async def trusted(database_url: str, key: SigningKey) -> tuple[str, str]:
    """`acme` trusts who signs with this key: the ids of the provider and of the account that its
    tokens act for.
    """
    settings = gateway_settings(database_url, [])
    database = Database(database_url, command_timeout_s=30, connect_timeout_s=30, pool_size_max=2)
    services = admin_services(settings, database, access(settings, database))
    caller = AdminCaller(await Limits(database).tenant("acme"))
    account, _ = await services.keys.create_account(
        caller, ids.project_id(caller.tenant_id), "node", None
    )
    keys = {"type": "uploaded_jwks", "jwks": {"keys": [key.jwk]}}
    body = {
        "name": "sso", "type": "oidc", "issuer": "https://sso.example.com", "audience": AUDIENCE,
        "verification": keys, "harmony": {"bearer": True},
    }  # fmt: skip
    asked = ProviderCreate.model_validate(body)
    provider = ids.identity_provider_id(
        (await services.identity_providers.create(caller, asked)).id
    )
    account_id = ids.service_account_id(account.id)
    rule = RuleCreate(
        project_id=ids.project_id(account.project_id),
        service_account_id=account_id,
        attribute_matchers={"sub": "alice"},
    )
    await services.federation_rules.create(caller, provider, rule)
    await database.close()
    return provider, account_id


@pytest.mark.client("openai (npm)", "text")
async def test_it_signs_in_with_short_lived_tokens(
    openai: ClientProcess, gateway: GatewayProcess, key: str, replicas_database_url: str
) -> None:
    assert key, "its tenant is there"
    signing = SigningKey.new("first")
    provider, account = await trusted(replicas_database_url, signing)
    issuer = Issuer("https://sso.example.com", AUDIENCE, [signing])
    found = openai.check(
        "workload",
        url=f"{gateway.url}/oauth/token",
        provider=provider,
        account=account,
        token=issuer.token(),
    )
    assert "Hello there" in found["text"]
    assert found["asked"].count("exchange") == 1, "the token of the first request was kept"
    found = openai.check("bearer", token=issuer.token(jti="other"), organization="acme")
    assert "Hello there" in found["text"]
    assert found["without"]["code"] == "invalid_token"


@pytest.fixture(scope="module")
def page(
    replicas: tuple[GatewayProcess, GatewayProcess], clients: Clients
) -> Iterator[ClientProcess]:
    """The client of the replica that pages may call."""
    with replace(clients, base_url=replicas[1].base_url).started("openai_node") as process:
        yield process


@pytest.mark.client("openai (npm)", "text")
def test_a_page_of_an_allowed_origin_calls_as_the_sdk_does(page: ClientProcess) -> None:
    found = page.check("page", origin=PAGE_ORIGIN)
    assert found["refused"]["code"] == "model_not_found", "a page can read refusals, too"
    assert "Hello there" in found["text"]
    assert found["streamed"] == found["text"]
    assert found["request"].startswith("req_")
    assert found["version"]
    assert all(one["status"] == 200 and not one["missing"] for one in found["asked"])
    sent = {name for one in found["asked"] for name in one["names"]}
    assert {"authorization", "x-stainless-lang", "x-stainless-retry-count"} <= sent


@pytest.mark.client("openai (npm)", "errors")
def test_a_page_of_another_origin_cannot_call(openai: ClientProcess, page: ClientProcess) -> None:
    found = page.check("page", origin="https://elsewhere.example.com")
    assert found["refused"]["kind"] == "APIConnectionError"
    # Nor any where none is allowed.
    assert openai.check("page", origin=PAGE_ORIGIN)["refused"]["kind"] == "APIConnectionError"


REQUESTS_PER_MINUTE = 30


async def limits_of(database_url: str, name: str) -> tuple[str, Limits, LimitOwner, Database]:
    """A key of a new tenant, and where its limits are set."""
    key = await new_key(gateway_settings(database_url, []), name)
    database = Database(database_url, command_timeout_s=30, connect_timeout_s=30, pool_size_max=2)
    service = Limits(database)
    return key, service, LimitOwner.of_tenant(await service.tenant(name)), database


@pytest.mark.requirement("retry.delay")
@pytest.mark.client("openai (npm)", "retries")
async def test_a_limit_that_was_reached_is_tried_again_after_the_true_delay(
    openai: ClientProcess, replicas_database_url: str
) -> None:
    key, service, place, database = await limits_of(replicas_database_url, "limited-node")
    await service.set_limits(place, {("requests", MINUTE_S): REQUESTS_PER_MINUTE})
    await database.close()
    found = openai.check("limited", key=key, times=REQUESTS_PER_MINUTE + 1)
    assert found["statuses"] == [429, 200], "the first try after the delay is let through"
    assert found["waited"] >= found["told"] > 0
    assert found["tries"] == REQUESTS_PER_MINUTE + 2


@pytest.mark.requirement("retry.should-retry")
@pytest.mark.client("openai (npm)", "retries")
async def test_a_spent_budget_is_tried_once(
    openai: ClientProcess, replicas_database_url: str
) -> None:
    key, _, place, database = await limits_of(replicas_database_url, "broke-node")
    await SpendLimits(database).set_budget(place, 1, unit="tokens")
    await database.close()
    found = openai.check("overBudget", key=key)
    assert found["tries"] == 1
    assert found["error"]["kind"] == "RateLimitError"
    assert found["error"]["code"] == found["error"]["type"] == "insufficient_quota"


@pytest.mark.client("openai (npm)", "models")
def test_models_are_listed_and_found_by_name(openai: ClientProcess) -> None:
    found = openai.check("models")
    assert found["one"] in found["known"]


@pytest.mark.client("openai (npm)", "token counts")
def test_input_tokens_are_counted_as_they_are_used(openai: ClientProcess) -> None:
    found = openai.check("count")
    assert found["counted"] == found["used"] > 0


@pytest.mark.client("openai (npm)", "compaction")
def test_what_compact_returns_is_taken_as_input(openai: ClientProcess) -> None:
    found = openai.check("compact")
    assert found["kinds"] == ["message", "compaction"]
    assert "Ada" in found["text"]


@pytest.mark.client("openai (npm)", "chat completions")
def test_chat_answers_whole_and_streamed(openai: ClientProcess) -> None:
    found = openai.check("chat")
    assert found["whole"] == found["streamed"]
    assert "Hello there" in found["whole"]
    assert found["reason"] == "stop"


@pytest.mark.client("openai (npm)", "chat completions")
def test_the_tool_runner_of_chat_ends_in_an_answer(openai: ClientProcess) -> None:
    assert "17 degrees in Paris" in openai.check("chatTools")
