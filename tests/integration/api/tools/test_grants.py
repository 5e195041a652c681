"""What requests may use of the hosted tools, from create to the next request of their context."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from openai import AsyncOpenAI

from gateway import ids
from gateway.store.postgres.statements import Statement
from gateway.store.tools import web_pages
from gateway.store.tools.web_pages import StoredPage
from tests.fakes import mcp_server
from tests.fakes.gateway import RunningGateway, gateway_settings, new_key, running_gateway
from tests.fakes.harmony_oracle import vocabulary
from tests.fakes.http_client import http_client
from tests.fakes.websocket import connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import httpx2

    from gateway.tenancy.policy import PolicyChanges
    from tests.fakes.observation import Backends

    Json = dict[str, Any]

MODEL = "gpt-oss-20b"
SEARCH: Json = {"type": "web_search"}
PYTHON: Json = {"type": "code_interpreter", "container": {"type": "auto"}}
TOOLS = {
    "web": {"enabled": True},
    "python": {"enabled": True, "engine": "monty"},
    "mcp": {
        "enabled": True,
        "url_networks": ["127.0.0.0/8"],
        "url_plain_http": True,
        "connect_timeout_s": 60,
        "list_timeout_s": 60,
    },
}
FAIL = """
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE 'too many connections' USING ERRCODE = '53300'; END $$;
CREATE TRIGGER fail BEFORE INSERT ON responses FOR EACH ROW
WHEN (NEW.parent_id = '{parent}') EXECUTE FUNCTION fail();
"""
PAGE = StoredPage(
    "https://zebra.example/stripes",
    "Quaggas",
    "The quagga had stripes on its neck only.\nThe last one died in 1883.",
)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with mcp_server.serving() as process:
        yield process.url


@pytest.fixture(scope="module")
async def hosting(own_database_url: str, backends: Backends) -> AsyncIterator[RunningGateway]:
    settings = gateway_settings(
        own_database_url, backends.urls, models=[{"id": MODEL}], tools=TOOLS
    )
    async with running_gateway(settings) as running:
        database = running.process.foundation.database
        language = settings.tools.web.index_language
        await web_pages.put_documents(database, None, [PAGE], language=language)
        yield running


@pytest.fixture
async def hosted(hosting: RunningGateway) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client(hosting.url, headers=hosting.headers) as opened:
        yield opened


def mcp(url: str, **fields: Any) -> Json:
    return {"type": "mcp", "server_label": "srv", "server_url": url, **fields}


def steps(said: str) -> str:
    return f"[[sim steps={said}]]"


async def post(client: httpx2.AsyncClient, **body: Any) -> Json:
    answer = await client.post("/v1/responses", json={"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    shown: Json = answer.json()
    assert shown["status"] == "completed", shown
    return shown


async def refused(client: httpx2.AsyncClient, **body: Any) -> Json:
    """The error of a request that is answered 400 or 404."""
    answer = await client.post("/v1/responses", json={"model": MODEL, **body})
    assert answer.status_code in {400, 404}, answer.text
    error: Json = answer.json()["error"]
    return error


def types(response: Json) -> list[str]:
    return [item["type"] for item in response["output"] if item["type"] != "reasoning"]


def text(response: Json) -> str:
    return str(response["output"][-1]["content"][0]["text"])


def answer_to(response: Json, *, approve: bool = True, **fields: Any) -> Json:
    request_id = response["output"][-1]["id"]
    answer = {"type": "mcp_approval_response", "approval_request_id": request_id}
    return {**answer, "approve": approve, **fields}


ADD = steps('mcp srv.add {"a": 20, "b": 22}; quote')


@pytest.mark.slow
@pytest.mark.requirement("control.approvals")
async def test_an_approval_is_taken_up_from_items_that_are_sent_again(
    hosted: httpx2.AsyncClient, server: str
) -> None:
    """As OpenAI's Agents SDK does it, and nothing is stored."""
    tools, user = [mcp(server)], {"role": "user", "content": ADD}
    first = await post(hosted, input=[user], tools=tools, store=False)
    assert types(first) == ["mcp_list_tools", "mcp_approval_request"]
    items = [user, *first["output"], answer_to(first)]
    second = await post(hosted, input=items, tools=tools, store=False)
    assert types(second) == ["mcp_call", "message"]
    assert "42" in text(second)
    call = next(item for item in second["output"] if item["type"] == "mcp_call")
    assert call["approval_request_id"] == first["output"][-1]["id"]
    error = await refused(hosted, input=items, tools=tools, store=False)
    assert (error["code"], error["param"]) == ("approval_already_used", "input")
    # What was answered is history: it is neither asked nor called again.
    more = [*items, *second["output"], {"role": "user", "content": "Thanks!"}]
    assert types(await post(hosted, input=more, tools=tools, store=False)) == ["message"]


@pytest.mark.slow
async def test_a_refusal_is_told_to_the_model_and_cannot_be_taken_back(
    hosted: httpx2.AsyncClient, server: str
) -> None:
    tools = [mcp(server, require_approval="always")]
    first = await post(hosted, input=ADD, tools=tools)
    refusal = answer_to(first, approve=False, reason="Not on a Sunday.")
    second = await post(hosted, previous_response_id=first["id"], input=[refusal], tools=tools)
    assert "mcp_call" not in types(second)
    assert "Not on a Sunday" in text(second)
    approval = {"previous_response_id": first["id"], "input": [answer_to(first)], "tools": tools}
    assert (await refused(hosted, **approval))["code"] == "approval_already_used"


@pytest.mark.slow
@pytest.mark.requirement("control.approvals")
async def test_an_approval_is_of_the_very_call(hosted: httpx2.AsyncClient, server: str) -> None:
    tools, user = [mcp(server)], {"role": "user", "content": ADD}
    first = await post(hosted, input=[user], tools=tools, store=False)
    *others, question = first["output"]
    forged = {**question, "arguments": '{"a": 1000, "b": 1}'}
    items = [user, *others, forged, answer_to(first)]
    error = await refused(hosted, input=items, tools=tools, store=False)
    assert error["code"] == "approval_mismatch"
    elsewhere = {"input": [user, *first["output"], answer_to(first)], "store": False}
    other = [mcp(server, headers={"x-key": "another"})]
    assert (await refused(hosted, tools=other, **elsewhere))["code"] == "approval_mismatch"
    assert (await refused(hosted, tools=[SEARCH], **elsewhere))["code"] == "approval_mismatch"
    alone = {"input": [answer_to(first)], "tools": tools}
    assert (await refused(hosted, **alone))["code"] == "approval_not_found"
    # Nothing of all this has used it up.
    assert "mcp_call" in types(await post(hosted, tools=tools, **elsewhere))


@pytest.mark.slow
async def test_an_approval_is_of_its_tenant(
    hosted: httpx2.AsyncClient, hosting: RunningGateway, server: str
) -> None:
    tools, user = [mcp(server)], {"role": "user", "content": ADD}
    first = await post(hosted, input=[user], tools=tools, store=False)
    key = await new_key(hosting.process.foundation.settings, "globex")
    async with http_client(hosting.url, headers={"authorization": f"Bearer {key}"}) as other:
        items = [user, *first["output"], answer_to(first)]
        error = await refused(other, input=items, tools=tools, store=False)
    assert error["code"] == "approval_not_found"


@pytest.mark.slow
@pytest.mark.requirement("control.approvals")
async def test_of_two_requests_at_once_one_is_approved(
    hosted: httpx2.AsyncClient, server: str
) -> None:
    tools = [mcp(server)]
    first = await post(hosted, input=ADD, tools=tools)
    body = {"model": MODEL, "previous_response_id": first["id"], "tools": tools}
    body["input"] = [answer_to(first)]
    answers = await asyncio.gather(*(hosted.post("/v1/responses", json=body) for _ in range(3)))
    assert sorted(answer.status_code for answer in answers) == [200, 400, 400]


@pytest.mark.slow
async def test_a_repeated_request_is_answered_with_what_its_approval_became(
    hosted: httpx2.AsyncClient, server: str
) -> None:
    tools = [mcp(server)]
    first = await post(hosted, input=ADD, tools=tools)
    body = {"model": MODEL, "previous_response_id": first["id"], "tools": tools}
    body["input"] = [answer_to(first)]
    key = {"idempotency-key": first["id"]}
    one = await hosted.post("/v1/responses", json=body, headers=key)
    two = await hosted.post("/v1/responses", json=body, headers=key)
    assert (one.status_code, two.status_code) == (200, 200), two.text
    assert two.headers["idempotent-replayed"] == "true"
    assert one.json() == two.json()
    other = await hosted.post("/v1/responses", json=body, headers={"idempotency-key": "x"})
    assert other.json()["error"]["code"] == "approval_already_used"


async def begun(client: httpx2.AsyncClient, **body: Any) -> str:
    """The id of a background response that is generated by now."""
    asked = {"model": MODEL, **body, "background": True, "stream": True}
    async with client.stream("POST", "/v1/responses", json=asked) as told:
        async for line in told.aiter_lines():
            event: Json = orjson.loads(line[6:]) if line.startswith("data: {") else {"type": ""}
            if event["type"] == "response.in_progress":
                return str(event["response"]["id"])
    raise AssertionError("it never began")


@pytest.mark.slow
async def test_what_cannot_be_accepted_uses_no_approval(
    hosting: RunningGateway, server: str
) -> None:
    policy: PolicyChanges = {"background_queued_max": 1, "background_running_max": 1}
    key = await new_key(hosting.process.foundation.settings, "hooli", policy)
    tools = [mcp(server)]
    async with http_client(hosting.url, headers={"authorization": f"Bearer {key}"}) as client:
        first = await post(client, input=ADD, tools=tools)
        body = {"tools": tools, "previous_response_id": first["id"], "input": [answer_to(first)]}
        busy = {"model": MODEL, "input": "[[sim first_token_delay_s=60]]"}
        running = await begun(client, **busy)
        waiting = await client.post("/v1/responses", json={**busy, "background": True})
        asked = {"model": MODEL, **body, "background": True}
        refusal = await client.post("/v1/responses", json=asked)
        assert refusal.status_code == 429, refusal.text
        for one in (waiting.json()["id"], running):
            await client.post(f"/v1/responses/{one}/cancel")
        assert "mcp_call" in types(await post(client, **body))


async def test_an_answer_is_not_used_up_by_a_response_that_the_database_did_not_take(
    hosting: RunningGateway, hosted: httpx2.AsyncClient, server: str
) -> None:
    tools = [mcp(server)]
    first = await post(hosted, input=ADD, tools=tools)
    body = {"tools": tools, "previous_response_id": first["id"], "input": [answer_to(first)]}
    parent = ids.parse_response_id(first["id"])
    async with hosting.process.foundation.database.owner_transaction() as connection:
        await connection.script(FAIL.format(parent=parent))
    for fields in ({}, {"stream": True}, {"background": True}):
        refusal = await hosted.post("/v1/responses", json={"model": MODEL, **body, **fields})
        assert refusal.status_code == 503, refusal.text
    async with hosting.process.foundation.database.owner_transaction() as connection:
        await connection.script("DROP FUNCTION fail CASCADE")
    assert "mcp_call" in types(await post(hosted, **body))


@pytest.mark.slow
async def test_an_approval_is_taken_up_in_a_conversation(
    hosted: httpx2.AsyncClient, server: str, backends: Backends
) -> None:
    made = await hosted.post("/v1/conversations", json={})
    conversation, tools = made.json()["id"], [mcp(server)]
    first = await post(hosted, input=ADD, conversation=conversation, tools=tools)
    second = await post(hosted, input=[answer_to(first)], conversation=conversation, tools=tools)
    assert types(second) == ["mcp_call", "message"]
    listed = await hosted.get(f"/v1/conversations/{conversation}/items?order=asc")
    kinds = [item["type"] for item in listed.json()["data"] if item["type"] != "reasoning"]
    assert kinds == [
        *("message", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
        *("mcp_call", "message"),
    ]
    call = second["output"][0]
    path = f"/v1/conversations/{conversation}/items/{call['approval_request_id']}"
    assert (await hosted.delete(path)).status_code == 200
    reference = {"type": "item_reference", "id": call["id"]}
    go_on = {"role": "user", "content": "Go on."}
    for fields in ({"input": [go_on], "conversation": conversation}, {"input": [reference, go_on]}):
        seen = await backends.of_response((await post(hosted, **fields))["id"])
        prompt = vocabulary().decode(seen[0]["prompt_ids"])
        assert prompt.count(f"functions.{call['server_label']}.{call['name']}") == 2


@pytest.mark.slow
async def test_what_was_approved_is_called_before_a_context_is_made_short(
    hosted: httpx2.AsyncClient, server: str
) -> None:
    tools, long = [mcp(server)], "word " * 2_000
    first = await post(hosted, input=f"{long} {ADD}", tools=tools)
    due = [{"type": "compaction", "compact_threshold": 1000}]
    asked = {"tools": tools, "context_management": due}
    second = await post(hosted, previous_response_id=first["id"], input=[answer_to(first)], **asked)
    assert types(second) == ["mcp_call", "message"]
    third = await post(hosted, previous_response_id=second["id"], input="Go on.", **asked)
    assert types(third) == ["compaction", "message"]


@pytest.mark.slow
async def test_a_call_that_failed_is_shown_again_however_the_prompt_is_made(
    hosted: httpx2.AsyncClient, server: str, backends: Backends
) -> None:
    """Prompts repeat the ids of a history, or are made anew of its items: they say the same."""
    tools = [mcp(server, require_approval="never")]
    first = await post(hosted, input=steps("mcp srv.boom {}; quote"), tools=tools)
    (call,) = (item for item in first["output"] if item["type"] == "mcp_call")
    assert call["status"] == "failed"
    prompts = []
    for fields in ({}, {"context_management": [{"type": "compaction"}]}):
        body = {"previous_response_id": first["id"], "input": "Go on", "tools": tools, **fields}
        made = await post(hosted, **body)
        (seen,) = await backends.of_response(made["id"])
        prompts.append(seen["prompt_ids"])
    assert prompts[0] == prompts[1]
    assert "srv.boom" in vocabulary().decode(prompts[1]).rpartition("quote")[2]


@pytest.mark.parametrize("begun", ["response", "conversation"])
async def test_a_connection_knows_the_tools_that_were_listed_before_it(
    hosting: RunningGateway, server: str, begun: str
) -> None:
    """What was stored with a list of tools is continued without, and with the tools again."""
    tools = [mcp(server, require_approval="never")]
    async with connected(hosting.url, hosting.key) as peer:
        place: Json = {}
        if begun == "conversation":
            async with http_client(hosting.url, headers=hosting.headers) as client:
                made = await client.post("/v1/conversations", json={})
            place = {"conversation": made.json()["id"]}
        first = await peer.response("Hi", tools=tools, store=True, **place)
        assert types(first)[0] == "mcp_list_tools"
        place = place or {"previous_response_id": first["id"]}
        between = await peer.response("Hm.", **place)
        again = await peer.response(ADD, previous_response_id=between["id"], tools=tools)
    assert types(again) == ["mcp_call", "message"]


@pytest.mark.slow
async def test_a_connection_goes_on_with_what_it_alone_knows(
    hosting: RunningGateway, server: str
) -> None:
    async with connected(hosting.url, hosting.key) as peer:
        tools = [mcp(server), SEARCH]
        first = await peer.response(ADD, tools=tools)
        body = {"previous_response_id": first["id"], "input": [answer_to(first)], "tools": tools}
        second = await peer.response(**body)
        assert types(second) == ["mcp_call", "message"]
        found = await peer.response(
            steps("search quagga; quote"), previous_response_id=second["id"], tools=tools
        )
        assert text(found).startswith("[0] ")
        between = await peer.response("Hm.", previous_response_id=found["id"])
        again = await peer.response(
            steps("search quagga; quote"), previous_response_id=between["id"], tools=tools
        )
        assert text(again).startswith("[1] ")


@pytest.mark.slow
@pytest.mark.requirement("control.hosted-run")
async def test_cursors_go_on_along_a_chain_and_pages_can_be_opened_and_cited(
    hosted: httpx2.AsyncClient,
) -> None:
    first = await post(hosted, input=steps("search quagga; quote"), tools=[SEARCH])
    assert text(first).startswith("[0] ")
    # One in between that has no tool changes nothing.
    between = await post(hosted, input="Hm.", previous_response_id=first["id"])
    second = await post(
        hosted,
        input=steps("open@0 0; cite"),
        previous_response_id=between["id"],
        tools=[SEARCH],
        include=["web_search_call.action.sources"],
    )
    (call,) = (item for item in second["output"] if item["type"] == "web_search_call")
    assert call["action"] == {"type": "open_page", "url": PAGE.url}
    part = second["output"][-1]["content"][0]
    (citation,) = part["annotations"]
    assert (citation["type"], citation["url"]) == ("url_citation", PAGE.url)
    cited = part["text"][citation["start_index"] : citation["end_index"]]
    assert cited.endswith(f"({PAGE.url}))")
    third = await post(
        hosted,
        input=steps("search quagga; quote"),
        previous_response_id=second["id"],
        tools=[SEARCH],
    )
    assert text(third).startswith("[2] ")


@pytest.mark.slow
async def test_cursors_go_on_in_a_conversation(hosted: httpx2.AsyncClient) -> None:
    made = await hosted.post("/v1/conversations", json={})
    asked = {"conversation": made.json()["id"], "tools": [SEARCH]}
    for cursor in range(2):
        response = await post(hosted, input=steps("search quagga; quote"), **asked)
        assert text(response).startswith(f"[{cursor}] ")
        # One in between that has no tool changes nothing.
        await post(hosted, input="Hm.", conversation=asked["conversation"])


@pytest.mark.requirement("control.hosted-run")
async def test_a_container_goes_on_along_a_chain(hosted: httpx2.AsyncClient) -> None:
    first = await post(hosted, input=steps("python x = 41"), tools=[PYTHON])
    second = await post(
        hosted,
        input=steps("python print(1); quote"),
        previous_response_id=first["id"],
        tools=[PYTHON],
    )
    used = [
        item["container_id"]
        for response in (first, second)
        for item in response["output"]
        if item["type"] == "code_interpreter_call"
    ]
    assert len(used) == 2
    assert len(set(used)) == 1
    again = [*first["output"], {"role": "user", "content": steps("python print(3); quote")}]
    replayed = await post(hosted, input=again, tools=[PYTHON], store=False)
    assert used[0] in str(replayed["output"])
    by_name = {**PYTHON, "container": used[0]}
    named = await post(hosted, input=steps("python print(2); quote"), tools=[by_name])
    assert used[0] in str(named["output"])
    unknown = {**PYTHON, "container": "cntr_" + "0" * 32}
    error = await refused(hosted, input="Hi", tools=[SEARCH, unknown])
    assert error["param"] == "tools[1].container"


async def test_a_chat_searches_unseen_and_shows_its_citations(hosted: httpx2.AsyncClient) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": steps("search quagga; open first; cite")}],
        "web_search_options": {"search_context_size": "low"},
    }
    whole = (await hosted.post("/v1/chat/completions", json=body)).json()
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == "stop"
    content, annotations = choice["message"]["content"], choice["message"]["annotations"]
    assert [one["url_citation"]["url"] for one in annotations] == [PAGE.url]
    place = annotations[0]["url_citation"]
    assert PAGE.url in content[place["start_index"] : place["end_index"]]

    answer = await hosted.post("/v1/chat/completions", json={**body, "stream": True})
    lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    deltas = [orjson.loads(line[6:])["choices"][0] for line in lines]
    assert "".join(one["delta"].get("content") or "" for one in deltas) == content
    assert [one for d in deltas for one in d["delta"].get("annotations", [])] == annotations
    assert [one["finish_reason"] for one in deltas if one["finish_reason"]] == ["stop"]


async def test_open_responses_shows_the_answer_alone(hosted: httpx2.AsyncClient) -> None:
    body = {"model": MODEL, "input": steps("search quagga; open first; cite"), "tools": [SEARCH]}
    answer = await hosted.post("/openresponses/v1/responses", json=body)
    response = answer.json()
    assert types(response) == ["message"]
    assert response["tools"] == []
    assert response["output"][-1]["content"][0]["annotations"][0]["url"] == PAGE.url


@pytest.mark.slow
async def test_a_tenant_may_be_refused_a_tool(hosting: RunningGateway, server: str) -> None:
    policy: PolicyChanges = {
        "web_search": "refused",
        "mcp_servers": "registry",
        "tool_calls_max": 1,
    }
    key = await new_key(hosting.process.foundation.settings, "initech", policy)
    async with http_client(hosting.url, headers={"authorization": f"Bearer {key}"}) as client:
        body = {"model": MODEL, "input": "Hi", "tools": [SEARCH, PYTHON]}
        answer = await client.post("/v1/responses", json=body)
        assert answer.headers["x-gateway-dropped-tools"] == "web_search"
        assert [tool["type"] for tool in answer.json()["tools"]] == ["code_interpreter"]
        error = await refused(client, **body, tool_choice={"type": "web_search"})
        assert error["param"] == "tool_choice"
        error = await refused(client, input="Hi", tools=[mcp(server)])
        assert error["param"].startswith("tools[0]")
        limited = await post(
            client, input=steps("python print(1); python print(2); say Done"), tools=[PYTHON]
        )
        assert types(limited).count("code_interpreter_call") == 1


@pytest.mark.requirement("create.max-tool-calls")
async def test_a_request_may_want_fewer_calls(hosted: httpx2.AsyncClient, server: str) -> None:
    twice = steps('mcp srv.add {"a": 1, "b": 2}; mcp srv.add {"a": 3, "b": 4}; say Done')
    tools = [mcp(server, require_approval="never")]
    response = await post(hosted, input=twice, tools=tools, max_tool_calls=1)
    assert types(response).count("mcp_call") == 1
    assert response["max_tool_calls"] == 1


@pytest.mark.slow
@pytest.mark.requirement("choice.hosted")
async def test_a_forced_tool_is_called_first_and_the_answer_comes(
    hosted: httpx2.AsyncClient, server: str
) -> None:
    tools = [mcp(server, require_approval="never"), SEARCH]
    for choice, kind in (
        ({"type": "mcp", "server_label": "srv", "name": "say"}, "mcp_call"),
        ({"type": "web_search_preview"}, "web_search_call"),
    ):
        response = await post(hosted, input="Hi", tools=tools, tool_choice=choice)
        assert kind in types(response), (choice, response["output"])
        assert types(response)[-1] == "message"
        assert response["tool_choice"] == choice


@pytest.mark.slow
async def test_a_server_that_is_not_there_is_told_and_costs_nothing_else(
    hosted: httpx2.AsyncClient,
) -> None:
    tools = [mcp("http://127.0.0.1:9/mcp")]
    response = await post(hosted, input="Hi", tools=tools)
    assert types(response) == ["mcp_list_tools", "message"]
    assert response["output"][0]["error"]
    choice = {"type": "mcp", "server_label": "srv"}
    error = await refused(hosted, input="Hi", tools=tools, tool_choice=choice)
    assert (error["code"], error["param"]) == ("tool_not_available", "tool_choice")
    unknown = {"type": "mcp", "server_label": "nobody"}
    assert (await refused(hosted, input="Hi", tools=[unknown]))["param"].startswith("tools[0]")


async def test_tools_count_as_input(hosted: httpx2.AsyncClient, server: str) -> None:
    async def count(tools: list[Json], **more: Any) -> int:
        body = {"model": MODEL, "input": "Hi", "tools": tools, **more}
        answer = await hosted.post("/v1/responses/input_tokens", json=body)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["input_tokens"])

    bare = await count([])
    assert await count([SEARCH]) > bare + 300
    assert await count([PYTHON]) > bare + 80
    assert await count([mcp(server)]) > bare + 100
    assert await count([SEARCH, mcp(server)], tool_choice="none") < bare + 20


async def row_of(hosting: RunningGateway, response: Json) -> Any:
    """What the database has of a response."""
    one = "SELECT request, body FROM responses WHERE id = :id"
    async with hosting.process.foundation.database.owner_transaction() as connection:
        uuid = ids.parse_response_id(response["id"])
        return (await connection.execute(Statement(one), {"id": uuid})).one()


@pytest.mark.parametrize("kind", ["previous_response_id", "conversation"])
async def test_urls_that_the_user_named_before_may_be_opened_beside_other_tools(
    hosted: httpx2.AsyncClient, hosting: RunningGateway, kind: str
) -> None:
    said = "Remember https://quagga.example/herd?page=1."
    if kind == "conversation":
        made = (await hosted.post("/v1/conversations", json={})).json()["id"]
        await post(hosted, input=said, conversation=made)
    else:
        made = (await post(hosted, input=said))["id"]
    asked = {"input": "And https://zebra.example/.", "tools": [SEARCH, PYTHON], kind: made}
    row = await row_of(hosting, await post(hosted, **asked))
    browser = orjson.loads(row.request)["grants"]["browser"]
    assert browser["opens"] == "known"
    assert {"https://quagga.example/herd?page=1", "https://zebra.example/"} <= {*browser["urls"]}


@pytest.mark.slow
async def test_no_secret_of_a_request_is_shown_or_kept_in_the_open(
    hosted: httpx2.AsyncClient, hosting: RunningGateway, server: str
) -> None:
    secrets = {"headers": {"x-key": "canary-1"}, "authorization": "canary-2"}
    tools = [mcp(f"{server}?key=canary-3", require_approval="never", **secrets)]
    asked = steps('mcp srv.say {"text": "Hello"}; quote')
    response = await post(hosted, input=asked, tools=tools, background=False)
    (tool,) = response["tools"]
    assert (tool["headers"], tool["server_url"].endswith("/<redacted>")) == (None, True)
    assert "canary" not in str(response)
    told = await post(hosted, input=steps("mcp srv.headers {}; quote"), tools=tools)
    assert "canary-1" in str(told["output"]), "the server was sent them"
    row = await row_of(hosting, response)
    assert b"canary" not in row.request
    assert b"canary" not in row.body


STRICT: Json = {
    "type": "function",
    "name": "f",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    },
}
ONLY_PYTHON = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "code_interpreter"}]}


@pytest.mark.requirement("choice.hosted")
@pytest.mark.parametrize(
    ("choice", "kinds"),
    [
        ("auto", ["web_search_call", "message"]),
        ("required", ["web_search_call", "message"]),
        ("none", ["message"]),
        ({"type": "code_interpreter"}, ["code_interpreter_call", "message"]),
        (ONLY_PYTHON, ["code_interpreter_call", "message"]),
        ({"type": "function", "name": "f"}, ["function_call"]),
    ],
    ids=str,
)
async def test_a_choice_holds_whatever_the_model_would_rather_do(
    hosted: httpx2.AsyncClient, choice: Any, kinds: list[str]
) -> None:
    asked = {"tools": [SEARCH, STRICT, PYTHON], "tool_choice": choice}
    response = await post(hosted, input=steps("search quagga; say Done"), **asked)
    assert types(response) == kinds


async def test_one_call_at_a_time_may_be_several_one_after_the_other(
    hosted: httpx2.AsyncClient,
) -> None:
    asked = steps("search quagga; search zebra; say Done")
    response = await post(hosted, input=asked, tools=[SEARCH], parallel_tool_calls=False)
    assert types(response) == ["web_search_call", "web_search_call", "message"]


async def test_an_answer_in_a_format_comes_after_the_tools(hosted: httpx2.AsyncClient) -> None:
    form = {"type": "json_schema", "name": "a", "strict": True, "schema": STRICT["parameters"]}
    response = await post(
        hosted, input=steps("search quagga"), tools=[SEARCH], text={"format": form}
    )
    assert types(response) == ["web_search_call", "message"]
    assert isinstance(orjson.loads(text(response))["a"], int)


@pytest.mark.slow
@pytest.mark.requirement("control.hosted-run")
async def test_the_sdk_reads_what_tools_did_and_sends_it_again(
    hosting: RunningGateway, server: str
) -> None:
    said = 'search quagga; open first; python print(7 * 6); mcp srv.add {"a": 1, "b": 2}; '
    tools: Any = [SEARCH, PYTHON, mcp(server, require_approval="never")]
    async with AsyncOpenAI(base_url=f"{hosting.url}/v1", api_key=hosting.key) as client:
        asked = steps(f"{said}mcp srv.boom {{}}; cite")
        async with client.responses.stream(model=MODEL, input=asked, tools=tools) as stream:
            async for _ in stream:
                pass
            first = await stream.get_final_response()
        kinds = [item.type for item in first.output if item.type != "reasoning"]
        assert kinds == [
            *("mcp_list_tools", "web_search_call", "web_search_call", "code_interpreter_call"),
            *("mcp_call", "mcp_call", "message"),
        ]
        assert [tool.type for tool in first.tools] == [tool["type"] for tool in tools]
        replayed: Any = [item.model_dump(exclude_none=True) for item in first.output]
        more = [*replayed, {"role": "user", "content": "Go on."}]
        second = await client.responses.create(model=MODEL, input=more, tools=tools, store=False)
        assert [item.type for item in second.output] == ["reasoning", "message"]
        conversation = await client.conversations.create(items=replayed)
        page = await client.conversations.items.list(conversation.id, order="asc")
        assert [item.type for item in page.data] == [item.type for item in first.output]
