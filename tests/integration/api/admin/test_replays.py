"""A stored response made anew: prompt, replay, forks at any token, a line of the corpus."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gateway import ids
from gateway.admin.replays import CONTINUED
from gateway.entries import Finished, Queued, Tokens, TurnEnded, TurnStarted, pack
from gateway.generation import FinishReason
from gateway.models.harmony.harmony_format import HarmonyFormat
from gateway.protocol.context_item import StoredItem
from gateway.services.runs import regeneration
from gateway.store import messages, responses
from gateway.store.postgres.statements import Statement
from gateway.upstreams.admission.slots import WorkClass, class_of
from gateway.wiring.admin import operator_services
from tests.fakes.harmony_script import harmony, parse_chunks, script_ids
from tests.fakes.http_client import http_client
from tests.fakes.stored import durable_response
from tests.integration.api.test_compaction import LONG, MANAGED
from tests.integration.api.tools.test_brought_tools import OPEN_TAB, QUESTION, SEARCH, found, search
from tests.unit.models.harmony.test_parsing_corpus import _item

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from gateway.entries import Entry
    from gateway.models.format import TokenPart
    from tests.fakes.observation import Backends
    from tests.integration.api.admin.conftest import Desk

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
SECRET = "what the answer quotes"
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture
async def open_desk(desk: Desk) -> AsyncIterator[Desk]:
    """The tenant lets operators read what it says."""
    await desk.allow("always")
    yield desk
    await desk.allow(None)


async def replayed(desk: Desk, made: dict[str, Any], status: int = 200, **body: Any) -> Any:
    path = f"/admin/v1/responses/{made['id']}/replay"
    answer = await desk.operator.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def revealed(desk: Desk, **options: Any) -> dict[str, Any]:
    made = await desk.create(**options)
    assert (await desk.reveal(made)).is_success
    return made


def ids_of(runs: list[dict[str, Any]]) -> list[int]:
    return [token[0] for run in runs for token in run["tokens"]]


async def sent(backends: Backends, name: str) -> list[list[int]]:
    """The prompts of the requests whose name begins so, in their order."""
    rows = await backends.seen(name)
    return [row["prompt_ids"] for row in sorted(rows, key=lambda row: row["request_id"])]


async def last_continuation(backends: Backends) -> list[int]:
    return (await sent(backends, "continuation-"))[-1]


async def check_prompt(
    desk: Desk, backends: Backends, made: dict[str, Any], *, is_counted: bool = True
) -> None:
    """What a replay sends is what the run sent; the prompt that is shown is that, too."""
    assert (await desk.reveal(made)).is_success
    first, *_ = await sent(backends, made["id"].removeprefix("resp_"))
    got = await replayed(desk, made)
    assert await last_continuation(backends) == first
    facts = {"tokens": len(first), "expected_tokens": len(first) if is_counted else None}
    assert {name: got["prompt"][name] for name in facts} == facts
    assert got["first_difference"] is None, got
    shown = await desk.get(made, "/prompt?limit=100")
    assert {name: shown[name] for name in facts} == facts
    assert sum(one["tokens"] for one in shown["data"]) == len(first)
    spelled = b"".join(piece.spelling for piece in harmony().anatomy(first)).decode()
    assert "".join(one["text"] for one in shown["data"]) == spelled


@pytest.mark.parametrize("background", [True, False])
async def test_a_replay_sends_the_same_prompt_and_says_the_same(
    open_desk: Desk, backends: Backends, background: bool
) -> None:
    options: list[dict[str, Any]] = [
        {"seed": 7, "temperature": 0.3, "reasoning": {"effort": "high"}},
        {"instructions": "Be brief.", "tools": [WEATHER], "tool_choice": "required"},
        {"text": {"format": {"type": "json_schema", "name": "number", "schema": SCHEMA}}},
    ]
    for one in options:
        made = await open_desk.create(background=background, **one)
        await check_prompt(open_desk, backends, made)


async def test_its_context_is_what_it_was_then(open_desk: Desk, backends: Backends) -> None:
    first = await open_desk.create(input="One", instructions="Only for the first.")
    second = await open_desk.create(input="Two", previous_response_id=first["id"], background=True)
    third = await open_desk.create(input="Three", previous_response_id=second["id"])
    opened = (await open_desk.user.post("/v1/conversations", json={})).json()["id"]
    early = await open_desk.create(input="Early", conversation=opened)
    late = await open_desk.create(input="Late", conversation=opened, background=True)
    for made in (second, third, early, late, first):
        await check_prompt(open_desk, backends, made)
    shown = await open_desk.get(third, "/prompt?limit=1")
    rest = await open_desk.get(third, "/prompt?after=0&limit=100")
    assert (shown["has_more"], rest["has_more"]) == (True, False)
    assert [one["index"] for one in rest["data"]] == list(range(1, shown["count"]))
    assert next(one["label"] for one in rest["data"]) == "user"
    cached = third["usage"]["input_tokens_details"]["cached_tokens"]
    assert sum(one["cached"] for one in (*shown["data"], *rest["data"])) == cached > 0
    assert (await open_desk.user.delete(f"/v1/responses/{first['id']}")).is_success
    gone = await open_desk.get(third, "/prompt", 400)
    assert gone["error"]["code"] == "previous_response_not_found"


async def test_a_context_that_was_summarised_or_brings_tools_is_as_it_was(
    open_desk: Desk, backends: Backends
) -> None:
    story = await open_desk.create(input=LONG, instructions="Be kind.")
    managed = {"previous_response_id": story["id"], "context_management": MANAGED}
    made = story
    for background in (True, False):
        made = await open_desk.create(input="And then?", background=background, **managed)
        assert made["output"][0]["type"] == "compaction"
        # The items do not tell the tokens of the summary from those of the prompt.
        await check_prompt(open_desk, backends, made, is_counted=background)
    after = await open_desk.create(input="And now?", previous_response_id=made["id"])
    await check_prompt(open_desk, backends, after)
    brought = [QUESTION, search(), found(OPEN_TAB)]
    loaded = await open_desk.create(input=brought, tools=[SEARCH], background=True)
    later = await open_desk.create(
        input="And now?", tools=[SEARCH], previous_response_id=loaded["id"]
    )
    for made in (loaded, later):
        await check_prompt(open_desk, backends, made)


async def test_a_long_prompt_is_spelled_in_a_thread(
    open_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    spell, on_loop = HarmonyFormat.anatomy, []

    def noted(format_: HarmonyFormat, ids: Sequence[int], part: TokenPart = "role") -> Any:
        if len(ids) > 1000:
            on_loop.append(threading.current_thread() is threading.main_thread())
        return spell(format_, ids, part)

    made = await revealed(open_desk, input="word " * 6000)
    monkeypatch.setattr(HarmonyFormat, "anatomy", noted)
    shown = await open_desk.get(made, "/prompt")
    assert max(one["tokens"] for one in shown["data"]) > 6000
    assert on_loop == [False]


@pytest.mark.slow
async def test_a_context_that_was_cut_is_cut_again(open_desk: Desk, backends: Backends) -> None:
    turns = [
        {"role": "user", "content": "first " + "word " * 100_000},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "second " + "word " * 60_000},
    ]
    made = await open_desk.create(input=turns, truncation="auto")
    assert (await open_desk.reveal(made)).is_success
    (first,) = await sent(backends, made["id"].removeprefix("resp_"))
    await replayed(open_desk, made)
    assert await last_continuation(backends) == first


async def test_a_fork_goes_on_from_any_token_with_words_of_the_operator(
    open_desk: Desk, backends: Backends
) -> None:
    made = await revealed(open_desk, background=True)
    (prompt,) = await sent(backends, made["id"].removeprefix("resp_"))
    tokens = ids_of((await open_desk.get(made, "/tokens"))["data"])
    for at in (3, 20, len(tokens) - 1):
        got = await replayed(open_desk, made, at=at, backend="b0")
        assert (got["backend"], got["at"], got["first_difference"]) == ("b0", at, None)
        assert await last_continuation(backends) == [*prompt, *tokens[:at]]
        assert ids_of(got["replayed"]) == ids_of(got["original"]) == tokens[at:]
        assert got["replayed"][0]["first"] == at
    words = "<|end|> No.\u202e"
    got = await replayed(open_desk, made, at=20, text=words, temperature=0, seed=5)
    forced = await last_continuation(backends)
    assert forced == [*prompt, *tokens[:20], *harmony().encode(words)]
    assert max(harmony().encode(words)) < 199_998, "no text becomes a marker"
    assert got["first_difference"] == 0
    assert got["replayed"][0]["prefill"]
    assert [run["part"] for run in got["replayed"][:2]] == ["body", "body"]
    for name, value, code in (
        ("at", len(tokens), "invalid_value"),
        ("at", 10**9, "invalid_value"),
        ("at", -1, "integer_below_min_value"),
        ("temperature", 3, "decimal_above_max_value"),
        ("seed", 2**63, "integer_above_max_value"),
        ("backend", "b9", "invalid_value"),
    ):
        refused = (await replayed(open_desk, made, 400, **{name: value}))["error"]
        assert (refused["param"], refused["code"]) == (name, code)
        assert name != "backend" or "b0, b1" in refused["message"]


async def test_behind_a_hosted_tool_a_fork_has_its_result_before_it(
    open_desk: Desk, backends: Backends
) -> None:
    made = await revealed(
        open_desk,
        background=True,
        input="[[sim steps=python print(6 * 7); quote]]",
        tools=[{"type": "code_interpreter", "container": {"type": "auto"}}],
    )
    first, second = await sent(backends, made["id"].removeprefix("resp_"))
    got = await replayed(open_desk, made)
    assert (await last_continuation(backends), got["first_difference"]) == (first, None)
    assert ids_of(got["replayed"])[-1:] == script_ids("<|call|>")
    assert got["prompt"]["expected_tokens"] == len(first)
    runs = (await open_desk.get(made, "/tokens"))["data"]
    behind = next(run["first"] for run in runs if run["turn"] == 1)
    got = await replayed(open_desk, made, at=behind + 2)
    tokens = ids_of(runs)
    assert (got["turn"], got["first_difference"]) == (1, None)
    assert await last_continuation(backends) == [*second, *tokens[behind : behind + 2]]
    # Of one whose log is gone the items tell it, the result of the tool among them.
    plain = await revealed(
        open_desk,
        input="[[sim steps=python print(6 * 7); quote]]",
        tools=[{"type": "code_interpreter", "container": {"type": "auto"}}],
    )
    got = await replayed(open_desk, plain)
    assert (got["source"], got["first_difference"]) == ("items", None)
    assert got["prompt"]["expected_tokens"] is None, "all turns are counted together"


async def test_when_the_log_is_gone_its_items_are_compared(
    open_desk: Desk, backends: Backends
) -> None:
    made = await revealed(open_desk, background=True)
    logged = await replayed(open_desk, made)
    fork = await replayed(open_desk, made, at=30)
    prompt = await last_continuation(backends)
    database = open_desk.site.gateway.process.foundation.database
    gone = {"id": ids.parse_response_id(made["id"])}
    async with database.owner_transaction() as connection:
        await connection.execute(Statement("DELETE FROM events WHERE response_id = :id"), gone)
    # The view of another response takes the place of the one that was kept.
    await open_desk.get(await revealed(open_desk, background=True), "/tokens")
    got = await replayed(open_desk, made)
    assert (logged["source"], got["source"]) == ("log", "items")
    assert got["first_difference"] is None
    assert ids_of(got["replayed"]) == ids_of(logged["replayed"])
    assert got["prompt"] == logged["prompt"]
    # Of an item the opening of its message is a part, which the prompt ends with.
    got = await replayed(open_desk, made, at=32)
    assert ids_of(got["replayed"]) == ids_of(fork["replayed"])
    assert await last_continuation(backends) == prompt


async def test_it_is_asked_for_as_the_run_asked_but_last(
    open_desk: Desk, backends: Backends
) -> None:
    made = await revealed(
        open_desk, background=True, seed=7, temperature=0.3, top_p=0.9, max_output_tokens=500,
        tools=[WEATHER], tool_choice="required",
    )  # fmt: skip
    await replayed(open_desk, made)
    await replayed(open_desk, made, at=4, temperature=0.0)
    (run,) = await backends.seen(made["id"].removeprefix("resp_"))
    one, other = sorted(
        await backends.seen("continuation-"), key=lambda row: str(row["request_id"])
    )[-2:]
    same = ("model", "prompt_ids", "sampling", "demand", "cache_salt", "stop_token_ids")
    assert {name: one[name] for name in same} == {name: run[name] for name in same}
    assert class_of(regeneration.PRIORITY, is_background=False) is max(WorkClass)
    assert one["max_tokens"] == run["sent_tokens"] + regeneration.MARGIN_TOKENS
    assert other["sampling"] == {
        **run["sampling"], "temperature": 0.0, "seed": other["sampling"]["seed"]
    }  # fmt: skip
    assert other["sampling"]["seed"] not in {7, None}, "or it would repeat the first numbers"


async def test_what_was_changed_in_the_log_is_the_first_difference(open_desk: Desk) -> None:
    made = await revealed(open_desk, background=True)
    process = open_desk.site.gateway.process
    database = process.foundation.database
    tenants = operator_services(process).tenants
    tenant = (await tenants.get("looked-into")).tenant.id
    uuid = ids.parse_response_id(made["id"])
    assert uuid is not None
    like = await responses.load(database, tenant, uuid)
    assert like is not None
    said = ids_of((await open_desk.get(made, "/tokens"))["data"])
    said[9] = script_ids(" else")[0]
    log: list[Entry] = [Queued(), TurnStarted(5), *(Tokens((token,)) for token in said)]
    log += [TurnEnded(FinishReason.STOP), Finished("completed", 1)]
    history = await messages.history(database, tenant, uuid, depth_max=9, items_max=9)
    assert history is not None
    items = [StoredItem(0, is_output=False, context=history.items[0])]
    new = durable_response(status="completed")
    new = replace(new, request=like.request, entries=(len(log), pack(log)), items=items)
    await responses.insert(database, tenant, new)
    changed = {"id": ids.response_id(new.uuid)}
    assert (await open_desk.reveal(changed)).is_success
    got = await replayed(open_desk, changed)
    assert got["first_difference"] == 9
    assert (got["prompt"]["expected_tokens"], got["prompt"]["tokens"]) == (5, 72)


async def test_who_may_not_read_it_neither_sees_its_prompt_nor_replays_it(desk: Desk) -> None:
    made = await desk.create(background=True)
    paths = ("/prompt", "/corpus")
    assert (await replayed(desk, made, 403))["error"]["code"] == "content_access_denied"
    await desk.allow("always")
    for what in paths:
        assert (await desk.get(made, what, 403))["error"]["code"] == "content_not_revealed"
    assert (await replayed(desk, made, 403))["error"]["code"] == "content_not_revealed"
    created = await desk.operator.post("/admin/v1/operators", json={"name": "s", "role": "support"})
    headers = {"authorization": f"Bearer {created.json()['value']}"}
    async with http_client(desk.site.admin_url, headers=headers) as support:
        path = f"/admin/v1/responses/{made['id']}"
        for answer in (
            await support.post(f"{path}/replay", json={}),
            *[await support.get(path + what) for what in paths],
        ):
            assert answer.json()["error"]["code"] == "insufficient_permissions"
    for unknown in ("resp_7", "resp_" + "0" * 32):
        await replayed(desk, {"id": unknown}, 404)
        for what in paths:
            await desk.get({"id": unknown}, what, 404)
    await desk.allow(None)


async def test_the_tenant_sees_that_it_was_continued_and_nothing_else_is_kept(
    open_desk: Desk,
) -> None:
    made = await revealed(open_desk, background=True)
    before = await kept_rows(open_desk)
    await replayed(open_desk, made, at=4, text=SECRET, temperature=0.5, backend="b1")
    project = (await open_desk.get(made))["project_id"]
    logs = await open_desk.owner.get(
        "/v1/organization/audit_logs",
        params={"event_types[]": CONTINUED, "project_ids[]": project, "limit": 1},
    )
    (entry,) = logs.json()["data"]
    data = {"at": 4, "backend": "b1", "temperature": 0.5, "text_characters": len(SECRET)}
    assert entry[CONTINUED] == {"id": made["id"], "data": data}
    assert SECRET not in logs.text
    assert await kept_rows(open_desk) == before


async def kept_rows(desk: Desk) -> list[int]:
    tables = ("responses", "messages", "events", "usage")
    counts = " + ".join(f"(SELECT count(*) FROM {table})" for table in tables)
    async with desk.site.gateway.process.foundation.database.owner_transaction() as connection:
        return [await connection.scalar(Statement(f"SELECT {counts}"), {})]


ENDLESS = "[[sim tokens=100000 tokens_per_s=50 think=none]]"


async def test_one_replay_at_a_time_ends_with_who_waits_for_it(
    open_desk: Desk, backends: Backends
) -> None:
    endless = {"model": "gpt-oss-20b", "input": ENDLESS, "background": True}
    made = (await open_desk.user.post("/v1/responses", json=endless)).json()
    assert (await open_desk.reveal(made)).is_success
    await replayed(open_desk, made, 400)
    count = 0
    while count < 100:
        count = (await open_desk.get(made, f"/tokens?limit=1&seen={count}"))["count"]
    await open_desk.operator.post(f"/admin/v1/responses/{made['id']}/cancel")
    known = len(await backends.seen("continuation-", with_ids=False))
    path = f"/admin/v1/responses/{made['id']}/replay"
    waiting = asyncio.create_task(open_desk.operator.post(path, json={}))
    await backends.until(lambda rows: len(outcomes(rows, "continuation-")) == known + 1)
    busy = await replayed(open_desk, made, 429)
    assert "running" in busy["error"]["message"]
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await backends.until(lambda rows: outcomes(rows, "continuation-")[-1] == "disconnected")
    async with asyncio.timeout(60):
        while (await open_desk.operator.post(path, json={"at": 10**6})).status_code == 429:
            pass


def outcomes(rows: list[dict[str, Any]], name: str) -> list[str | None]:
    own = (row for row in rows if name in row["request_id"])
    return [row["outcome"] for row in sorted(own, key=lambda row: str(row["request_id"]))]


async def test_after_its_seconds_it_is_shown_as_far_as_it_has_come(
    open_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await revealed(open_desk, input="[[sim tokens=60 tokens_per_s=100]]", background=True)
    monkeypatch.setattr(regeneration, "CONTINUATION_S", 0.4)
    got = await replayed(open_desk, made)
    assert (got["ending"], got["first_difference"]) == ("time", None)
    assert 0 < len(ids_of(got["replayed"])) < len(ids_of(got["original"]))


async def test_of_a_backend_that_breaks_off_the_beginning_is_shown(open_desk: Desk) -> None:
    made = await revealed(open_desk, input="The sea. [[sim die_after=20]]", background=True)
    got = await replayed(open_desk, made)
    assert (got["ending"], got["first_difference"]) == ("broken", None)
    assert len(ids_of(got["replayed"])) == 20


async def test_a_turn_is_a_line_of_the_corpus(open_desk: Desk) -> None:
    made = await revealed(open_desk, background=True, tools=[WEATHER], tool_choice="required")
    plain = await revealed(open_desk, tools=[WEATHER], tool_choice="required")
    for one in (made, plain):
        line = await open_desk.get(one, "/corpus")
        again = parse_chunks([line["tokens"]], FinishReason(line["finish"]))
        assert line["desired"] == [_item(segment) for segment in again.segments]
        assert line["desired"][-1]["type"] == "function_call"
        assert line["tokens"] == script_ids(line["text"])
        assert line["recovery_flags"] == []
    assert (await open_desk.get(made, "/corpus?turn=0"))["id"] == f"{made['id']}-0"
    for one in (made, plain):
        refused = await open_desk.get(one, "/corpus?turn=7", 400)
        assert refused["error"]["param"] == "turn"
