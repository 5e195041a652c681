"""A run with rules on a stage: requests that demand something, and what became of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gateway.constraints.output_rules import OutputRules
from gateway.constraints.validation import Checker
from gateway.engine.output_guard import GuardLimits
from gateway.entries import Repair, TurnStarted
from gateway.generation import TokenChunk
from gateway.protocol.call_items import call_fields
from tests.fakes.harmony_script import script_ids
from tests.fakes.staged_run import STOP, ScriptedTokens, Stage, Step, run_spec
from tests.fakes.wayward_model import ANSWERS, TOOLS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.entries import Entry
    from gateway.tools.tool_contract import HostedTools

NEXT = "<|start|>assistant"
THINKING = "<|channel|>analysis<|message|>"
FREE = '<|channel|>commentary to=functions.free <|constrain|>json<|message|>{"n": 1}'
STRICT = "<|channel|>commentary to=functions.strict <|constrain|>json<|message|>"
FORBIDDEN = "<|channel|>commentary to=functions.strict json<|message|>{}<|call|>"
JSON_ANSWER = '<|channel|>final <|constrain|>json<|message|>{"n": 1}<|return|>'
PROMPT = run_spec().prompt_ids
ANY_TOOL = OutputRules(TOOLS, frozenset(TOOLS))
REQUIRED = replace(ANY_TOOL, allowed=frozenset({"free"}), calls="required", open_calls=False)
IN_JSON = OutputRules({}, frozenset(), answer=ANSWERS[2])


def staged(
    rules: OutputRules,
    *turns: Sequence[Step],
    said: Sequence[Entry] | None = None,
    limits: GuardLimits = GuardLimits(),  # noqa: B008 - immutable
    max_tokens: int = 400,
    tools: HostedTools | None = None,
    **terms: Any,
) -> Stage[ScriptedTokens]:
    spec = replace(
        run_spec(max_tokens=max_tokens), rules=rules, checker=Checker(rules, call_fields), **terms
    )
    return Stage(ScriptedTokens(turns), spec=spec, said=said, limits=limits, tools=tools)


def vouched(script: str, size: int = 1) -> list[Step]:
    """What a backend says that holds the model to the rules, in chunks of so many ids."""
    ids = script_ids(script)
    chunks: list[Step] = [
        TokenChunk(ids[at : at + size], constrained=True, upstream="gpu")
        for at in range(0, len(ids), size)
    ]
    return [*chunks, TokenChunk([], STOP)]


def repairs(stage: Stage[ScriptedTokens]) -> list[str]:
    return [entry.rule for entry in stage.journal.entries if isinstance(entry, Repair)]


def prefills(stage: Stage[ScriptedTokens]) -> list[tuple[int, ...]]:
    return [entry.prefill for entry in stage.journal.entries if isinstance(entry, TurnStarted)]


def kinds(stage: Stage[ScriptedTokens]) -> list[str]:
    return [item["type"] for item in stage.live.fold.response()["output"]]


async def ended(stage: Stage[ScriptedTokens]) -> tuple[str, str | None]:
    """The status, and the code of an error."""
    await stage.play()
    body = stage.live.fold.response()
    return body["status"], (body["error"] or {}).get("code")
