"""Another replica, which never saw the model's template, goes on with a response and its tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes.chat_server import MODEL, ChatServer, called, write_model
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.mcp_server import serving as serving_tools
from tests.fakes.serving import serving
from tests.fakes.stream import texts
from tests.integration.api.chat_format.conftest import TOOLS
from tests.integration.api.following import created, ended, id_in, is_delta, taken

if TYPE_CHECKING:
    from pathlib import Path

ADD = called("srv.add", '{"a": 1, "b": 2}')
SAY = called("srv.say", '{"text": "hi"}')
TURNS = (f"Let me add.\n{ADD}", f"And now I say something.\n{SAY}", "It is 3.")


@pytest.mark.slow
async def test_another_replica_goes_on_id_for_id(database_url: str, tmp_path: Path) -> None:
    server = ChatServer(lambda before: TURNS[before.count("<tool_response>")])
    server.holds_turn = 1
    async with serving(server.app) as url:
        settings = gateway_settings(
            database_url,
            [url],
            models=[
                {
                    "id": MODEL,
                    "format": "chat",
                    "tokenizer": str(write_model(tmp_path)),
                    "reasoning": "think",
                    "calls": "hermes",
                }
            ],
            tools=TOOLS,
        )
        with serving_tools() as tools:
            tool = {
                "type": "mcp",
                "server_label": "srv",
                "server_url": tools.url,
                "require_approval": "never",
                "allowed_tools": ["add", "say"],
            }
            async with (
                running_gateway(settings) as leaving,
                http_client(leaving.url, headers=leaving.headers) as client,
            ):
                begun = created(client, model=MODEL, input="1 + 2?", tools=[tool])
                seen = await taken(begun, lambda frame: is_delta(frame) and len(server.asked) == 2)
                renderings = len(server.rendered)
                async with (
                    running_gateway(settings) as staying,
                    http_client(staying.url, headers=leaving.headers) as other,
                ):
                    await leaving.process.begin_drain()
                    leaving.process.end_streams()
                    server.released.set()
                    response = await ended(other, id_in(seen))
    assert texts(response)[-1] == "It is 3."
    assert [item["type"] for item in response["output"]].count("mcp_call") == 2
    assert len(server.rendered) == renderings
    _, second, again, third = (server.spelled(body["prompt"]) for body in server.asked)
    assert again.startswith(second)
    assert third.startswith(f"{second}{TURNS[1]}<|im_end|>\n<|im_start|>user\n<tool_response>\n")
