"""The fold with the real parser, over everything that models were seen to say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from gateway.entries import Entry, Finished, Tokens, TurnEnded, TurnStarted, pack, unpack
from gateway.eventlog.fold.fold import Fold
from gateway.generation import FinishReason, Framing
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.tokenizer import END, OPENING, RETURN
from tests.fakes.event_grammar import check_stream
from tests.fakes.fold_formats import parsed_by
from tests.fakes.harmony_script import TOOLS, script_ids, vocabulary
from tests.fakes.response_heads import NO_RULES, response_head
from tests.fakes.toy_logs import apply_all

if TYPE_CHECKING:
    import pytest

CORPUS = Path(__file__).parents[3] / "data" / "harmony_corpus.jsonl"
CASES: list[dict[str, Any]] = [orjson.loads(line) for line in CORPUS.read_bytes().splitlines()]
CHANNELS = {"commentary": "commentary", "final_answer": "final"}


def new_fold() -> Fold:
    framing = Framing(opening=OPENING, turn_end=RETURN, message_end=END)
    format_ = parsed_by(lambda trace: Parser(vocabulary(), TOOLS, trace=trace), framing)
    return Fold(response_head(), format_, NO_RULES)


def whole_log(ids: list[int], size: int, finish: FinishReason) -> list[Entry]:
    """What a run would write, at `size` ids an entry."""
    if finish is FinishReason.LENGTH:
        end = Finished("incomplete", 9, reason="max_output_tokens")
    else:
        end = Finished("completed", 9)
    said = [Tokens(tuple(ids[at : at + size])) for at in range(0, len(ids), size)]
    return [TurnStarted(70), *said, TurnEnded(finish), end]


def as_the_corpus_has_it(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] == "reasoning":
        return {"type": "reasoning", "text": item["content"][0]["text"]}
    if item["type"] == "function_call":
        return {key: item[key] for key in ("type", "name", "arguments", "status")}
    text, channel = item["content"][0]["text"], CHANNELS[item["phase"]]
    return {"type": "message", "channel": channel, "text": text, "status": item["status"]}


def test_a_turn_becomes_the_items_that_were_meant(subtests: pytest.Subtests) -> None:
    for case in CASES:
        for size in (1, 2, 7, 10_000):
            with subtests.test(case=case["id"], size=size):
                check_items(case, size)


def check_items(case: dict[str, Any], size: int) -> None:
    log = whole_log(case["tokens"], size, FinishReason(case["finish"]))
    fold = new_fold()
    stream = check_stream(apply_all(fold, unpack(pack(log))))
    defaults = {"message": {"status": "completed"}}
    assert [as_the_corpus_has_it(item) for item in stream.items] == [
        {**defaults.get(item["type"], {}), **item} for item in case["desired"]
    ]
    assert fold.usage.output_tokens == len(case["tokens"])


def test_the_ids_of_the_items_are_the_next_prompt_of_what_was_said() -> None:
    said = script_ids(
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant"
        "<|channel|>final<|message|>It is 4.<|return|>"
    )
    fold = new_fold()
    apply_all(fold, whole_log(said, 3, FinishReason.STOP))
    repeated = [token for item in fold.items() for token in item.ids or ()]
    assert repeated == [*OPENING, *said[:-1], END]


def test_the_usage_shown_counts_reasoning_that_only_the_end_tells_from_an_answer() -> None:
    said = script_ids("<|message|>Let me think.<|end|><|start|>assistant<|message|>It is")
    fold = new_fold()
    end = Finished("cancelled", 9)
    apply_all(fold, [TurnStarted(70), *(Tokens((token,)) for token in said), end])
    shown = fold.response()["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert shown == fold.usage.reasoning_tokens > 0
