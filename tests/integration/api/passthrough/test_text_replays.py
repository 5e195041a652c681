"""A turn of text is replayed from its beginning: nobody can go on in the middle of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.admin.replays import Replay
from gateway.admin.responses import Reveal
from gateway.audit import COMMAND_LINE, Actor, Author
from gateway.errors import InvalidRequest
from gateway.text_ids import text_of
from gateway.wiring.admin import operator_services
from tests.fakes.text_server import text
from tests.integration.api.bodies import create
from tests.integration.api.following import ended
from tests.integration.api.passthrough.conftest import BLIND

if TYPE_CHECKING:
    from tests.integration.api.passthrough.conftest import Passing

ANNA = Author(Actor("operator", "op_1", None, "anna"))


async def test_a_turn_of_text_is_replayed_from_its_beginning_alone(passing: Passing) -> None:
    services = operator_services(passing.gateway.process)
    (tenant, *_) = await services.tenants.list()
    policy = {"operator_content_access": "always"}
    await services.tenants.set_policy(COMMAND_LINE, tenant.name, policy)
    (server,) = passing.of(BLIND)
    server.script = lambda _: text("Hello, the sea!")
    made = await create(
        passing.client, model=BLIND, input="Hi", instructions="Be kind.", background=True
    )
    made = await ended(passing.client, made["id"])
    await services.responses.reveal(ANNA, made["id"], Reveal(reason="ticket 7"))
    server.script = lambda _: text("Hello, the tree!")
    got = await services.replays.replay(ANNA, made["id"], Replay())
    asked, again = server.asked[-2:]
    assert again["messages"] == asked["messages"]
    assert (got["source"], got["prompt"]["tokens"]) == ("log", got["prompt"]["expected_tokens"])
    ids = [token[0] for run in got["replayed"] for token in run["tokens"]]
    assert text_of(ids) == "Hello, the tree!"
    assert text_of(ids[: got["first_difference"]]) == "Hello, the "
    shown = await services.replays.prompt(ANNA, made["id"])
    assert len(shown["data"]) == shown["count"] > 2
    assert '"Be kind."' in shown["data"][1]["text"]
    for param, body in (("at", Replay(at=5)), ("text", Replay(text="No."))):
        with pytest.raises(InvalidRequest, match="nobody can go on") as refused:
            await services.replays.replay(ANNA, made["id"], body)
        assert refused.value.param == param
    line = await services.replays.corpus(ANNA, made["id"])
    assert line["desired"][-1]["text"] == "Hello, the sea!"
