"""`enable_response_messages`: the Harmony messages and ids behind a response, for who may see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gateway.models.harmony.tokenizer import Vocabulary
from tests.fakes.controlled import MODEL, TURN, site
from tests.fakes.gateway import new_key
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.controlled import Site
    from tests.fakes.postgres import PostgresServer

Json = dict[str, Any]
ASKING: Json = {
    "instructions": "Be brief.",
    "enable_response_messages": True,
    "include": ["input_messages.token_ids", "output_messages.token_ids"],
}
FIELDS = ("input_messages", "output_messages")


@pytest.fixture
async def where(postgres: PostgresServer, template: str) -> AsyncIterator[Site]:
    shown = {"debugging": {"response_messages": "allowed"}}
    async with site(postgres, template, TURN, **shown) as one:
        yield one


def spelled(message: Json) -> str:
    (part,) = message["content"]
    return f"{message['role']}/{message.get('channel')}: {part['text']}"


@pytest.mark.slow
async def test_prompt_and_output_are_shown_the_same_in_every_way(where: Site) -> None:
    shown = await where.everywhere(input="[[sim say=Hello!]] Hi", **ASKING)
    prompt = shown.response["input_messages"]
    assert [one["role"] for one in prompt] == ["system", "developer", "user"]
    assert spelled(prompt[1]) == "developer/None: # Instructions\n\nBe brief."
    analysis, answer = shown.response["output_messages"]
    assert analysis["channel"] == "analysis"
    assert spelled(answer) == "assistant/final: Hello!"
    ids = [token for one in (analysis, answer) for token in one["token_ids"]]
    usage = shown.response["usage"]
    # What opens the turn is the prompt's.
    assert len(ids) == usage["output_tokens"] + len(Vocabulary.load().encode("assistant")) + 1
    assert sum(len(one["token_ids"]) for one in prompt) + 2 == usage["input_tokens"]


@pytest.mark.slow
async def test_only_the_end_of_a_stream_shows_them(where: Site) -> None:
    shown = await where.everywhere(input="Hi", **ASKING)
    with_them = [event["type"] for event in shown.events if "input_messages" in str(event)]
    assert with_them == ["response.completed"]


async def test_ids_are_shown_of_what_they_were_asked_for(where: Site) -> None:
    response = await where.post(input="Hi", include=["output_messages.token_ids"])
    assert all("token_ids" in one for one in response["output_messages"])
    assert not any("token_ids" in one for one in response["input_messages"])
    plain = await where.post(input="Hi", enable_response_messages=True)
    assert not any("token_ids" in one for name in FIELDS for one in plain[name])


@pytest.mark.slow
async def test_who_does_not_ask_is_not_shown_them(where: Site) -> None:
    response = await where.post(input="Hi")
    assert not set(FIELDS) & response.keys()


@pytest.mark.slow
async def test_what_was_taken_back_is_shown_with_the_rule(where: Site) -> None:
    response = await where.post(
        input="[[sim attack=header times=1 say=Hello!]] Hi", enable_response_messages=True
    )
    assert any(one.get("type") == "raw_message_tokens" for one in response["output_messages"])


@pytest.mark.slow
async def test_a_tenant_is_asked_for_nothing_it_may_not_see(
    postgres: PostgresServer, template: str
) -> None:
    async with site(postgres, template, WaywardOptions()) as where:
        for body in ({"enable_response_messages": True}, {"include": ASKING["include"]}):
            error = await where.refused(403, input="Hi", **body)
            assert (error["code"], error["param"]) == (
                "response_messages_not_allowed",
                "enable_response_messages",
            )
            assert "tenants set acme --response-messages allowed" in error["message"]
        settings = where.running.process.foundation.settings
        key = await new_key(settings, "trusted", {"response_messages": "allowed"})
        answer = await where.client.post(
            "/v1/responses",
            json={"model": MODEL, "input": "Hi", **ASKING},
            headers={"authorization": f"Bearer {key}"},
        )
        assert answer.status_code == 200, answer.text
        assert set(FIELDS) <= answer.json().keys()
