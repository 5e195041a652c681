"""Bodies that the Open Responses document allows, as strategies written by hand.

What OpenAI refuses is not among them, although the document would have it: no model, no input,
temperatures and penalties out of bounds, ids in other characters, formats without a name or schema,
options of streams without a stream, background responses that are not stored, and choices of tools
that are not there.
"""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

Json = dict[str, Any]
Strategy = st.SearchStrategy[Any]

TOOL_NAMES: Final = ("now", "get_weather", "a-b_C9")
texts = st.sampled_from(["", "x", "naïve 東京", "two\nlines"]) | st.text(max_size=8)
statuses = st.sampled_from(["in_progress", "completed", "incomplete"])
item_ids = st.sampled_from(["msg_1", "abc", "A-9_z"])


def some(**optional: Strategy) -> st.SearchStrategy[Json]:
    """An object with any of these keys."""
    return st.fixed_dictionaries({}, optional=optional)


def with_type(kind: str, required: dict[str, Strategy], **optional: Strategy) -> Strategy:
    """An object of a type, with keys that must and keys that may be there."""
    return st.fixed_dictionaries({"type": st.just(kind), **required}, optional=optional)


def nullable(strategy: Strategy) -> Strategy:
    return st.none() | strategy


input_text = with_type("input_text", {"text": texts})
input_image = with_type(
    "input_image",
    {"image_url": st.just("https://example.com/a.png")},
    detail=nullable(st.sampled_from(["low", "high", "auto"])),
)
input_file = with_type(
    "input_file",
    {"file_url": st.just("https://example.com/a.pdf")},
    filename=nullable(texts),
    file_data=st.none(),
)
input_video = with_type("input_video", {"video_url": st.just("https://example.com/a.mp4")})
citation = with_type(
    "url_citation",
    {
        "url": st.just("https://example.com"),
        "title": texts,
        "start_index": st.integers(0, 9),
        "end_index": st.integers(0, 9),
    },
)
output_text = with_type("output_text", {"text": texts}, annotations=st.lists(citation, max_size=2))
refusal = with_type("refusal", {"refusal": texts})


def _message(role: str, *parts: Strategy, **optional: Strategy) -> Strategy:
    return with_type(
        "message",
        {"role": st.just(role), "content": texts | st.lists(st.one_of(*parts), max_size=3)},
        id=nullable(item_ids),
        status=nullable(statuses | st.sampled_from(["done", ""])),
        **optional,
    )


messages = st.one_of(
    _message("user", input_text, input_image, input_file),
    _message("system", input_text),
    _message("developer", input_text),
    _message(
        "assistant", output_text, refusal, phase=st.sampled_from(["commentary", "final_answer"])
    ),
)
reasoning = with_type(
    "reasoning",
    {"summary": st.lists(with_type("summary_text", {"text": texts}), max_size=2)},
    id=nullable(item_ids),
    content=st.none(),
    encrypted_content=st.none(),
)
call_ids = st.sampled_from(["c", "call_1", "x" * 64])
call = with_type(
    "function_call",
    {"call_id": call_ids, "name": st.sampled_from(TOOL_NAMES), "arguments": texts},
    id=nullable(item_ids),
    status=nullable(statuses),
)
output = with_type(
    "function_call_output",
    {
        "call_id": call_ids,
        "output": texts
        | st.lists(st.one_of(input_text, input_image, input_file, input_video), max_size=3),
    },
    id=nullable(item_ids),
    status=nullable(statuses),
)
reference = st.fixed_dictionaries(
    {"id": item_ids}, optional={"type": nullable(st.just("item_reference"))}
)
compaction = with_type(
    "compaction", {"encrypted_content": st.just("sealed")}, id=nullable(item_ids)
)
items = st.one_of(messages, reasoning, call, output, reference, compaction)

tool_names = st.sampled_from(TOOL_NAMES)
parameters = st.sampled_from(
    [
        {},
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    ]
)


def _tool(name: str) -> Strategy:
    return with_type(
        "function",
        {"name": st.just(name)},
        description=nullable(texts),
        parameters=nullable(parameters),
        strict=st.just(False),
    )


tools = st.tuples(*(_tool(name) for name in TOOL_NAMES)).map(list)
function = with_type("function", {"name": tool_names})
modes = st.sampled_from(["none", "auto", "required"])
choices = st.one_of(
    st.none(),
    modes,
    function,
    with_type("allowed_tools", {"tools": st.lists(function, min_size=1, max_size=3)}, mode=modes),
)
formats = st.one_of(
    with_type("text", {}),
    with_type(
        "json_schema",
        {"name": st.just("n"), "schema": parameters},
        description=texts,
        strict=st.sampled_from([None, False]),
    ),
)
unit = st.floats(0, 1) | st.integers(0, 1)
penalties = st.floats(-2, 2) | st.integers(-2, 2)
bodies: st.SearchStrategy[Json] = st.fixed_dictionaries(
    {"model": st.just("m"), "input": texts.filter(bool) | st.lists(items, min_size=1, max_size=5)},
    optional={
        "previous_response_id": nullable(st.just("resp_1")),
        "include": st.lists(
            st.sampled_from(["reasoning.encrypted_content", "message.output_text.logprobs"])
        ),
        "metadata": nullable(st.dictionaries(texts, texts, max_size=3)),
        "text": nullable(
            some(format=nullable(formats), verbosity=st.sampled_from(["low", "medium", "high"]))
        ),
        "temperature": nullable(unit),
        "top_p": nullable(unit),
        "presence_penalty": nullable(penalties),
        "frequency_penalty": nullable(penalties),
        "parallel_tool_calls": nullable(st.booleans()),
        "stream": st.booleans(),
        "stream_options": st.none(),
        "background": st.booleans(),
        "max_output_tokens": nullable(st.integers(16, 1000)),
        "max_tool_calls": nullable(st.integers(1, 9)),
        "reasoning": nullable(
            some(
                effort=nullable(st.sampled_from(["none", "low", "medium", "high", "xhigh"])),
                summary=nullable(st.sampled_from(["concise", "detailed", "auto"])),
            )
        ),
        "safety_identifier": nullable(texts),
        "prompt_cache_key": nullable(texts),
        "truncation": st.sampled_from(["auto", "disabled"]),
        "instructions": nullable(texts),
        "service_tier": st.sampled_from(["auto", "default", "flex", "priority"]),
        "top_logprobs": nullable(st.integers(0, 20)),
    },
)
with_tools: st.SearchStrategy[Json] = st.builds(
    lambda body, offered, choice: {**body, "tools": offered, "tool_choice": choice},
    bodies,
    tools,
    choices,
)
"""The same with tools, and perhaps a choice of them."""
