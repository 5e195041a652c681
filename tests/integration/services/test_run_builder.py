"""What a run is given: rules, prompt, budget, priority, and who may read its reasoning."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gateway import ids
from gateway.errors import ContextLengthExceeded, ConversationLocked, InvalidRequest, KeyTaken
from gateway.metering import NOBODY
from gateway.models.harmony.harmony_format import HarmonyFormat
from gateway.models.harmony.tool_typescript import DEPTH_MAX
from gateway.protocol.grants import ToolBudget
from gateway.sealing import Binding, Sealer, SealingSecret, Unsealed
from gateway.services.executor import ThreadExecutor
from gateway.services.models import Models
from gateway.services.runs.history_source import HistorySource
from gateway.services.runs.run_builder import DueSummary, PromptExecutor, RunBuilder
from gateway.services.runs.spec_builder import CreateCommand, SpecBuilder
from gateway.services.runs.tool_grants import ToolGrants
from gateway.settings.sections import Harmony
from gateway.telemetry.metrics import Metrics
from gateway.tenancy import Principal, ProjectTerms
from gateway.tenancy.policy import ZERO_RETENTION, TenantPolicy
from gateway.upstreams.backend import Backend
from gateway.upstreams.http.client import KeepAlivePolicy, build_client
from gateway.upstreams.pool import Pool, PoolPolicy
from gateway.upstreams.tokenization import Tokenization
from tests.conftest import new_tenant
from tests.fakes.create_bodies import CUSTOM, FUNCTION, NAMESPACE, SCHEMA, STRICT, parse
from tests.fakes.harmony_oracle import spelled, vocabulary
from tests.fakes.staged_run import ANSWER as SUMMARY
from tests.fakes.staged_run import says
from tests.fakes.summarising import SummaryDesk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.engine.run_spec import RunSpec
    from gateway.store.postgres.database import Database

MODEL, CONTEXT_LENGTH = "gpt-oss-20b", 600
SEALER = Sealer([SealingSecret("k", b"sixteen bytes or more")])
PLAIN = TenantPolicy()
GENEROUS = TenantPolicy(service_tier_max="priority", reasoning_budget_tokens=100)
SAID = (200006, 173781, 200005, 35644, 200008, 64, 65, 66, 200007)

NESTED: dict[str, Any] = {}
"""Deeper than a prompt may show it."""
for _ in range(DEPTH_MAX + 1):
    NESTED = {"type": "object", "properties": {"a": NESTED}}


class Desk:
    """Prepares requests of one tenant."""

    def __init__(self, builder: RunBuilder, models: Models, principal: Principal) -> None:
        self.builder = builder
        self.models = models
        self.principal = principal

    async def prepare(self, **body: Any) -> RunSpec:
        built = await self.build(**body)
        if not isinstance(built, DueSummary):
            return built
        assert built.run_input.history.conversation is None
        async with self.builder.summarised(built) as spec:
            return spec

    async def build(self, *, generate: bool = True, **body: Any) -> RunSpec | DueSummary:
        request = parse(**{"model": MODEL, "input": "hi", **body})
        command = CreateCommand(self.principal, request, None, 0, 0.0, generate=generate)
        model = self.models.get(request.model)
        return await self.builder.build(command, model)


@asynccontextmanager
async def desk(
    database: Database, policy: TenantPolicy = PLAIN, summaries: SummaryDesk | None = None
) -> AsyncIterator[Desk]:
    backend = Backend(
        "b0", "http://127.0.0.1:9", models={MODEL: MODEL}, context_lengths={MODEL: CONTEXT_LENGTH}
    )
    client = build_client(keep_alive=KeepAlivePolicy(connections_max=1, expiry_s=1))
    pool = Pool([backend], client, policy=PoolPolicy(), metrics=Metrics())
    principal = Principal(await new_tenant(database), "acme", ids.new_uuid(), policy)
    models = Models(
        pool, lambda _: HarmonyFormat(vocabulary()), aliases={"alias": MODEL}, efforts={}, tasks={}
    )
    specs = SpecBuilder(
        system_message=Harmony(identity="You.", date="off"), cache_salt_key=b"salt", sealer=SEALER
    )
    with closing(ThreadExecutor(threads_max=1, inline_bytes_max=100_000)) as threads:
        tokenization = Tokenization(pool, timeout_s=5.0, attempts_max=1)
        builder = RunBuilder(
            history_source=HistorySource(database, depth_max=9, items_max=99),
            models=models,
            specs=specs,
            compactor=(summaries or SummaryDesk()).compactor(SEALER),
            tool_grants=ToolGrants(None, ToolBudget()),
            executor=PromptExecutor(threads, specs.work_bytes, tokenization),
        )
        yield Desk(builder, models, principal)
    await pool.close()


async def test_a_request_without_demands_has_none(shared_database: Database) -> None:
    async with desk(shared_database) as at:
        plain = await at.prepare(tools=[FUNCTION])
    assert plain.rules.allowed == {"f"}
    assert (plain.reasoning_budget, plain.priority) == (None, 0)
    assert plain.head.binding is None
    assert plain.head.echo["service_tier"] == "default"
    assert plain.sampling.max_tokens == CONTEXT_LENGTH - len(plain.prompt_ids)
    assert "# Response Formats" not in spelled(plain.prompt_ids)


async def test_tools_of_every_kind_are_told_as_functions(shared_database: Database) -> None:
    tools = [{"type": "web_search"}, NAMESPACE, {"type": "shell"}, CUSTOM]
    async with desk(shared_database) as at:
        told = await at.prepare(tools=tools)
        untold = await at.prepare(tools=tools, tool_choice="none")
    prompt = spelled(told.prompt_ids)
    assert [name for name in ("ns.m", "ns.n", "shell", "c") if f"type {name} = (" in prompt] == [
        *("ns.m", "ns.n", "shell", "c")
    ]
    assert set(told.rules.tools) == {"ns.m", "ns.n", "shell", "c"}
    assert "namespace functions" not in spelled(untold.prompt_ids)
    assert untold.rules.calls == "none"


async def test_of_tools_that_may_not_be_called_the_model_is_told_all_the_same(
    shared_database: Database,
) -> None:
    choice = {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]}
    async with desk(shared_database) as at:
        bound = await at.prepare(tools=[FUNCTION, STRICT], tool_choice=choice)
        free = await at.prepare(tools=[FUNCTION, STRICT])
    assert bound.rules.allowed == {"f"}
    assert bound.prompt_ids == free.prompt_ids


async def test_the_format_of_the_answer_is_in_the_prompt_and_in_the_rules(
    shared_database: Database,
) -> None:
    async with desk(shared_database) as at:
        asked = await at.prepare(text={"format": SCHEMA})
    assert asked.rules.answer is not None
    assert "# Response Formats\n\n## answer\n\n{" in spelled(asked.prompt_ids)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": {"format": {**SCHEMA, "strict": True, "schema": {"type": 7}}}}, "text.format"),
        ({"tools": [{**FUNCTION, "parameters": {"type": "nothing"}, "strict": True}]}, "tools"),
        (
            {
                "tools": [
                    {**CUSTOM, "format": {"type": "grammar", "syntax": "lark", "definition": "("}}
                ]
            },
            "tools",
        ),
        ({"tools": [NAMESPACE, {**FUNCTION, "parameters": NESTED}]}, "tools[1].parameters"),
    ],
)
async def test_what_cannot_be_checked_is_refused_before_a_token_is_spent(
    shared_database: Database, body: dict[str, Any], param: str
) -> None:
    async with desk(shared_database) as at:
        with pytest.raises(InvalidRequest) as caught:
            await at.prepare(**body)
    assert (caught.value.param or "").startswith(param)


async def test_tier_and_budget_are_as_the_policy_has_them(shared_database: Database) -> None:
    async with desk(shared_database, GENEROUS) as at:
        fast = await at.prepare(service_tier="priority")
        slow = await at.prepare(service_tier="flex", reasoning={"max_tokens": 40})
        short = await at.prepare(max_output_tokens=40)
    assert (fast.head.echo["service_tier"], fast.reasoning_budget) == ("priority", 100)
    assert (slow.head.echo["service_tier"], slow.reasoning_budget) == ("flex", 40)
    assert fast.priority > 0 > slow.priority
    assert short.reasoning_budget == 21


async def test_a_tenant_may_be_shown_no_summaries(shared_database: Database) -> None:
    asked = {"reasoning": {"summary": "concise"}}
    async with desk(shared_database) as at:
        shown = await at.prepare(**asked)
    async with desk(shared_database, TenantPolicy(reasoning_summary="off")) as at:
        silent = await at.prepare(**asked)
    assert (shown.rules.summary, shown.head.echo["reasoning"]["summary"]) == ("concise", "concise")
    assert (silent.rules.summary, silent.head.echo["reasoning"]["summary"]) == ("off", None)


async def test_reasoning_is_sealed_for_the_tenant_and_the_model_that_answers(
    shared_database: Database,
) -> None:
    async with desk(shared_database) as at:
        asked = await at.prepare(model="alias", include=["reasoning.encrypted_content"])
    assert asked.head.binding == Binding(at.principal.tenant_id, MODEL, "k")


def thought(seal: str | None) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": seal}


QUESTION = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "hello"}


async def test_sealed_reasoning_is_in_the_prompt_as_the_model_said_it(
    shared_database: Database,
) -> None:
    async with desk(shared_database) as at:
        seal = SEALER.seal(Binding(at.principal.tenant_id, MODEL, "k"), Unsealed(ids=SAID).content)
        asked = await at.prepare(input=[QUESTION, thought(seal), QUESTION])
        stale = await at.prepare(input=[QUESTION, thought(seal), ANSWER, QUESTION])
        left_out = await at.prepare(
            truncation="auto", input=[QUESTION, thought(seal), {**QUESTION, "content": "a " * 545}]
        )
    assert tuple(asked.added[1].ids or ()) == SAID
    assert str(list(SAID))[1:-1] in str(asked.prompt_ids)
    assert str(list(SAID))[1:-1] not in str(stale.prompt_ids)
    assert str(list(SAID))[1:-1] not in str(left_out.prompt_ids)
    assert all(item.ids for item in left_out.added)


async def test_truncation_leaves_room_for_an_answer(shared_database: Database) -> None:
    turns = [QUESTION, ANSWER] * 200
    async with desk(shared_database) as at:
        cut = await at.prepare(truncation="auto", input=[*turns, QUESTION])
        asked = await at.prepare(truncation="auto", input=[*turns, QUESTION], max_output_tokens=200)
        last = await at.prepare(truncation="auto", input="a " * 540, max_output_tokens=200)
    assert cut.sampling.max_tokens >= CONTEXT_LENGTH // 16
    assert asked.sampling.max_tokens == 200
    assert 0 < last.sampling.max_tokens < CONTEXT_LENGTH // 16


async def test_reasoning_that_was_sealed_for_others_is_refused(shared_database: Database) -> None:
    seal = SEALER.seal(Binding(ids.new_uuid(), MODEL, "k"), Unsealed(ids=SAID).content)
    async with desk(shared_database) as at:
        with pytest.raises(InvalidRequest) as caught:
            await at.prepare(input=[QUESTION, thought(seal)])
    assert caught.value.code == "invalid_encrypted_content"
    assert caught.value.param == "input[1].encrypted_content"


async def test_a_prompt_that_leaves_no_room_is_refused(shared_database: Database) -> None:
    async with desk(shared_database) as at:
        with pytest.raises(ContextLengthExceeded):
            await at.prepare(input="a " * 600)


def told(*texts: str) -> list[dict[str, Any]]:
    """A conversation that the user begins."""
    return [
        {"role": ("user", "assistant")[place % 2], "content": text}
        for place, text in enumerate(texts)
    ]


TRIGGER = {"type": "compaction_trigger"}
SHARED = [{"type": "compaction"}]


async def test_the_threshold_is_a_share_of_the_window(shared_database: Database) -> None:
    summaries = SummaryDesk(says(SUMMARY))
    async with desk(shared_database, summaries=summaries) as at:
        short = await at.prepare(input=told("hi", "word " * 100, "and?"), context_management=SHARED)
        long = await at.prepare(input=told("hi", "word " * 300, "and?"), context_management=SHARED)
        unmanaged = await at.prepare(input=told("hi", "word " * 300, "and?"))
    assert (short.compacted, unmanaged.compacted) == (None, None)
    assert long.compacted is not None
    assert long.compacted.output_tokens > 0
    assert "word" in spelled(unmanaged.prompt_ids)
    assert "word" not in spelled(long.prompt_ids)
    assert "Hello there" in spelled(long.prompt_ids)
    assert summaries.booked == []


async def test_what_no_compaction_would_make_shorter_is_left(shared_database: Database) -> None:
    async with desk(shared_database) as at:
        plain = await at.prepare(input="word " * 400, context_management=SHARED)
    assert plain.compacted is None


async def test_a_run_has_its_input_only_where_somebody_asks_for_it_again(
    shared_database: Database,
) -> None:
    async with desk(shared_database) as at:
        kept = await at.prepare(input="hi")
        forgotten = await at.prepare(input="hi", store=False)
    assert [item.kind for item in kept.added] == ["message"]
    assert forgotten.added == ()
    assert forgotten.prompt_ids == kept.prompt_ids


async def test_a_trigger_leaves_nothing_to_be_generated(shared_database: Database) -> None:
    async with desk(shared_database, summaries=SummaryDesk(says(SUMMARY))) as at:
        asked = await at.prepare(input=[*told("hi"), TRIGGER])
    assert asked.compacted is not None
    assert asked.sampling.max_tokens == 0
    assert [item.kind for item in asked.added] == ["message"]


async def test_a_summary_without_room_is_not_begun(shared_database: Database) -> None:
    summaries = SummaryDesk(says(SUMMARY), says(SUMMARY))
    async with desk(shared_database, summaries=summaries) as at:
        await at.prepare(input=[*told("hi", "word " * 100, "and?"), TRIGGER])
        asked = len(summaries.tokens.requests[0].prompt_ids)
        words = "word " * (100 + CONTEXT_LENGTH - asked - 15)
        with pytest.raises(ContextLengthExceeded, match="no room for its summary"):
            await at.prepare(input=[*told("hi", words, "and?"), TRIGGER])
        cut = await at.prepare(input=[*told("hi", words, "and?"), TRIGGER], truncation="auto")
    assert cut.compacted is not None
    assert "word" not in spelled(summaries.tokens.requests[1].prompt_ids)


async def test_there_is_nothing_to_compact_in_nothing(shared_database: Database) -> None:
    async with desk(shared_database) as at:
        with pytest.raises(InvalidRequest, match="nothing to compact"):
            await at.prepare(input=[TRIGGER])


async def test_a_summary_for_what_cannot_be_prepared_is_booked(shared_database: Database) -> None:
    summaries = SummaryDesk(says("<|channel|>final<|message|>" + "word " * 300 + "<|return|>"))
    async with desk(shared_database, summaries=summaries) as at:
        with pytest.raises(ContextLengthExceeded, match="exceeds the context window"):
            await at.prepare(
                input=told("user " * 280, "word " * 20, "and?"), context_management=SHARED
            )
    assert summaries.booked == ["completed"]


@pytest.mark.parametrize(
    "error", [ConversationLocked(), KeyTaken(), asyncio.CancelledError()], ids=repr
)
async def test_a_summary_for_what_is_not_accepted_is_booked(
    shared_database: Database, error: BaseException
) -> None:
    summaries = SummaryDesk(says(SUMMARY))
    async with desk(shared_database, summaries=summaries) as at:
        built = await at.build(input=[*told("hi"), TRIGGER])
        assert isinstance(built, DueSummary)
        with pytest.raises(type(error)):
            async with at.builder.summarised(built):
                raise error
    assert summaries.booked == ["completed"]


async def test_a_summary_is_made_only_after_its_run_was_found_acceptable(
    shared_database: Database,
) -> None:
    summaries = SummaryDesk(says(SUMMARY))
    async with desk(shared_database, summaries=summaries) as at:
        built = await at.build(input=[*told("hi"), TRIGGER])
        assert summaries.tokens.requests == []
        assert isinstance(built, DueSummary)
        async with at.builder.summarised(built):
            assert len(summaries.tokens.requests) == 1


async def test_what_is_not_to_be_generated_is_not_summarised(shared_database: Database) -> None:
    summaries = SummaryDesk(says(SUMMARY))
    long = told("hi", "word " * 300, "and?")
    async with desk(shared_database, summaries=summaries) as at:
        managed = await at.prepare(input=long, context_management=SHARED, generate=False)
        triggered = await at.prepare(input=[*long, TRIGGER], generate=False)
    assert summaries.tokens.requests == []
    for spec in (managed, triggered):
        assert spec.compacted is None
        assert spec.sampling.max_tokens == 0
        assert len(spec.added) == 3


async def test_a_summary_that_would_be_in_vain_is_not_made(shared_database: Database) -> None:
    """What users said stays, and is too long alone."""
    summaries = SummaryDesk(says(SUMMARY))
    words = told("user " * CONTEXT_LENGTH, "word " * 20, "and?")
    async with desk(shared_database, summaries=summaries) as at:
        with pytest.raises(ContextLengthExceeded, match="exceeds the context window"):
            await at.prepare(input=words, context_management=SHARED)
    assert summaries.tokens.requests == []


async def test_a_trigger_asks_for_no_room_for_an_answer(shared_database: Database) -> None:
    """With `truncation: auto` what users said is left out of the summary, and stays in the list."""
    summaries = SummaryDesk(says(SUMMARY))
    words = told("user " * 520, "Hm.", "and?")
    async with desk(shared_database, summaries=summaries) as at:
        asked = await at.prepare(input=[*words, TRIGGER], truncation="auto")
        assert asked.compacted is not None
    assert len(asked.added) == 3
    assert summaries.booked == []


async def test_of_whom_nothing_is_kept_nobody_is_metered_and_no_prefix_is_found_again(
    shared_database: Database,
) -> None:
    said = {"user": "grace", "metadata": {"team": "red"}, "store": False}
    async with desk(shared_database, replace(PLAIN, usage_tags="team")) as at:
        kept = [await at.prepare(**said) for _ in range(2)]
        unkept = []
        for changed in (
            {"retention_type": ZERO_RETENTION},
            {"project_terms": ProjectTerms(retention_type=ZERO_RETENTION)},
            {"retention_type": ZERO_RETENTION, "end_user": "grace"},
        ):
            quiet = Desk(at.builder, at.models, replace(at.principal, **changed))
            unkept += [await quiet.prepare(**said) for _ in range(2)]
    assert kept[0].who.end_user is not None
    assert kept[0].who.tags == {"team": "red"}
    assert kept[0].cache_salt == kept[1].cache_salt
    assert [one.who for one in unkept] == [NOBODY] * 6
    assert len({one.cache_salt for one in (*kept, *unkept)}) == 7
