"""A response with demands is gone on with by another replica, wherever its log ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway.constraints.validation import Checker
from gateway.entries import Hold, Hop, Repair, Tokens, TurnEnded, TurnStarted
from gateway.generation import FinishReason, TokenChunk
from gateway.models.harmony.harmony_format import answer_header
from gateway.models.harmony.tokenizer import ASSISTANT, MESSAGE
from gateway.protocol.call_items import call_fields
from gateway.protocol.responses.response_rules import rules_of
from tests.fakes.harmony_script import harmony, script_ids, vocabulary
from tests.fakes.replica import background, folded, leave_behind, load, log_of, replica, shown_text
from tests.fakes.response_heads import ECHO
from tests.fakes.staged_run import STOP
from tests.fakes.stored import let_time_pass
from tests.fakes.wayward_model import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Collection

    from gateway.engine.run_spec import RunSpec
    from gateway.entries import Entry
    from gateway.generation import TokenRequest, TokenSink
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

FORMAT: dict[str, Any] = {
    "type": "json_schema", "name": "n", "schema": SCHEMA, "description": None, "strict": True,
}  # fmt: skip
IN_JSON = {**ECHO, "tools": [], "text": {"format": FORMAT}}
RULES = rules_of(IN_JSON)
THOUGHT = script_ids("<|channel|>analysis<|message|>Hm<|end|><|start|>assistant")
NEXT = THOUGHT[4:]
PROSE = script_ids("<|channel|>final<|message|>Well, then")
JSON_HEADER = script_ids("<|channel|>final <|constrain|>json<|message|>")
WRONG = script_ids('{"n": "one"}<|return|>')


def in_json(tenant: TenantId) -> RunSpec:
    """A response that has to be an object with a number in it."""
    spec = background(tenant)
    head = replace(spec.head, echo=IN_JSON)
    return replace(spec, head=head, rules=RULES, checker=Checker(RULES, call_fields))


ANSWER = answer_header(RULES, attempt=0)
FIRM = answer_header(RULES, attempt=1)
CUT = TurnEnded(FinishReason.CUT)
ASTRAY: list[Entry] = [
    *(TurnStarted(7), Hold(), Tokens(tuple(THOUGHT)), Tokens(tuple(PROSE))),
    *(Repair(len(PROSE), "not_json"), CUT, TurnStarted(0, FIRM), Hold()),
    Tokens(tuple(script_ids('"n":'))),
]
SEEN: list[Entry] = [
    *(TurnStarted(7), Tokens(tuple(THOUGHT)), Tokens(tuple(JSON_HEADER))),
    *(Tokens(tuple(script_ids('{"n":'))), Hop("backend", 20), Hold()),
    *(Tokens(tuple(script_ids(' "one"}<|return|>'))),),
    Repair(len(script_ids(' "one"}<|return|>')), "said_anew"),
]
BUDGET: list[Entry] = [
    *(TurnStarted(7), Tokens(tuple(script_ids("<|channel|>analysis<|message|>Hm")))),
    *(Repair(0, "reasoning_budget"), CUT, TurnStarted(0, ANSWER)),
]
BEGUN_ANEW: list[Entry] = [
    *(TurnStarted(7), Tokens(tuple(THOUGHT)), Tokens(tuple(JSON_HEADER[:2]))),
    Repair(2, "begun_anew"),
]
STUCK: list[Entry] = [
    *(TurnStarted(7), Tokens(tuple(THOUGHT)), Tokens(tuple(JSON_HEADER))),
    Repair(0, "grammar_failed"),
]
WRONG_BODY: list[Entry] = [
    *(TurnStarted(7), Hold(), Tokens(tuple(JSON_HEADER)), Tokens(tuple(WRONG))),
    *(Repair(len(JSON_HEADER) + len(WRONG), "invalid_structured_output"), CUT),
    *(TurnStarted(0, harmony().message_opening()), Tokens(tuple(JSON_HEADER[1:]))),
]
LOGS = {
    "astray": ASTRAY,
    "seen and wrong": SEEN,
    "out of budget": BUDGET,
    "begun anew": BEGUN_ANEW,
    "without a grammar": STUCK,
    "wrong": WRONG_BODY,
}
WHOLE = '{"n": 2}'


class Completing:
    """A model that ends as `{"n": 2}` whatever was begun."""

    async def generate(
        self,
        request: TokenRequest,
        sink: TokenSink,
        *,
        avoid: Collection[str] = (),
        attempts_max: int | None = None,
    ) -> None:
        await asyncio.sleep(0)
        if not sink.on_tokens(TokenChunk(self._rest(list(request.prompt_ids)), STOP)):
            await sink.room()

    @staticmethod
    def _rest(prompt: list[int]) -> list[int]:
        begun = prompt[len(prompt) - prompt[::-1].index(ASSISTANT) :]
        if MESSAGE not in begun:
            return [*JSON_HEADER[len(begun) :], *script_ids(WHOLE + "<|return|>")]
        at = begun.index(MESSAGE) + 1
        if vocabulary().decode(begun[:at]) == "analysis":
            return [*NEXT, *JSON_HEADER, *script_ids(WHOLE + "<|return|>")]
        rest = WHOLE.removeprefix(vocabulary().decode(begun[at:]))
        return script_ids(rest + "<|return|>")


@pytest.mark.slow
@pytest.mark.parametrize("log", LOGS.values(), ids=list(LOGS))
async def test_another_replica_brings_every_prefix_of_a_log_to_its_end(
    database: Database, tenant: TenantId, log: list[Entry]
) -> None:
    specs = [in_json(tenant) for _ in log]
    async with replica(database, Completing()) as alive:
        for size, spec in enumerate(specs, 1):
            await leave_behind(database, spec, log[:size], owner="gone")
        await let_time_pass(database, tenant, seconds=601)
        await alive.scheduler.claim_available()
        await alive.idle()
    for spec in specs:
        stored = await load(database, spec)
        assert stored.status == "completed"
        body = orjson.loads(stored.body or b"")
        assert shown_text(body) == WHOLE
        log = await log_of(database, spec)
        assert folded(spec, log).response() == body
        assert sum(isinstance(entry, Hop) and entry.reason == "replica" for entry in log) == 1
