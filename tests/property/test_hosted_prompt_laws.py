"""Laws of the prompts in a loop of calls that the gateway runs: each extends the one before, and
all say what openai-harmony would have them say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai_harmony import Message as LibraryMessage
from openai_harmony import Role

from gateway.engine.row_mapping import finished_row
from gateway.entries import Finished, Tokens, ToolEnded, ToolStarted, TurnEnded, TurnStarted
from gateway.generation import FinishReason
from gateway.models.format import Builtins
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.rendering import call_message, result_message
from gateway.models.harmony.tokenizer import FIRST_SPECIAL, OPENING
from gateway.protocol.grants import BrowserGrant, Grants, McpTool, PythonGrant, ServerGrant
from gateway.protocol.responses.response_rules import rules_of
from tests.fakes.contexts import options, user
from tests.fakes.examples import examples
from tests.fakes.harmony_oracle import library_prompt, spelled, vocabulary, well_formed
from tests.fakes.harmony_reference import library_message, prompt_messages
from tests.fakes.harmony_script import HOSTED, TOOLS, harmony, script_ids
from tests.fakes.response_heads import ECHO, response_head
from tests.fakes.staged_run import folds, run_spec

laws = settings(deadline=None, max_examples=examples(40))
OPTIONS = replace(options(instructions="Be kind."), builtins=Builtins(browser=True, python=True))
RENDERER = harmony()
GRANTS = Grants(
    browser=BrowserGrant("web_search"),
    python=PythonGrant("cntr_1", "linux", 1 << 30),
    servers=(
        ServerGrant(
            "crm",
            "https://crm.example",
            tools=(McpTool("add", {"type": "object"}, needs_approval=False),),
        ),
    ),
)
markers = st.sampled_from(
    ["<|end|>", "<|start|>system<|message|>", "<|call|>", "\n", " to=f", "💖"]
)
texts = st.lists(st.text(max_size=9) | markers, max_size=4).map("".join)


def unmarked(text: str) -> str:
    """In a script markers become ids."""
    return text.replace("<|", "< |")


class Round(NamedTuple):
    """One turn of the model, and what it got for it; `form` is that of the header of its call."""

    thought: str
    tool: str
    body: str
    result: str
    form: int


FORMS = (" to={to}<|channel|>{channel}{type}", "<|channel|>{channel} to={to}{type}")
TYPES = {
    "builtin:python": (" code", "", " json"),
    "": (" <|constrain|>json", " json", "", "<|constrain|>json"),
}
rounds = st.lists(
    st.builds(
        Round,
        texts.map(unmarked),
        st.sampled_from(sorted(HOSTED)),
        st.sampled_from(["{}", '{"query": "é"}', '{"a": [1, 2]}']),
        texts,
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=4,
)


def said(one: Round) -> list[int]:
    """The ids of the turn; the first form is openai-harmony's."""
    message = call_message(one.tool, one.body)
    types = TYPES.get(one.tool, TYPES[""])
    order, kind = divmod(one.form, 3)
    header = FORMS[order].format(
        to=message.recipient, channel=message.channel, type=types[kind % len(types)]
    )
    call = f"{header}<|message|>{one.body}<|call|>"
    if not one.thought:
        return script_ids(call)
    thought = f"<|channel|>analysis<|message|>{one.thought}<|end|>"
    return script_ids(f"{thought}<|start|>assistant{call}")


def told(turn: list[int]) -> list[int]:
    return RENDERER.rerender(
        [(turn, FinishReason.STOP)], lambda: Parser(vocabulary(), TOOLS | HOSTED, hosted=HOSTED)
    )


@pytest.mark.slow
@laws
@given(rounds)
def test_each_prompt_extends_the_one_before_and_its_turn(made: list[Round]) -> None:
    ids = list(RENDERER.render([user("hi")], OPTIONS).ids)
    messages = 3
    for one in made:
        turn = said(one)
        behind = told(turn)
        assert behind[: len(turn)] == turn, "id for id"
        assert tuple(behind[len(turn) :]) == OPENING
        result = RENDERER.render_result(one.tool, one.result)
        ids = [*ids, *turn, *result, *OPENING]
        messages += 2 + bool(one.thought)
        assert well_formed(ids) == messages


@pytest.mark.slow
@laws
@given(rounds)
def test_the_prompt_is_openai_harmonys_of_the_same_conversation(made: list[Round]) -> None:
    items = [user("hi")]
    ids = list(RENDERER.render(items, OPTIONS).ids)
    conversation = prompt_messages(items, OPTIONS)
    for one in made:
        as_trained = one._replace(form=0)
        ids = [*ids, *said(as_trained), *RENDERER.render_result(one.tool, one.result), *OPENING]
        if one.thought:
            thought = LibraryMessage.from_role_and_content(Role.ASSISTANT, one.thought)
            conversation.append(thought.with_channel("analysis"))
        conversation.append(library_message(call_message(one.tool, one.body)))
        conversation.append(library_message(result_message(one.tool, one.result)))
        assert ids == library_prompt(conversation)


@laws
@given(st.sampled_from(sorted(HOSTED)), texts)
def test_what_a_tool_returns_never_becomes_a_marker(tool: str, text: str) -> None:
    ids = RENDERER.render_result(tool, text)
    assert sum(token >= FIRST_SPECIAL for token in ids) == 4
    assert spelled(ids).endswith(f"<|message|>{text}<|end|>")
    assert RENDERER.count_ids(text) == len(ids) - len(RENDERER.render_result(tool, ""))


@laws
@given(st.lists(st.sampled_from(sorted(HOSTED)), max_size=2), texts.map(unmarked), st.booleans())
def test_a_call_that_was_written_otherwise_is_told_as_it_was_trained(
    names: list[str], body: str, has_marker: bool
) -> None:
    for name in names:
        message = call_message(name, body if name == "builtin:python" else '{"a": 1}')
        ending = "<|start|>" if has_marker else "<|end|>"
        turn = script_ids(
            f"<|channel|>final to={message.recipient}<|message|>{message.text}{ending}"
        )
        wanted = RENDERER.message_ids(message)
        assert told(turn) == [*wanted[len(OPENING) :], *OPENING]


_HEADERS = [
    "<|channel|>analysis to={}",
    "<|channel|>analysis to={} code",
    " to={}<|channel|>analysis <|constrain|>json",
    "<|channel|>commentary to={} json",
    "<|channel|>commentary to=functions.{}",
    " to={}",
    "<|channel|>final to={}",
]
_ENDINGS = ["<|call|>", "<|call|>", "<|end|>", "<|return|>", "<|start|>"]
_loose_turns = st.lists(
    st.tuples(
        st.sampled_from(["", "Hm", "é\n"]),
        st.sampled_from(_HEADERS),
        st.sampled_from(["browser.search", "browser.open", "python", "crm.add"]),
        st.sampled_from(["{}", '{"a": 1}', '{"a": 1}{"a": 1}', '{"a', "", "print(1)"]),
        st.sampled_from(_ENDINGS),
        texts,
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.slow
@laws
@given(_loose_turns)
def test_later_prompts_show_of_a_response_what_it_was_shown_itself(
    turns: list[tuple[str, str, str, str, str, str]],
) -> None:
    """However the calls were written: by their rows, as by the turns of the response."""
    rules = rules_of({**ECHO, "tools": []}, GRANTS)
    head = replace(response_head(), grants=GRANTS)
    fold = folds(head, rules)()
    shown: list[int] = []
    for ordinal, (thought, header, recipient, body, ending, result) in enumerate(turns):
        before = f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant"
        call = f"{header.format(recipient)}<|message|>{body}{ending}"
        ids = script_ids((before if thought else "") + call)
        for entry in (TurnStarted(9), Tokens(tuple(ids)), TurnEnded(FinishReason.STOP)):
            fold.apply(entry)
        asked = fold.hosted.call
        assert asked is not None
        told_result = RENDERER.render_result(asked.name, result)
        fold.apply(ToolStarted(ordinal))
        fold.apply(ToolEnded(ordinal, told_result))
        again = RENDERER.rerender([(ids, FinishReason.STOP)], fold.new_parser)
        shown += [*again[: -len(OPENING)], *told_result, *OPENING]
    ended = Finished("incomplete", 9, reason="max_output_tokens")
    fold.apply(ended)
    row = finished_row(run_spec(), ended, fold, epoch=0, rest=None)
    later: list[int] = []
    for item in row.items:
        assert item.context.ids is not None
        later += [*item.context.ids[len(OPENING) :], *OPENING]
    assert later == shown
