"""What the release before has made is read by this one as it was, and goes on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final

import pytest

from tests.fakes.event_grammar import check_stream
from tests.fakes.stream import as_events, frames_of, parse_stream
from tests.upgrade.asking import MODEL, created, ended, id_of
from tests.upgrade.releases import replica

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.postgres import PostgresServer
    from tests.fakes.processes import SimulatorProcess
    from tests.upgrade.asking import Json
    from tests.upgrade.releases import Release, Replica

pytestmark = [pytest.mark.upgrade, pytest.mark.timeout(300)]

SLOW: Final = "[[sim tokens_per_s=100 tokens=400 think=none]] go"
SLOW_TOKENS: Final = 404
SEEN: Final = 10
HEADER_IDS: Final = 2
"""A prompt ends with `<|start|>assistant`."""
WEATHER: Final[Json] = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
VERDICT: Final[Json] = {
    "format": {
        "type": "json_schema",
        "name": "verdict",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"stripes": {"enum": ["neck", "all", "none"]}},
            "required": ["stripes"],
            "additionalProperties": False,
        },
    }
}
DURABLE: Final[Json] = {"background": True, "stream": True}
KINDS: Final[dict[str, Json]] = {
    "plain": {"input": "[[sim say=ok]] go"},
    "thought": {"input": "[[sim think=20 say=ok]] go", "reasoning": {"summary": "auto"}},
    "called": {"input": "[[sim call=get_weather]] go", "tools": [WEATHER]},
    "formatted": {"input": "go", "text": VERDICT},
    "told with probabilities": {
        "input": "[[sim say=ok]] go",
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
        "top_logprobs": 2,
    },
    "cut": {"input": "[[sim tokens=40]] go", "max_output_tokens": 20},
    "failed": {"input": "[[sim status=400]] go", **DURABLE},
    "in the background": {"input": "[[sim think=5 tokens=50]] go", **DURABLE},
    "polled": {"input": "[[sim tokens=20]] go", "background": True},
    "with a name": {"input": "[[sim say=ok]] go", "metadata": {"a": "b"}, "user": "me"},
}
"""Requests of all kinds that are stored."""


@dataclass
class Made:
    """What the release before made, and what it showed of it, by path."""

    ids: dict[str, str] = field(default_factory=dict)
    shown: dict[str, bytes] = field(default_factory=dict)
    chain: list[Json] = field(default_factory=list)
    third_prompt: list[int] = field(default_factory=list)
    """Ids of the last prompt of the chain."""
    conversation: str = ""
    going_on: str = ""
    """A conversation that is not only read."""
    under_way: list[str] = field(default_factory=list)
    """The frames that were seen of what nobody had ended."""
    once: Json = field(default_factory=dict)
    compacted: list[Json] = field(default_factory=list)
    unwanted: str = ""
    tenants: str = ""


@dataclass(frozen=True)
class Upgraded:
    """A replica of this release on that database."""

    made: Made
    replica: Replica
    release: Release
    database_url: str


def make_one(replica: Replica, body: Json) -> str:
    """The id of a response that is over."""
    if "stream" in body:
        request = {"json": {"model": MODEL, **body}}
        return id_of(next(iter([*frames_of(replica.client, "POST", "/v1/responses", **request)])))
    return str(ended(replica, created(replica, **body)["id"])["id"])


def answered(response: Json) -> list[Json]:
    """What a client sends back for the calls of a response."""
    return [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "17 degrees"}
        for item in response["output"]
        if item["type"] == "function_call"
    ]


def make_chain(replica: Replica) -> list[Json]:
    """Three responses, of which the second answers a call of the first."""
    first = created(replica, tools=[WEATHER], input="[[sim call=get_weather calls=1]] go")
    follow = {"tools": [WEATHER], "previous_response_id": first["id"]}
    second = created(replica, input=answered(first), **follow)
    third = created(replica, input="[[sim say=third]] and?", previous_response_id=second["id"])
    return [first, second, third]


def make_conversation(replica: Replica) -> str:
    """One with an item of its own and two turns."""
    item = {"type": "message", "role": "user", "content": "My name is Ada."}
    answer = replica.client.post(
        "/v1/conversations", json={"items": [item], "metadata": {"a": "b"}}
    )
    assert answer.status_code == 200, answer.text
    conversation = str(answer.json()["id"])
    for text in ("one", "two"):
        created(replica, input=f"[[sim say={text}]] go", conversation=conversation)
    return conversation


def paths_of(made: Made) -> list[str]:
    """All that can be read of it."""
    responses = [*made.ids.values(), *(response["id"] for response in made.chain)]
    paths = [f"/v1/responses/{one}{end}" for one in responses for end in ("", "/input_items")]
    paths += [
        f"/v1/responses/{made.ids[name]}?stream=true{after}"
        for name, body in KINDS.items()
        if "stream" in body
        for after in ("", "&starting_after=3")
    ]
    conversation = f"/v1/conversations/{made.conversation}"
    return [*paths, conversation, f"{conversation}/items?limit=100"]


def make_all(
    release: Release, replica: Replica, database_url: str, simulator: SimulatorProcess
) -> Made:
    """Let a replica make all of it, and show it; one response is left under way."""
    made = Made({name: make_one(replica, body) for name, body in KINDS.items()})
    made.chain = make_chain(replica)
    made.third_prompt = simulator.requests(with_ids=True)[-1]["prompt_ids"]
    made.conversation, made.going_on = (make_conversation(replica) for _ in range(2))
    headers = {"Idempotency-Key": "one-order"}
    made.once = created(replica, input="[[sim say=once]] go", headers=headers)
    asked = [{"role": "user", "content": "My name is Ada."}]
    compacted = replica.client.post("/v1/responses/compact", json={"model": MODEL, "input": asked})
    made.compacted = compacted.json()["output"]
    made.unwanted = make_one(replica, KINDS["in the background"])
    made.tenants = release.run(database_url, "tenants", "show", "acme")
    for path in paths_of(made):
        answer = replica.client.get(path)
        assert answer.status_code == 200, answer.text
        made.shown[path] = answer.content
    for name in ("under way", "queued"):
        body = {"model": MODEL, "input": SLOW, **DURABLE}
        frames = frames_of(replica.client, "POST", "/v1/responses", json=body)
        seen = [*islice(frames, SEEN if name == "under way" else 1)]
        made.ids[name] = id_of(seen[0])
        made.under_way = made.under_way or seen
        frames.close()
    return made


@pytest.fixture(scope="module")
async def upgraded(
    postgres: PostgresServer,
    before: Release,
    this: Release,
    simulator: SimulatorProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Upgraded]:
    """The release before is killed in its work, and the database is migrated."""
    name = await postgres.create()
    url = postgres.database_url(name)
    folder = tmp_path_factory.mktemp("upgrade")
    before.run(url, "db", "upgrade")
    for tenant in ("acme", "other"):
        before.run(url, "tenants", "create", tenant)
    terms = ("--background-running-max", "1", "--log-retention-h", "48")
    before.run(url, "tenants", "set", "acme", *terms)
    keys = {tenant: before.new_key(url, tenant) for tenant in ("acme", "other")}
    with replica(before, folder / "before", url, simulator.url, keys) as old:
        made = make_all(before, old, url, simulator)
        old.process.child.kill()
    this.run(url, "db", "upgrade")
    with replica(this, folder / "this", url, simulator.url, keys) as new:
        yield Upgraded(made, new, this, url)
    await postgres.drop(name)


def test_everything_reads_as_it_did(upgraded: Upgraded) -> None:
    """Bodies, items, conversations and streams, byte for byte."""
    for path, shown in upgraded.made.shown.items():
        answer = upgraded.replica.client.get(path)
        assert (answer.status_code, answer.content) == (200, shown), path
    statuses = {
        name: json.loads(upgraded.made.shown[f"/v1/responses/{upgraded.made.ids[name]}"])["status"]
        for name in KINDS
    }
    others = {"failed": "failed", "cut": "incomplete"}
    assert statuses == {name: others.get(name, "completed") for name in KINDS}


def test_what_was_under_way_is_ended_behind_what_was_seen(upgraded: Upgraded) -> None:
    path = f"/v1/responses/{upgraded.made.ids['under way']}"
    response = ended(upgraded.replica, upgraded.made.ids["under way"])
    whole = [*frames_of(upgraded.replica.client, "GET", path, params={"stream": "true"})]
    assert whole[:SEEN] == upgraded.made.under_way
    events = parse_stream("".join(whole))
    check_stream(as_events(events))
    assert events[-1]["response"] == response
    assert response["status"] == "completed"
    assert response["usage"]["output_tokens"] == SLOW_TOKENS


def test_what_waited_is_begun(upgraded: Upgraded) -> None:
    response = ended(upgraded.replica, upgraded.made.ids["queued"])
    assert (response["status"], response["usage"]["output_tokens"]) == ("completed", SLOW_TOKENS)


def test_a_chain_goes_on_behind_the_ids_that_were_there(
    upgraded: Upgraded, simulator: SimulatorProcess
) -> None:
    """The prompt of the third was made by the release before, those behind it by this one."""
    last = upgraded.made.chain[-1]
    for number in range(2):
        asked = f"[[sim say=more]] number {number}"
        last = created(upgraded.replica, input=asked, previous_response_id=last["id"])
        assert last["status"] == "completed"
    seen = [row["prompt_ids"] for row in simulator.requests(with_ids=True)]
    prompts = [upgraded.made.third_prompt, *seen[-2:]]
    for known, prompt in pairwise(prompts):
        assert prompt[: len(known) - HEADER_IDS] == known[:-HEADER_IDS]


def test_a_conversation_goes_on(upgraded: Upgraded) -> None:
    conversation = upgraded.made.going_on
    path = f"/v1/conversations/{conversation}/items"
    query = {"limit": "100", "order": "asc"}
    known = upgraded.replica.client.get(path, params=query).json()["data"]
    response = created(upgraded.replica, input="[[sim say=three]] go", conversation=conversation)
    items = upgraded.replica.client.get(path, params=query).json()["data"]
    assert items[: len(known)] == known
    assert items[len(known) + 1 :] == response["output"]


def test_a_request_with_a_key_is_known_again(upgraded: Upgraded) -> None:
    headers = {"Idempotency-Key": "one-order"}
    again = created(upgraded.replica, input="[[sim say=once]] go", headers=headers)
    assert again == upgraded.made.once


def test_what_was_sealed_is_read(upgraded: Upgraded) -> None:
    """A compaction, and the encrypted reasoning of a response that is input again."""
    asked = [*upgraded.made.compacted, {"role": "user", "content": "What is my name?"}]
    assert created(upgraded.replica, input=asked)["status"] == "completed"
    told = upgraded.made.ids["told with probabilities"]
    output = json.loads(upgraded.made.shown[f"/v1/responses/{told}"])["output"]
    assert output[0]["encrypted_content"]
    behind = [*output, {"role": "user", "content": "[[sim say=ok]] go on"}]
    assert created(upgraded.replica, input=behind, store=False)["status"] == "completed"


def test_tenants_keep_their_terms_and_their_walls(upgraded: Upgraded) -> None:
    told = upgraded.release.run(upgraded.database_url, "tenants", "show", "acme")
    assert {*upgraded.made.tenants.splitlines()} <= {*told.splitlines()}
    path = f"/v1/responses/{upgraded.made.ids['plain']}"
    assert upgraded.replica.clients["other"].get(path).status_code == 404


def test_what_is_deleted_is_gone(upgraded: Upgraded) -> None:
    path = f"/v1/responses/{upgraded.made.unwanted}"
    assert upgraded.replica.client.get(path).status_code == 200
    assert upgraded.replica.client.delete(path).status_code == 200
    for gone in (path, f"{path}/input_items"):
        assert upgraded.replica.client.get(gone).status_code == 404
