"""Events of chat completions → text as ids, in the shapes of the servers that send them."""

from __future__ import annotations

import itertools
import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import ContextOverflow, UpstreamFailed, UpstreamLost, UpstreamUnavailable
from gateway.generation import FinishReason, ReportedUsage, Sampling
from gateway.text_ids import ANSWER, ARGUMENTS, CALL, END, TEXT_IDS_END, THOUGHT, text_of
from gateway.upstreams.chat_endpoint import (
    CALLS_MAX,
    CHARACTERS_PER_TOKEN_MAX,
    COUNT_LIMIT,
    CallArguments,
    ChatReader,
)
from tests.fakes.backend_captures import FOLDER, capture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.errors import UpstreamError

MARKS: Final = {THOUGHT: "<t>", ANSWER: "<a>", CALL: "<c>", ARGUMENTS: "<(>", END: "<end>"}
DONE: Final = b"data: [DONE]\n\n"
TAGS: Final = ("<think>", "</think>")


@pytest.mark.slow
@given(st.lists(st.integers(0, 40), max_size=6), st.sampled_from([
    ("<think>hm <b> </thin</think>\nHi <think>", "<t>hm <b> </thin<a>\nHi <think>"),
    ("\n<think></think>x", "<a>x"),
    ("<think>a</think>\n<think>b</think>\nHi <think>", "<t>ab<a>\nHi <think>"),
    ("<think>a</think> <thi", "<t>a<a> <thi"),
    ("<thin", "<a><thin"),
    ("<think>cut </thi", "<t>cut </thi"),
    ("Hi </think>", "<a>Hi </think>"),
]))  # fmt: skip
def test_thoughts_between_tags_are_taken_apart(cuts: list[int], case: tuple[str, str]) -> None:
    said, text = case
    bounds = [0, *sorted(min(cut, len(said)) for cut in cuts), len(said)]
    events = [event({"content": said[a:b]}) for a, b in pairwise(bounds)]
    made = Heard([*events, event(None, "stop"), DONE], thought=TAGS)
    assert made.text == f"{text}<end>"


def test_one_event_may_have_thousands_of_thoughts() -> None:
    said = "<think>a</think>" * 4000 + "Hi"
    made = Heard([event({"content": said}, "stop"), DONE], thought=TAGS)
    assert made.text == f"<t>{'a' * 4000}<a>Hi<end>"


@pytest.mark.slow
@given(st.lists(st.integers(0, 40), max_size=6), st.sampled_from([
    ("\n hm </thin</think>\nHi </think>", "<t>hm </thin<a>\nHi </think>"),
    ("<think>hm</think>Hi", "<t>hm<a>Hi"),
    ("</think>Hi", "<a>Hi"),
    ("cut </thi", "<t>cut </thi"),
    ("<thi", "<t><thi"),
]))  # fmt: skip
def test_a_thought_that_the_prompt_opened_ends_at_its_tag(
    cuts: list[int], case: tuple[str, str]
) -> None:
    said, text = case
    bounds = [0, *sorted(min(cut, len(said)) for cut in cuts), len(said)]
    events = [event({"content": said[a:b]}) for a, b in pairwise(bounds)]
    made = Heard([*events, event(None, "stop"), DONE], thought=TAGS, opens_thought=True)
    assert made.text == f"{text}<end>"


def test_a_server_that_tells_an_opened_thought_apart_says_the_answer_behind_it() -> None:
    events = [event({"reasoning": "hm"}), event({"content": "\n\nHi"}), event(None, "stop"), DONE]
    made = Heard(events, thought=TAGS, opens_thought=True)
    assert made.text == "<t>hm<a>\n\nHi<end>"


class Heard:
    """What a reader made of some reads: its text with marks, how it ended, and what went wrong."""

    def __init__(
        self,
        reads: Sequence[bytes],
        *,
        max_tokens: int = 1000,
        thought: tuple[str, str] | None = None,
        opens_thought: bool = False,
    ) -> None:
        reader = ChatReader(
            "box",
            Sampling(max_tokens=max_tokens),
            stop_ids=(END,),
            frame_bytes_max=10**6,
            id_end=TEXT_IDS_END,
            thought=thought,
            opens_thought=opens_thought,
        )
        chunks = [reader.feed(read) for read in reads]
        if not reader.finished and reader.fault is None:
            chunks.append(reader.end("closed"))
        told = [chunk for chunk in chunks if chunk is not None]
        ids = [one for chunk in told for one in chunk.ids]
        self.text = "".join(MARKS.get(one) or text_of((one,)) for one in ids)
        self.finish = told[-1].finish if told else None
        self.usage: ReportedUsage | None = told[-1].usage if told else None
        self.fault: UpstreamError | None = reader.fault
        self.overran = reader.overran
        self.tokens_taken = reader.tokens_taken
        self.chunks = [chunk is not None for chunk in chunks]


def event(delta: object = None, finish: str | None = None, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return b"data: " + orjson.dumps({"choices": [choice], **fields}) + b"\n\n"


def fragment(index: int | None, call_id: str | None = None, **function: object) -> bytes:
    called: dict[str, Any] = {"function": function}
    called |= {} if index is None else {"index": index}
    called |= {} if call_id is None else {"id": call_id}
    return event({"tool_calls": [called]})


def heard(*reads: bytes) -> Heard:
    return Heard([*reads, DONE])


def test_a_real_vllm_calls() -> None:
    made = Heard(streamed("vllm_chat/chat_tool_named_no_thinking_stream"))
    assert made.text.startswith("<c>get_weather<(>{")
    assert made.finish in {FinishReason.STOP, FinishReason.LENGTH}
    assert made.usage is not None
    assert made.usage.output_tokens > 0


def test_real_servers_think() -> None:
    for name, usage in (
        ("vllm_chat/chat_think_stream", ReportedUsage(27, 80, 80)),
        ("sglang_chat/chat_stream", ReportedUsage(27, 8, 8)),
    ):
        made = Heard(streamed(name))
        assert made.text.startswith("<t>\n")
        assert (made.finish, made.usage) == (FinishReason.LENGTH, usage)


def streamed(name: str) -> list[bytes]:
    assert capture(name).status == 200
    recorded = (FOLDER / f"{name}.txt").read_bytes()
    return [found[0] + b"\n\n" for found in re.finditer(rb"^data: .*", recorded, re.MULTILINE)]


WHOLE = (
    event({"role": "assistant", "content": None}),
    event({"reasoning_content": "Hm 😀."}),
    event({"content": "I look."}),
    fragment(0, "a", name="add", arguments=""),
    fragment(0, arguments='{"a":'),
    fragment(1, "b", name="get", arguments='{"x'),
    fragment(0, arguments=" 1}"),
    fragment(1, arguments='": 2}'),
    event(None, "tool_calls"),
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":9}}\n\n',
    DONE,
)
WHOLE_TEXT = '<t>Hm 😀.<a>I look.<c>add<(>{"a": 1}<c>get<(>{"x": 2}<end>'


@pytest.mark.slow
@given(st.lists(st.integers(0, sum(map(len, WHOLE))), max_size=8))
def test_no_cut_of_the_bytes_counts(cuts: list[int]) -> None:
    content = b"".join(WHOLE)
    bounds = [0, *sorted(cuts), len(content)]
    reads = [content[a:b] for a, b in itertools.pairwise(bounds) if a < b]
    made = Heard(reads)
    assert (made.text, made.finish, made.usage) == (
        WHOLE_TEXT,
        FinishReason.STOP,
        ReportedUsage(3, 9),
    )


@pytest.mark.slow
@given(st.lists(st.binary(max_size=30) | st.sampled_from(WHOLE), max_size=12))
def test_no_bytes_raise(reads: list[bytes]) -> None:
    made = Heard(reads)
    assert made.fault is not None or made.finish is not None


@pytest.mark.parametrize(
    ("events", "text"),
    [
        pytest.param([event({"reasoning": "x"})], "<t>x", id="vLLM's and Ollama's thoughts"),
        pytest.param(
            [
                event({"content": [{"type": "thinking", "thinking": [{"text": "x"}]}]}),
                event({"content": [{"type": "text", "text": "y"}, 1]}),
            ],
            "<t>x<a>y",
            id="parts",
        ),
        pytest.param([event({"refusal": "No."})], "<a>No.", id="a refusal"),
        pytest.param(
            [fragment(0, name="f", arguments='{"a":1}'), fragment(0, name="f", arguments="{}")],
            '<c>f<(>{"a":1}<c>f<(>{}',
            id="the index 0 of each",
        ),
        pytest.param(
            [
                fragment(0, "1", name="f", arguments="{}"),
                fragment(0, "2", name="g", arguments="{}"),
            ],
            "<c>f<(>{}<c>g<(>{}",
            id="another id at the same index",
        ),
        pytest.param(
            [fragment(0, name="f"), fragment(0, name="g", arguments="{}")],
            "<c>f<(><c>g<(>{}",
            id="another name at the same index",
        ),
        pytest.param(
            [
                fragment(0, "1", name="f"),
                fragment(0, "2", arguments="{"),
                fragment(0, "3", arguments="}"),
            ],
            "<c>f<(>{}",
            id="another id in each fragment",
        ),
        pytest.param(
            [fragment(None, "1", name="f", arguments="{}"), fragment(None, "2", name="g")],
            "<c>f<(>{}<c>g<(>",
            id="no index",
        ),
        pytest.param(
            [fragment(None, name="f", arguments='{"a"'), fragment(None, arguments=":1}")],
            '<c>f<(>{"a":1}',
            id="neither index nor id",
        ),
        pytest.param(
            [fragment(0, arguments="{}"), fragment(0, "late", name="f")],
            "<c>f<(>{}",
            id="a name that comes late",
        ),
        pytest.param([fragment(0, name="f", arguments={"a": 1})], '<c>f<(>{"a":1}', id="an object"),
        pytest.param(
            [event({"tool_calls": {"index": 0, "function": {"name": "f", "arguments": "{}"}}})],
            "<c>f<(>{}",
            id="no list",
        ),
        pytest.param(
            [
                event({"function_call": {"name": "f"}}),
                event({"function_call": {"arguments": "{}"}}),
            ],
            "<c>f<(>{}",
            id="the call of older APIs",
        ),
        pytest.param(
            [fragment(0, name="f", arguments="{}"), event({"content": "x"})],
            "<c>f<(>{}<a>x",
            id="text behind a call",
        ),
        pytest.param([b'data: {"choices":[],"prompt_filter_results":[]}\n\n'], "", id="no choices"),
        pytest.param([event({"content": "a"}), event({"tool_calls": [1, {}]})], "<a>a", id="junk"),
        pytest.param(
            [
                b'data: {"choices":[{"index":%d,"delta":{"content":"%d"}}]}\n\n' % (at, at)
                for at in range(3)
            ],
            "<a>012",
            id="an index that counts events",
        ),
        pytest.param(
            [rb'data: {"choices":[{"delta":{"content":"\ud83d"}}]}' + b"\n\n"],
            "<a>\ufffd",
            id="half a pair",
        ),
    ],
)
def test_the_shapes_of_servers(events: list[bytes], text: str) -> None:
    made = heard(*events, event(None, "stop"))
    assert (made.text, made.finish, made.fault) == (f"{text}<end>", FinishReason.STOP, None)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", FinishReason.STOP),
        ("eos_token", FinishReason.STOP),
        ("eos", FinishReason.STOP),
        ("end_turn", FinishReason.STOP),
        ("MAX_TOKENS", FinishReason.LENGTH),
        ("length", FinishReason.LENGTH),
        ("content_filter", FinishReason.FILTERED),
    ],
)
def test_why_a_turn_ends(reason: str, finish: FinishReason) -> None:
    made = heard(event({"content": "x"}, reason))
    assert made.finish is finish
    assert made.text == ("<a>x<end>" if finish is FinishReason.STOP else "<a>x")


def test_usage_may_come_with_the_finish_and_is_missing_where_it_is_not_told() -> None:
    told = {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 9},
    }
    assert heard(event({"content": "x"}, "stop", usage=told)).usage == ReportedUsage(5, 2, 0, 5)
    beyond = {"prompt_tokens": COUNT_LIMIT, "completion_tokens": 1}
    for odd in ({}, {"prompt_tokens": -1, "completion_tokens": 1}, beyond, None, 7):
        assert heard(event({"content": "x"}, "stop", usage=odd)).usage is None
    # What is told before more text comes is not that of the turn.
    assert heard(event({"content": "x"}, usage=told), event(None, "stop")).usage is not None
    assert heard(event({}, usage=told), event({"content": "x"}, "stop")).usage is None
    called = fragment(0, "a", name="f", arguments="{}")
    assert heard(event({}, usage=told), called, event(None, "stop")).usage is None
    # A stream that stays open behind its finish is over when patience is.
    assert Heard([event({"content": "x"}, "stop")]).finish is FinishReason.STOP


@pytest.mark.parametrize(
    ("reads", "kind"),
    [
        ([b'data: {"error":{"message":"no","code":429}}\n\n'], UpstreamUnavailable),
        ([event({"content": "x"}), b'data: {"error":"it died"}\n\n'], UpstreamFailed),
        ([event({"content": "x"})], UpstreamFailed),
        ([event({"content": "x"}), DONE], UpstreamFailed),
        ([event({"content": "x"}, "abort")], UpstreamFailed),
        ([b"data: [1]\n\n"], UpstreamUnavailable),
        ([], UpstreamLost),
        ([b'data: {"error":{"message":"exceeds the available context size","code":400}}\n\n'],
         ContextOverflow),
        ([fragment(0, "a", name="f", arguments="{}"), fragment(1, "b", name="g"),
          fragment(0, arguments="{")], UpstreamFailed),
        ([fragment(at, str(at), name="f", arguments="{}") for at in range(CALLS_MAX + 1)],
         UpstreamFailed),
    ],
)  # fmt: skip
def test_what_goes_wrong(reads: list[bytes], kind: type[UpstreamError]) -> None:
    assert isinstance(Heard(reads).fault, kind)


def test_who_says_more_than_may_be_is_not_listened_to() -> None:
    made = heard(event({"content": "x" * 10 * CHARACTERS_PER_TOKEN_MAX}))
    assert made.fault is not None
    made = Heard([event({"content": "x" * 10 * CHARACTERS_PER_TOKEN_MAX})], max_tokens=1)
    assert (made.finish, made.overran) == (FinishReason.LENGTH, True)
    too_long = Heard([b"data: " + b"x" * 10**6 + b"\n\n"])
    assert isinstance(too_long.fault, UpstreamUnavailable)


def test_what_was_taken_is_counted_in_tokens() -> None:
    made = heard(event({"content": "x" * 39}, "stop"))
    assert made.tokens_taken == 41 // 4 + 1  # with both marks, and none of what it did not say
    usage = {"prompt_tokens": 5, "completion_tokens": 7}
    assert heard(event({"content": "x"}, "stop", usage=usage)).tokens_taken == 7
    assert heard(b'data: {"error":"no"}\n\n').tokens_taken == 0


SCALARS: Final = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=4),
    st.sampled_from([
        "\ud83d", "text", "thinking", "stop", "tool_calls", "error", "{", '{"a":', "}", " \n",
        "<think>", "</think>",
    ]),
)  # fmt: skip
NAMES: Final = st.sampled_from([
    "arguments", "choices", "code", "completion_tokens", "content", "delta", "error",
    "finish_reason", "function", "function_call", "id", "index", "message", "name", "object",
    "prompt_tokens", "prompt_tokens_details", "reasoning", "refusal", "text", "thinking",
    "tool_calls", "type", "usage",
])  # fmt: skip
ANYTHING: Final = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
CALLED: Final = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({}, optional={"name": ANYTHING, "arguments": ANYTHING})},
    optional={"index": ANYTHING, "id": ANYTHING},
)
DELTAS: Final = st.fixed_dictionaries(
    {},
    optional={
        "content": ANYTHING,
        "reasoning": ANYTHING,
        "tool_calls": st.lists(CALLED, max_size=3) | ANYTHING,
    },
)
CHOICES: Final = st.fixed_dictionaries({"delta": DELTAS}, optional={"finish_reason": ANYTHING})
EVENTS: Final = ANYTHING | st.fixed_dictionaries(
    {"choices": st.lists(CHOICES, min_size=1, max_size=1)}, optional={"usage": ANYTHING}
)


@pytest.mark.slow
@given(st.lists(EVENTS, max_size=5), st.lists(st.integers(0, 2000), max_size=6), st.booleans())
@example([{"choices": [{"delta": {"content": [{"type": "thinking", "thinking": 5}]}}]}], [], False)
@example(
    [
        {
            "choices": [
                {
                    "delta": {
                        "tool_calls": [
                            {"function": {"name": "f", "arguments": {"a": "\ud83d", "b": 2**70}}}
                        ]
                    }
                }
            ]
        }
    ],
    [],
    False,
)
@example([{"choices": [{"delta": {}, "finish_reason": {"a": "\ud83d"}}]}], [], False)
@example([{"error": {"message": "\ud83d"}}], [], False)  # fmt: skip
def test_whatever_a_server_says_is_text_or_an_error(
    events: list[object], cuts: list[int], tagged: bool
) -> None:
    said = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in events)
    thought = ("<think>", "</think>") if tagged else None
    whole = Heard([said], thought=thought)
    bounds = [0, *sorted(min(cut, len(said)) for cut in cuts), len(said)]
    cut_up = Heard([said[a:b] for a, b in pairwise(bounds)], thought=thought)
    assert cut_up.text == whole.text
    assert (cut_up.finish, str(cut_up.fault)) == (whole.finish, str(whole.fault))
    assert cut_up.tokens_taken == whole.tokens_taken
    for text in (whole.text, str(whole.fault)):
        text.encode()


def test_a_call_without_arguments_does_not_hold_up_the_next_one() -> None:
    now = fragment(0, "a", name="now", arguments="")
    made = Heard(
        [now, fragment(1, "b", name="write", arguments='{"t":"'), fragment(1, arguments="x")]
    )
    assert made.chunks[:3] == [True, True, True]
    assert made.text == '<c>now<(><c>write<(>{"t":"x'


def test_white_space_between_fragments_does_not_end_a_call() -> None:
    first, last = fragment(0, "a", name="f", arguments='{"a":'), fragment(0, arguments="1}")
    made = heard(first, event({"content": "\n"}), last, event({"content": "Hi"}, "stop"))
    assert made.text == '<c>f<(>{"a":1}<a>Hi<end>'


def test_what_is_kept_back_counts_as_what_was_told_does() -> None:
    options: Any = {"stop_ids": (END,), "frame_bytes_max": 100, "id_end": TEXT_IDS_END}
    reader = ChatReader("box", Sampling(max_tokens=9), thought=("<think>", "</think>"), **options)
    for size in range(1, 600):
        # Many times as much as may come without an id.
        assert reader.feed(event({"content": " "})) is None
        assert (reader.fault, reader.kept_back) == (None, size)
    made = Heard([event({"content": " "})] * 200, max_tokens=1, thought=("<think>", "</think>"))
    assert (made.finish, made.overran) == (FinishReason.LENGTH, True)
    waiting = fragment(1, "b", name="g", arguments="x" * 99)
    made = Heard([fragment(0, "a", name="f", arguments="{"), waiting, waiting], max_tokens=1)
    assert made.text.startswith("<c>f<(>{<c>g<(>xxx")
    assert (made.finish, made.overran) == (FinishReason.LENGTH, True)
    nameless = fragment(0, "a", arguments="x" * 99)
    assert isinstance(Heard([nameless, nameless], max_tokens=1).fault, UpstreamUnavailable)


@pytest.mark.slow
@given(
    st.recursive(
        st.text(alphabet='ab{}[]"\\ ', max_size=5) | st.integers(0, 9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('{"\\'), inner),
        max_leaves=6,
    ),
    st.lists(st.integers(0, 60), max_size=8),
    st.sampled_from(["", " ", "\n", "x", "{}"]),
)  # fmt: skip
def test_arguments_are_whole_where_their_object_closes(
    value: object, cuts: list[int], behind: str
) -> None:
    text = orjson.dumps(value).decode() + behind
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    arguments, came = CallArguments(), ""
    for part in (text[a:b] for a, b in pairwise(bounds)):
        arguments.add(part)
        came += part
        try:
            is_object = isinstance(orjson.loads(came), dict)
        except orjson.JSONDecodeError:
            is_object = False
        assert arguments.is_whole == is_object
    assert arguments.untold() == text
