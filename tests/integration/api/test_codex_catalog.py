"""What the Codex CLI is told of the models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gateway.services.models import COMPACTION_PERCENT, TOOL_OUTPUT_TOKENS_MAX
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.observation import Backends

PATH = "/v1/codex/models"
INSTRUCTION_LINES_MAX = 25


async def catalog(client: httpx2.AsyncClient) -> list[dict[str, Any]]:
    """Its entries, as Codex asks for them."""
    answer = await client.get(PATH, params={"client_version": "0.169.0"})
    assert answer.status_code == 200
    assert list(answer.json()) == ["models"]
    entries: list[dict[str, Any]] = answer.json()["models"]
    return entries


async def test_every_name_of_a_model_has_an_entry_and_its_own_is_offered(
    client: httpx2.AsyncClient,
) -> None:
    model, alias = await catalog(client)
    assert (model["slug"], model["visibility"]) == ("gpt-oss-20b", "list")
    assert (alias["slug"], alias["visibility"]) == ("small", "hide")
    named = {"slug", "display_name", "description", "visibility", "priority"}
    assert {key: model[key] for key in model if key not in named} == {
        key: alias[key] for key in alias if key not in named
    }


@pytest.mark.slow
async def test_the_window_and_the_efforts_are_the_models(
    shared_database_url: str, backends: Backends
) -> None:
    models = [{"id": "gpt-oss-20b", "context_length": 20_000, "reasoning_effort": "high"}]
    settings = gateway_settings(shared_database_url, backends.urls, models=models)
    async with (
        running_gateway(settings) as narrow,
        http_client(narrow.url, headers=narrow.headers) as client,
    ):
        (entry,) = await catalog(client)
    assert entry["context_window"] == entry["max_context_window"] == 20_000
    assert entry["auto_compact_token_limit"] == 20_000 * COMPACTION_PERCENT // 100
    assert entry["default_reasoning_level"] == "high"
    levels = [level["effort"] for level in entry["supported_reasoning_levels"]]
    assert levels == ["low", "medium", "high"]


@pytest.mark.slow
async def test_a_tools_output_and_the_answer_to_it_fit_behind_a_session_that_is_not_summed_up(
    client: httpx2.AsyncClient, shared_database_url: str, backends: Backends
) -> None:
    models = [{"id": "gpt-oss-20b", "context_length": 4096}]
    settings = gateway_settings(shared_database_url, backends.urls, models=models)
    async with (
        running_gateway(settings) as narrow,
        http_client(narrow.url, headers=narrow.headers) as small,
    ):
        entries = [*await catalog(client), *await catalog(small)]
    for entry in entries:
        left = entry["context_window"] - entry["auto_compact_token_limit"]
        shown = entry["truncation_policy"]["limit"]
        assert 0 < shown <= min(TOOL_OUTPUT_TOKENS_MAX, left // 2)


async def test_the_instructions_are_short(client: httpx2.AsyncClient) -> None:
    text = (await catalog(client))[0]["base_instructions"]
    assert "exec_command" in text
    assert "apply_patch" in text
    assert len(text.splitlines()) <= INSTRUCTION_LINES_MAX


async def test_the_catalog_needs_a_key(client: httpx2.AsyncClient) -> None:
    answer = await client.get(PATH, headers={"authorization": "Bearer sk-wrong"})
    assert answer.status_code == 401
