"""Reasoning that a client keeps, sealed: it gives the prompt that the stored conversation gives."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from gateway.models.harmony.tokenizer import MESSAGE, START
from tests.fakes.controlled import MODEL, TURN, site
from tests.fakes.gateway import gateway_settings, new_key, running_gateway
from tests.fakes.harmony_oracle import encoding
from tests.fakes.http_client import http_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.controlled import Site
    from tests.fakes.postgres import PostgresServer

Json = dict[str, Any]

SEALED = "reasoning.encrypted_content"
TOOLS: list[Json] = [
    {
        "type": "function",
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"location": {"type": "string"}},
            "required": ["location"],
        },
    },
    {"type": "custom", "name": "say", "description": "Says it aloud."},
]
OUTPUTS = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}


@pytest.fixture(scope="module")
async def where(postgres: PostgresServer, template: str) -> AsyncIterator[Site]:
    """Two backends that hold grammars."""
    async with site(postgres, template, TURN, TURN) as running:
        yield running


def outputs_of(response: Json) -> list[Json]:
    """What a client answers the calls of a response with."""
    return [
        {"type": OUTPUTS[item["type"]], "call_id": item["call_id"], "output": "17 degrees"}
        for item in response["output"]
        if item["type"] in OUTPUTS
    ]


def kept(response: Json) -> list[Json]:
    """The output as a client without storage keeps it: no ids, no plain reasoning."""
    items = []
    for item in response["output"]:
        bare = {key: value for key, value in item.items() if key not in {"id", "status"}}
        if item["type"] == "reasoning":
            assert item["encrypted_content"].startswith("hgw1.")
            bare |= {"summary": [], "content": []}
        items.append(bare)
    return items


def question(text: str) -> Json:
    return {"type": "message", "role": "user", "content": text}


Message = tuple[list[str], list[int] | Json]


async def prompt(where: Site, response: Json) -> list[Message]:
    """The messages that the backend was given first: the words of their headers, and their bodies.

    Calls come back from a client without their ids, so of theirs the order of the header, and the
    spaces in its JSON, may be others.
    """
    ids: list[int] = (await where.backends.of_response(response["id"]))[0]["prompt_ids"]
    starts = [at for at, token in enumerate(ids) if token == START]
    return [
        _message(ids[begin:end]) for begin, end in zip(starts, [*starts[1:], len(ids)], strict=True)
    ]


def _message(ids: list[int]) -> Message:
    begin = ids.index(MESSAGE) if MESSAGE in ids else len(ids)
    header = re.sub(r"<[|][a-z]+[|]>", " ", encoding().decode(ids[:begin])).split()
    body = ids[begin + 1 :]
    if any(word.startswith("to=functions.") for word in header):
        return sorted(header), json.loads(encoding().decode(body[:-1]))
    return sorted(header), body


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice",
    [{"type": "function", "name": "get_weather"}, {"type": "custom", "name": "say"}],
    ids=["function", "custom"],
)
async def test_a_stateless_conversation_has_the_prompts_of_a_stored_one(
    where: Site, choice: Json
) -> None:
    """Three turns: a call, its output and an answer, another question."""
    body: Json = {"tools": TOOLS, "reasoning": {"effort": "high"}}
    bare: Json = {**body, "store": False, "include": [SEALED]}
    asked, more = question("What is it like in Paris?"), question("And what did I ask?")
    stored = [await where.post(input=[asked], tool_choice=choice, **body)]
    history = [asked]
    loose = [await where.post(input=history, tool_choice=choice, **bare)]
    for new in (None, more):
        given = [new] if new else outputs_of(stored[-1])
        history += [*kept(loose[-1]), *([new] if new else outputs_of(loose[-1]))]
        stored.append(await where.post(input=given, previous_response_id=stored[-1]["id"], **body))
        loose.append(await where.post(input=history, **bare))
    for one, other in zip(stored, loose, strict=True):
        assert await prompt(where, one) == await prompt(where, other)


async def test_streams_and_replays_seal_alike(where: Site) -> None:
    shown = await where.everywhere(input="Think.", include=[SEALED])
    seals = [
        item["encrypted_content"]
        for item in shown.response["output"]
        if item["type"] == "reasoning"
    ]
    assert len(seals) == 1
    again = await where.post(
        input=[question("Think."), *kept(shown.response), question("Go on.")], store=False
    )
    assert again["status"] == "completed"


async def test_nothing_is_sealed_for_whoever_does_not_ask(where: Site) -> None:
    response = await where.post(input="Think.", store=False)
    (reasoning,) = [item for item in response["output"] if item["type"] == "reasoning"]
    assert not reasoning.get("encrypted_content")


async def test_only_what_was_sealed_for_them_is_opened(where: Site) -> None:
    first = await where.post(input="Think.", store=False, include=[SEALED])
    (sealed,) = [one for one in kept(first) if one["type"] == "reasoning"]
    seal = sealed["encrypted_content"]
    middle = len(seal) // 2
    flipped = seal[:middle] + ("A" if seal[middle] != "A" else "B") + seal[middle + 1 :]
    for wrong in (flipped, seal[:-4], seal + "AAAA", "hgw1.", "gAAAAAB", "\u00e9", seal.upper()):
        items = [question("Think."), {**sealed, "encrypted_content": wrong}, question("So?")]
        error = await where.refused(input=items)
        assert error["code"] == "invalid_encrypted_content"
        assert error["param"] == "input[1].encrypted_content"
    items = [question("Think."), sealed, question("So?")]
    other_model = await where.client.post(
        "/v1/responses", json={"model": "gpt-oss-120b", "input": items}
    )
    assert other_model.status_code == 400
    assert other_model.json()["error"]["code"] == "invalid_encrypted_content"
    key = await new_key(where.running.process.foundation.settings, "globex")
    stranger = await where.client.post(
        "/v1/responses",
        json={"model": MODEL, "input": items},
        headers={"authorization": f"Bearer {key}"},
    )
    assert stranger.status_code == 400
    assert stranger.json()["error"]["code"] == "invalid_encrypted_content"


@pytest.mark.slow
async def test_keys_are_rotated_without_breaking_what_clients_keep(
    where: Site, database_url: str
) -> None:
    """The new key is appended, moved to the front, and then the old one is removed."""
    old, new = {"id": "old", "secret": "o" * 32}, {"id": "new", "secret": "n" * 32}
    seals: dict[str, Json] = {}

    async def speak(name: str, keys: list[Json], wanted: dict[str, int]) -> None:
        settings = gateway_settings(
            database_url, where.backends.urls, reasoning={"sealing_keys": keys}
        )
        async with (
            running_gateway(settings) as running,
            http_client(running.url, headers=running.headers) as client,
        ):
            body: Json = {"model": MODEL, "store": False, "include": [SEALED]}
            made = await client.post("/v1/responses", json={**body, "input": "Think."})
            (seals[name],) = [one for one in kept(made.json()) if one["type"] == "reasoning"]
            for known, status in wanted.items():
                items = [question("Think."), seals[known], question("So?")]
                answer = await client.post("/v1/responses", json={**body, "input": items})
                assert answer.status_code == status, (name, known)

    await speak("none", [], {"none": 200})
    await speak("first", [old], {"none": 200, "first": 200})
    await speak("both", [old, new], {"first": 200, "both": 200})
    await speak("moved", [new, old], {"first": 200, "both": 200, "moved": 200})
    await speak("removed", [new], {"first": 400, "both": 400, "moved": 200, "none": 200})
