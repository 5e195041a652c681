"""Turns that are over, told again."""

from __future__ import annotations

import pytest

from gateway.generation import FinishReason
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.rendering import Renderer
from gateway.protocol.items import Reasoning, ReasoningText
from tests.fakes.cases import each
from tests.fakes.contexts import context_item
from tests.fakes.harmony_script import HOSTED, TOOLS, collect, harmony, script_ids, vocabulary

STOP, CUT = FinishReason.STOP, FinishReason.CUT
THOUGHT = "<|channel|>analysis<|message|>Hm<|end|>"
NEXT = "<|start|>assistant"
ANSWER = "<|channel|>final<|message|>hi<|end|>"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
PYTHON = "<|channel|>analysis to=python code<|message|>"
OWN = " to=python<|channel|>analysis code<|message|>"
ADDED = "<|channel|>commentary to=functions.crm.add json<|message|>"
OURS_ADDED = " to=functions.crm.add<|channel|>commentary <|constrain|>json<|message|>"
OURS = " to=functions.f<|channel|>commentary <|constrain|>json<|message|>"
ODD = vocabulary().encode("H") + vocabulary().encode("m")


def told(ids: list[int], finish: FinishReason | None = STOP) -> list[int]:
    return harmony().rerender([(ids, finish)], lambda: Parser(vocabulary(), TOOLS))


@each(
    ("said", "shown"),
    [
        ("", ""),
        ("<|return|>", ""),
        ("<|channel|>final<|message|><|return|>", ""),
        ("<|start|>assistant<|return|>", ""),
        (THOUGHT + NEXT + "<|return|>", THOUGHT),
        (THOUGHT + NEXT, THOUGHT),
        (THOUGHT + "<|start|>", THOUGHT),
        (THOUGHT + NEXT + "<|channel|>final<|return|>", THOUGHT),
        (THOUGHT + "<|start|>" + NEXT + ANSWER, THOUGHT + NEXT + ANSWER),
        ("<|channel|>analysis<|message|>Hm<|return|>", THOUGHT),
        ("<|channel|>analysis<|message|>Hm", THOUGHT),
        ("<|channel|>analysis<|message|>Hm<|start|>assistant" + ANSWER, THOUGHT + NEXT + ANSWER),
        (THOUGHT + ANSWER, THOUGHT + NEXT + ANSWER),
        (THOUGHT + "364" + NEXT + ANSWER, THOUGHT + NEXT + ANSWER),
        ("<|channel|>final hi<|return|>", ANSWER),
        ("<|channel|>final<|message|>h<|constrain|>i<|return|>", ANSWER),
        ("<|channel|>analysis to=python code<|message|>Hm<|call|>", THOUGHT),
        (CALL + "{}<|call|>", CALL + "{}<|call|>"),
        ("<|channel|>analysis to=functions.f<|message|>{}<|call|>", OURS + "{}<|call|>"),
        (THOUGHT + NEXT + CALL + '{"a<|end|>', THOUGHT),
        (ANSWER + "<|start|>user<|message|>And now?<|end|>", ANSWER),
    ],
)
def test_what_was_said_is_told_as_whole_messages(said: str, shown: str) -> None:
    wanted = script_ids(shown + NEXT) if shown else []

    assert told(script_ids(said)) == wanted
    assert told(wanted[:-2]) == wanted, "and so it stays"


def test_text_is_repeated_in_the_ids_that_the_model_took() -> None:
    odd = [*script_ids("<|channel|>analysis<|message|>"), *ODD, *script_ids("<|end|>")]

    assert told(odd) == [*odd, *script_ids(NEXT)]


@pytest.mark.parametrize(
    "said",
    [
        [*script_ids("<|channel|>analysis<|message|>"), *ODD],
        script_ids("<|channel|>analysis<|message|>Hm 🎉")[:-1],
        [*script_ids("<|channel|>analysis<|message|>"), *ODD, *script_ids("<|return|>")],
        [*script_ids("<|channel|> analysis<|message|>"), *ODD, *script_ids("<|end|>")],
        [*script_ids("<|channel|><|channel|>analysis<|message|>"), *ODD, *script_ids("<|end|>")],
    ],
    ids=["cut", "cut within a character", "closed as an answer", "a space", "two channels"],
)
def test_text_that_was_cut_or_framed_otherwise_is_told_as_later_prompts_tell_it(
    said: list[int],
) -> None:
    segments = collect([*(parser := Parser(vocabulary(), TOOLS)).feed(said), *parser.finish(CUT)])
    thought = Reasoning(content=(ReasoningText(text=segments[0].text),))
    later = Renderer(vocabulary()).render_item(context_item(thought))

    assert told(said, CUT) == [*later[2:], *script_ids(NEXT)]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (PYTHON + "1 +<|call|>", PYTHON + "1 +<|call|>"),
        (PYTHON + "<|call|>", PYTHON + "<|call|>"),
        (THOUGHT + NEXT + PYTHON + "1<|end|>" + NEXT + ANSWER, THOUGHT + NEXT + OWN + "1<|call|>"),
        ("<|channel|>commentary to=python code<|message|>1<|call|>", OWN + "1<|call|>"),
        (ADDED + '{"a<|call|>', OURS_ADDED + '{"a<|call|>'),
        (ADDED + "<|call|>", OURS_ADDED + "{}<|call|>"),
    ],
)
def test_a_call_that_gets_a_result_is_always_told(said: str, shown: str) -> None:
    ids = script_ids(said)
    rerendered = harmony().rerender(
        [(ids, STOP)], lambda: Parser(vocabulary(), TOOLS | HOSTED, hosted=HOSTED)
    )
    assert rerendered == script_ids(shown + NEXT)


def test_a_call_that_was_cut_off_is_not_told() -> None:
    assert told(script_ids(THOUGHT + NEXT + CALL + '{"a'), CUT) == script_ids(THOUGHT + NEXT)
