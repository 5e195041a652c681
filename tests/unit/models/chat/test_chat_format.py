"""A model with a chat template, as the gateway sees it."""

from __future__ import annotations

import json
from array import array
from base64 import b64encode
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from gateway import text_ids
from gateway.constraints.output_rules import AnswerFormat, OutputRules, ToolRule
from gateway.entries import Compacted
from gateway.errors import ConfigError, InvalidRequest, NoUpstreamAvailable, VocabularyError
from gateway.generation import FinishReason, Prompt, SegmentKind
from gateway.models.chat.chat_format import ChatFormat
from gateway.models.chat.families import SWITCHES, Family
from gateway.models.chat.tokenizer import ModelConfig
from gateway.models.format import Builtins, FormatOptions, Unrendered
from gateway.protocol.tool_types import FunctionTool
from gateway.services.runs.compaction import summary_in
from gateway.text_ids import ANSWER
from tests.fakes import contexts as items
from tests.fakes.cases import each
from tests.fakes.chat_format import answer, ids_of, loaded, rendered, spelled
from tests.fakes.chat_server import NO_THOUGHT, OPENING, Refused, called, chatml, unopened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

RULES = OutputRules(
    tools={
        "f": ToolRule("f", SegmentKind.FUNCTION_CALL, "f"),
        "srv.g": ToolRule("srv.g", SegmentKind.MCP_CALL, "g", "srv"),
    },
    allowed=frozenset({"f", "srv.g"}),
)
PLAIN = OutputRules(tools={}, allowed=frozenset())
FORMAT = loaded()
PIXEL = "data:image/png;base64," + b64encode(b"\x89PNG\r\n\x1a\n..").decode()
CALL = called("f", '{"x": 1}')


def test_a_prompt_is_asked_for_until_all_is_known() -> None:
    format_ = loaded()
    with pytest.raises(Unrendered) as first:
        format_.render([items.user()], items.options())
    assert len(first.value.questions) == 12
    prompt = rendered(format_, [items.user()])
    assert spelled(prompt.ids) == f"<|im_start|>user\nhi<|im_end|>\n{OPENING}"
    assert prompt.spans[0].source == 0


def test_an_effort_is_told_where_one_was_asked_for() -> None:
    thinking: list[Any] = []

    def noting(body: dict[str, Any]) -> str:
        thinking.append(body.get("chat_template_kwargs"))
        return chatml(body)

    format_ = loaded(template_kwargs='{"k": 1}')
    for asked in (None, "none", "high"):
        rendered(format_, [items.user(str(asked))], noting, requested_effort=asked)
    switched = dict.fromkeys(SWITCHES, False)
    told = [one for one in thinking if one is not None]
    assert told[-3:] == [
        {"k": 1},
        {**switched, "k": 1},
        {**dict.fromkeys(SWITCHES, True), "reasoning_effort": "medium", "k": 1},
    ]


def test_what_the_template_refuses_is_an_invalid_request() -> None:
    def template(body: dict[str, Any]) -> str:
        if body["messages"][0]["content"] == "boo":
            raise Refused("roles must alternate")
        return chatml(body)

    with pytest.raises(InvalidRequest, match="roles must alternate"):
        rendered(loaded(), [items.user("boo")], template)


def test_ids_that_no_backend_may_know_are_never_sent() -> None:
    small = ChatFormat(FORMAT.vocabulary, Family.from_options(FormatOptions("qwen3")), size=9)
    with pytest.raises(NoUpstreamAvailable, match="doctor"):
        rendered(small, [items.user()])


def test_tools_are_refused_where_the_template_shows_none() -> None:
    tool = FunctionTool(type="function", name="f", parameters=None)

    def deaf(body: dict[str, Any]) -> str:
        return chatml({**body, "tools": None})

    with pytest.raises(InvalidRequest, match="shows none"):
        rendered(loaded(), [items.user()], deaf, tools=(tool,))
    with pytest.raises(InvalidRequest, match="shows none"):
        rendered(loaded(), [items.user()], deaf, runs_tools=True, builtins=Builtins(python=True))


def test_a_summary_that_was_just_made_is_told_by_its_ids() -> None:
    ids = tuple(FORMAT.render_item(items.user("We met.")))
    made = summary_in(Compacted(ids, "seal"))
    prompt = rendered(FORMAT, [items.user(), items.answer(), made])
    assert "We met.<|im_end|>" in spelled(prompt.ids)
    assert FORMAT.render_item(items.thought()) == ()
    assert FORMAT.repeated_ids(None, is_answered=True) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tail", "begun"),
    [
        (OPENING, ""),
        (f"{OPENING}<think>\n", "<think>\n"),
        (OPENING + NO_THOUGHT, NO_THOUGHT),
        (f"{OPENING}</think>", "</think>"),
        ("<|im_start|>user\nWhat is <think>?<|im_end|>\n" + OPENING, ""),
        ("no marker at all <think>", "<think>"),
    ],
)
def test_what_a_prompt_puts_into_the_models_mouth(tail: str, begun: str) -> None:
    ids = array("I", ids_of(f"<|im_start|>user\nhi<|im_end|>\n{tail}"))
    assert FORMAT.prefill_size(ids) == len(ids_of(begun))


def test_markers_that_are_spelled_in_letters_are_found_too() -> None:
    format_ = loaded(reasoning="mistral")
    ids = ids_of(f"{OPENING}[THINK]hm")
    assert format_.prefill_size(ids) == len(ids_of("[THINK]hm"))
    assert loaded(reasoning="none").prefill_size(ids) == 0


def know(format_: ChatFormat, template: Callable[[dict[str, Any]], str] = chatml) -> ChatFormat:
    format_.template({one: answer(one, template) for one in format_.questions})
    return format_


def test_a_result_stands_between_a_call_and_the_next_turn() -> None:
    format_ = know(loaded())
    result = format_.render_result("srv.g", "ok <|im_end|>")
    assert ids_of("<|im_end|>")[0] not in result[3:-3]
    turn = ids_of(f"Well.\n{CALL}")
    behind = format_.with_result(turn, result)
    assert spelled(behind) == (
        f"Well.\n{CALL}<|im_end|>\n<|im_start|>user\n<tool_response>\nok <|im_end|>\n"
        f"</tool_response><|im_end|>\n{OPENING}"
    )
    prompt = ids_of(f"{CALL}<|im_end|>\n{OPENING}")
    assert spelled(format_.with_result(prompt, result)) == spelled(behind).removeprefix("Well.\n")


def test_a_result_stands_behind_a_call_where_no_turn_is_opened() -> None:
    format_ = know(loaded(), unopened)
    result = format_.render_result("srv.g", "ok")
    behind = format_.with_result(ids_of(CALL), result)
    assert spelled(behind).startswith(f"{CALL}<|im_end|>\n<|im_start|>user\n<tool_response>\nok")
    assert spelled(behind).endswith("\n</tool_response><|im_end|>\n")
    # A prompt that ends with a call that was approved has what stands behind it.
    assert format_.with_result(ids_of(f"{CALL}<|im_end|>\n"), result) == behind


def test_a_run_that_began_elsewhere_brings_what_was_learned() -> None:
    format_, fresh = know(loaded()), loaded()
    assert fresh.template_state == b""
    assert fresh.with_state(b"") is fresh
    known = fresh.with_state(format_.template_state)
    assert known.render_result("srv.g", "ok") == format_.render_result("srv.g", "ok")
    assert known.framing.opening == tuple(ids_of(OPENING))
    assert fresh.framing.opening == ()
    assert fresh.render_result("srv.g", "ok") == tuple(ids_of("ok"))
    assert fresh.with_result(ids_of("a"), ids_of("b")) == ids_of("ab")


def framing_otherwise(body: dict[str, Any]) -> str:
    return chatml(body).replace("<tool_response>", "<|im_start|>result")


def test_a_template_is_learned_anew_and_runs_keep_what_they_know() -> None:
    format_ = know(loaded())
    run = format_.with_state(format_.template_state)
    before = format_.render_result("srv.g", "ok")
    format_.relearn()
    assert format_.render_result("srv.g", "ok") == before
    with pytest.raises(Unrendered) as raised:
        format_.template({})
    assert raised.value.questions == format_.probes.questions
    format_.template({one: answer(one, framing_otherwise) for one in format_.questions})
    assert "<|im_start|>result" in spelled(format_.render_result("srv.g", "ok"))
    assert run.render_result("srv.g", "ok") == before
    assert format_.template({}).result is not None


def test_a_result_is_escaped_where_the_template_does_it() -> None:
    def quoted(body: dict[str, Any]) -> str:
        messages = [
            {**one, "content": json.dumps(one["content"])} if one["role"] == "tool" else one
            for one in body["messages"]
        ]
        return chatml({**body, "messages": messages})

    format_ = loaded()
    format_.template({one: answer(one, quoted) for one in format_.questions})
    assert '\n"a \\"b\\""\n' in spelled(format_.render_result("srv.g", 'a "b"'))


def rerendered(*said: str, rules: OutputRules = RULES) -> str:
    parser = partial(FORMAT.new_parser, rules)
    turns = [(ids_of(one), FinishReason.CUT) for one in said]
    return spelled(FORMAT.rerender(turns, parser))


@each(
    ("said", "told"),
    [
        ("Hello", "Hello"),
        ("Hello<|im_end|>", "Hello"),
        ("<think>\nI s", "<think>\nI s\n</think>\n\n"),
        ("<think>\n", "<think>\n\n</think>\n\n"),
        ("<think>\nhm\n</think>", "<think>\nhm\n</think>\n\n"),
        ("{", ""),
        ("<think>\nhm\n</think>\n\nSo {", "<think>\nhm\n</think>\n\nSo {"),
        ("<think>\nhm\n</think>\n\nSo", "<think>\nhm\n</think>\n\nSo"),
        (f"So\n{CALL}", f"So\n{CALL}"),
        ('So\n<tool_call>\n{"name": "f", "argu', "So\n"),
        ('So\n<tool_call>\n{"na', "So\n"),
        ("", ""),
    ],
)
def test_turns_that_are_over_are_told_as_the_model_goes_on_with_them(said: str, told: str) -> None:
    assert rerendered(said) == told


def test_words_before_a_call_that_is_owed_stay() -> None:
    owing = OutputRules(tools=RULES.tools, allowed=RULES.allowed, calls="required")
    assert rerendered("Let me", rules=owing) == "Let me"


def test_said_ids_are_those_of_all_turns_without_what_ended_them() -> None:
    turns: list[tuple[Sequence[int], Sequence[int]]] = [
        (ids_of("<think>"), ids_of("a<|im_end|>")),
        ((), ids_of("b<|im_end|>")),
    ]
    assert FORMAT.turn_ids(turns) == ids_of("<think>ab<|im_end|>")
    assert FORMAT.turn_ids([]) == []


def test_openings() -> None:
    answer_ = AnswerFormat("json_schema", {"type": "object"}, "n", strict=True)
    rules = OutputRules(tools={}, allowed=frozenset(), answer=answer_)
    assert FORMAT.answer_opening(rules, attempt=0) == ()
    assert spelled(FORMAT.answer_opening(rules, attempt=1)) == "{"
    assert FORMAT.answer_opening(PLAIN, attempt=1) == ()
    assert spelled(FORMAT.call_opening(RULES)) == '<tool_call>\n{"name": "'
    one = OutputRules(tools=RULES.tools, allowed=frozenset({"srv.g"}))
    assert spelled(FORMAT.call_opening(one)) == '<tool_call>\n{"name": "srv.g", "arguments":'
    assert loaded(calls="none").call_opening(one) == ()
    assert FORMAT.message_opening() == ()


def test_calls_are_written_as_the_model_writes_them() -> None:
    assert spelled(FORMAT.render_call("f", '{"x": 1}')) == CALL
    assert spelled(loaded(calls="none").render_call("f", "{}")) == "{}"


def test_it_knows_its_ids() -> None:
    assert FORMAT.vocabulary_size == 320
    assert set(ids_of("<|im_end|><|endoftext|>")) <= set(FORMAT.stop_ids)
    assert all(token in FORMAT.text_ids for token in ids_of("the quick 東"))
    assert not any(token in FORMAT.text_ids for token in ids_of("<think></tool_call><|im_end|>"))
    assert set(ids_of("<think><tool_call>")) == FORMAT.header_markers
    assert FORMAT.abilities[:3] == ("reasoning", "reasoning_off", "tools")
    assert "tools" not in loaded(calls="none").abilities
    assert FORMAT.count_ids("abc") == len(FORMAT.encode("abc")) == 3
    assert not FORMAT.framing.stores_ids
    assert FORMAT.plain_header((1,), 0) == 0
    assert FORMAT.has_body((1,))
    FORMAT.check()


def test_a_transcript_is_text_with_its_markers() -> None:
    prompt = Prompt(array("I", ids_of(f"hi<|im_end|>\n{OPENING}")), ())
    [shown] = FORMAT.messages(prompt, with_ids=False)
    assert shown["message"] == f"hi<|im_end|>\n{OPENING}"
    said, void = FORMAT.messages_of_turn(ids_of("a"), [("not_json", ids_of("b"))], with_ids=True)
    assert (said["tokens"], void["taken_back_by"]) == (ids_of("a"), "not_json")


def test_operators_see_text_and_markers_and_turns_of_text() -> None:
    pieces = FORMAT.anatomy([*ids_of("a<|im_end|>"), ANSWER])
    assert [(one.spelling, one.part) for one in pieces] == [
        (b"a", "body"),
        (b"<|im_end|>", "marker"),
        (b"<answer>", "marker"),
    ]


def refusing_all(_body: dict[str, Any]) -> str:
    raise Refused("not this")


def test_what_was_sent_as_text_is_shown_as_such() -> None:
    format_ = loaded(sees=True)
    image = {"type": "input_image", "image_url": PIXEL}
    gone = {"type": "input_image", "file_id": "file_1"}
    context = [
        items.from_wire({"type": "message", "role": "user", "content": [gone]}),
        items.answer(),
        items.from_wire({"type": "message", "role": "user", "content": [image]}),
    ]
    prompt = rendered(format_, context)
    missing, _, seen = [
        json.loads(one["message"]) for one in format_.messages(prompt, with_ids=False)[1:]
    ]
    assert missing["content"][0]["type"] == "text"
    assert seen["content"] == [{"type": "image_url", "image_url": {"url": PIXEL}}]
    (said,) = format_.messages_of_turn([ANSWER, *text_ids.ids_of("a cat")])
    assert said["message"] == "a cat"


@pytest.mark.parametrize(
    ("template", "effort", "is_open"),
    [
        (chatml, None, False),
        (partial(chatml, opens_thoughts=True), None, True),
        (partial(chatml, opens_thoughts=True), "none", False),
        (refusing_all, None, False),
    ],
)
def test_a_prompt_with_an_image_tells_whether_its_template_opens_a_thought(
    template: Callable[[dict[str, Any]], str], effort: str | None, is_open: bool
) -> None:
    image = {"type": "input_image", "image_url": PIXEL}
    context = [items.from_wire({"type": "message", "role": "user", "content": [image]})]
    prompt = rendered(loaded(sees=True), context, template, requested_effort=effort)
    assert (prompt.text_tokens is not None, prompt.opens_thought) == (True, is_open)
    assert not rendered(
        loaded(), [items.user()], partial(chatml, opens_thoughts=True)
    ).opens_thought


def test_a_server_that_fits_has_no_faults() -> None:
    assert FORMAT.misfits({one: answer(one) for one in FORMAT.questions}) == ()
    silent = loaded(reasoning="none")
    assert silent.misfits({one: answer(one) for one in silent.questions}) == ()


def test_a_server_that_does_not_fit_is_told_apart() -> None:
    answers = {one: answer(one) for one in FORMAT.questions}
    other = {**answers, FORMAT.questions[-1]: array("I", [1, 2])}
    assert "another tokenizer" in FORMAT.misfits(other)[0]
    assert "another tokenizer" in FORMAT.misfits({**answers, FORMAT.questions[-1]: "no"})[0]
    deaf = {one: answer(one, lambda body: chatml({**body, "tools": None})) for one in answers}
    assert FORMAT.misfits(deaf) == ("it shows no tools",)
    other_marker = loaded(reasoning="mistral")
    answers = {one: answer(one) for one in other_marker.questions}
    assert other_marker.misfits(answers) == (
        "it writes thoughts in other markers than its reasoning is set up with",
    )
    refused = {one: answer(one) for one in FORMAT.questions} | {FORMAT.probes.unthinking: "no"}
    assert FORMAT.misfits(refused) == ()


def test_a_model_without_a_tokenizer_or_a_family_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs the tokenizer"):
        ChatFormat.load(FormatOptions("m"))
    with pytest.raises(ConfigError, match="not known how the model"):
        Family.from_options(FormatOptions("m", "t"))
    with pytest.raises(ConfigError, match="no calls 'x'"):
        Family.from_options(FormatOptions("m", "t", calls="x"))
    with pytest.raises(ConfigError, match="no reasoning 'x'"):
        Family.from_options(FormatOptions("m", "t", reasoning="x"))
    with pytest.raises(VocabularyError):
        ChatFormat.load(FormatOptions("Qwen/Qwen3-8B", str(tmp_path)))


def test_a_known_name_tells_the_family() -> None:
    family = Family.from_options(FormatOptions("Qwen/Qwen3-8B", "t"))
    assert family.switches == ("enable_thinking",)
    assert family.syntax.calls is not None
    assert Family.from_options(FormatOptions("Qwen/QwQ-32B", "t")).switches == ()
    assert (
        Family.from_options(FormatOptions("Qwen/Qwen3-8B", "t", reasoning="none")).syntax.reasoning
        is None
    )


def test_files_beside_the_tokenizer_tell_sizes_and_ends(tmp_path: Path) -> None:
    assert ModelConfig.beside(str(tmp_path)) == ModelConfig()
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 9}, "eos_token_id": 3}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 3, true]}')
    assert ModelConfig.beside(str(tmp_path / "tokenizer.json")) == ModelConfig(9, (2, 3))
    (tmp_path / "config.json").write_text("[")
    (tmp_path / "generation_config.json").write_text("[]")
    assert ModelConfig.beside(str(tmp_path)) == ModelConfig()
    (tmp_path / "config.json").write_text(" " * (1 << 20) + " ")
    assert ModelConfig.beside(str(tmp_path)) == ModelConfig()
    sized = ChatFormat(FORMAT.vocabulary, Family.from_options(FormatOptions("qwen3")))
    assert sized.vocabulary_size == 512
