"""A response of a model with a chat template made anew: its prompt, a replay, forks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from gateway.admin.replays import Replay
from gateway.admin.responses import Reveal
from gateway.audit import COMMAND_LINE, Actor, Author
from gateway.wiring.admin import operator_services
from tests.fakes.chat_server import MODEL, OPENING, chatml
from tests.integration.api.bodies import create
from tests.integration.api.following import ended

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.admin.resources import OperatorServices
    from tests.integration.api.chat_format.conftest import Chatting

ANNA = Author(Actor("operator", "op_1", None, "anna"))
SAID = "They greet.\n</think>\n\nHello, the sea!"


@pytest.fixture
async def services(chatting: Chatting) -> AsyncIterator[OperatorServices]:
    services = operator_services(chatting.process)
    (tenant, *_) = await services.tenants.list()
    policy = {"operator_content_access": "always"}
    await services.tenants.set_policy(COMMAND_LINE, tenant.name, policy)
    chatting.server.template = partial(chatml, opens_thoughts=True)
    yield services
    chatting.server.template = chatml


async def revealed(
    chatting: Chatting, services: OperatorServices, **options: Any
) -> dict[str, Any]:
    made = await create(chatting.client, model=MODEL, **options)
    made = await ended(chatting.client, made["id"])
    await services.responses.reveal(ANNA, made["id"], Reveal(reason="ticket 7"))
    return made


def spelled(chatting: Chatting, runs: list[dict[str, Any]]) -> str:
    return chatting.server.spelled([token[0] for run in runs for token in run["tokens"]])


async def test_a_replay_sends_the_ids_that_the_template_made(
    chatting: Chatting, services: OperatorServices
) -> None:
    server = chatting.server
    server.script = lambda _: f"<think>\n{SAID}"
    first = await create(chatting.client, model=MODEL, input="Hi", instructions="Be kind.")
    made = await revealed(
        chatting, services, input="Again", previous_response_id=first["id"], background=True, seed=7
    )
    got = await services.replays.replay(ANNA, made["id"], Replay())
    run, again = server.asked[-2:]
    assert again["prompt"] == run["prompt"]
    assert again["seed"] == run["seed"] != 7, "the gateway began the turn"
    assert got["prompt"]["tokens"] == got["prompt"]["expected_tokens"] == len(run["prompt"])
    assert (got["source"], got["first_difference"]) == ("log", None)
    # The thought was opened by the template: it stands before the first token.
    assert spelled(chatting, got["replayed"]) == f"{SAID}<|im_end|>"
    shown = await services.replays.prompt(ANNA, made["id"])
    labels = [one["label"] for one in shown["data"]]
    roles = ["system", "user", "assistant", "user", "assistant"]
    assert labels == [f"<|im_start|>{role}" for role in roles[-len(labels) :]]
    assert "".join(one["text"] for one in shown["data"]) == server.spelled(run["prompt"])
    line = await services.replays.corpus(ANNA, made["id"])
    assert [one["type"] for one in line["desired"]] == ["reasoning", "message"]
    assert line["prefill"] == len(server.ids("<think>\n"))


async def test_the_first_token_that_differs_is_marked(
    chatting: Chatting, services: OperatorServices
) -> None:
    server = chatting.server
    server.script = lambda _: f"<think>\n{SAID}"
    made = await revealed(chatting, services, input="Hi", background=True)
    other = SAID.replace("the sea", "the tree")
    server.script = lambda _: f"<think>\n{other}"
    got = await services.replays.replay(ANNA, made["id"], Replay())
    same = server.ids(f"{SAID.partition('sea')[0]}")
    assert got["first_difference"] in {len(same) - 1, len(same)}
    assert spelled(chatting, got["replayed"]) == f"{other}<|im_end|>"
    server.script = lambda _: f"<think>\n{SAID}"
    begun = len(server.ids("<think>\nThey greet."))
    server.goes_on = lambda _: " Bye."
    got = await services.replays.replay(
        ANNA, made["id"], Replay(at=begun, text="<|im_end|></think>", temperature=0.0)
    )
    assert server.prompt().endswith(f"{OPENING}<think>\nThey greet.<|im_end|></think>")
    plain = server.asked[-1]["prompt"][-len("<|im_end|></think>") :]
    assert plain != server.ids("<|im_end|></think>"), "it is text, and no marker"
    assert server.asked[-1]["temperature"] == 0.0
    assert spelled(chatting, got["replayed"]).endswith("</think> Bye.<|im_end|>")


async def test_of_items_without_ids_a_replay_stands_alone(
    chatting: Chatting, services: OperatorServices
) -> None:
    chatting.server.script = lambda _: f"<think>\n{SAID}"
    made = await revealed(chatting, services, input="Hi")
    got = await services.replays.replay(ANNA, made["id"], Replay())
    assert (got["source"], got["original"], got["first_difference"]) == ("nothing", [], None)
    assert got["prompt"]["tokens"] == got["prompt"]["expected_tokens"]
    assert spelled(chatting, got["replayed"]) == f"{SAID}<|im_end|>"
