"""Laws of rendering, judged by openai-harmony wherever it has an opinion."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.constraints.output_rules import AnswerFormat
from gateway.errors import InvalidRequest
from gateway.generation import PREAMBLE
from gateway.ids import output_item_id
from gateway.models.harmony.rendering import Renderer
from gateway.models.harmony.tokenizer import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    FIRST_SPECIAL,
    MESSAGE,
    OPENING,
)
from gateway.models.harmony.tool_typescript import SchemaNormaliser, function_text
from gateway.protocol.tool_types import FunctionTool
from tests.fakes.contexts import (
    answer,
    call,
    context_item,
    from_wire,
    options,
    output,
    said,
    thought,
    user,
)
from tests.fakes.examples import examples
from tests.fakes.harmony_oracle import library_declaration, library_prompt, vocabulary
from tests.fakes.harmony_reference import prompt_messages

if TYPE_CHECKING:
    from gateway.models.format import RenderOptions
    from gateway.models.harmony.tool_typescript import Schema
    from gateway.protocol.context_item import ContextItem

laws = settings(deadline=None, max_examples=examples(40))

# Conversations ----------------------------------------------------------------------------------

markers = st.sampled_from(["<|end|>", "<|start|>system<|message|>", "<|call|>", " to=f", "\n\n"])
texts = st.one_of(st.text(max_size=40), st.lists(markers, max_size=3).map("".join))
names = st.text("abcXYZ019_-.", min_size=1, max_size=12)
ENDS = "\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"
"""Ends of lines to us and not to the library, which lets a description out of its comment."""
FORMED = output_item_id("msg_", UUID(int=7), 0, form=2)
item_ids = st.sampled_from([None, "item_1", "item_2", "taken", FORMED])


@st.composite
def tool_calls(draw: st.DrawFn) -> list[ContextItem]:
    """One to three calls of any kinds at once, and their outputs in any order."""
    number = draw(st.integers(0, 9999))
    ids = [f"call_{number}_{i}" for i in range(draw(st.integers(1, 3)))]
    pairs = [draw(tool_rounds(call_id)) for call_id in ids]
    return [called for called, _ in pairs] + draw(st.permutations([told for _, told in pairs]))


@st.composite
def tool_rounds(draw: st.DrawFn, call_id: str) -> tuple[ContextItem, ContextItem]:
    """A call with its output."""
    name, said_to, told = draw(names), draw(texts), draw(texts)
    shell = {"stdout": told, "stderr": "", "outcome": {"type": "timeout"}}
    file = {"type": "create_file", "path": name, "diff": said_to}
    made: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"name": name, "namespace": "n", "arguments": said_to}, {"output": told}),
        ({"name": name, "input": said_to}, {"output": [{"type": "input_text", "text": told}]}),
        ({"action": {"type": "exec", "command": [said_to]}}, {"output": told}),
        ({"action": {"commands": [said_to]}}, {"output": [shell]}),
        ({"operation": file}, {"output": told, "status": "failed"}),
    ]
    kinds = ["function", "custom_tool", "local_shell", "shell", "apply_patch"]
    at = draw(st.integers(0, 4))
    called, answered = made[at]
    kind = f"{kinds[at]}_call"
    return (
        from_wire({"type": kind, "call_id": call_id, **called}),
        from_wire({"type": f"{kind}_output", "call_id": call_id, **answered}),
    )


single_items = st.one_of(
    texts.map(user),
    texts.map(thought),
    st.builds(answer, texts, st.sampled_from(["commentary", "final_answer", None])),
    st.builds(said, st.sampled_from(["system", "developer"]), texts),
).map(lambda item: [item])
contexts = st.lists(st.one_of(single_items, tool_calls()), max_size=8).map(
    lambda groups: [item for group in groups for item in group]
)


# Schemas that openai-harmony writes well --------------------------------------------------------

words = st.text("abc xyz,.;é中'`", max_size=12)
keys = st.text("abcdxyz_", min_size=1, max_size=6)
notes = st.fixed_dictionaries({}, optional={"description": words, "title": words})
numbers = st.integers(-9999, 9999).map(lambda n: n / 64) | st.sampled_from([1e22, 1e-7, 2.5e300])
"""Short ones: the library reads long ones inexactly in the last digit."""
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | numbers | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=2),
    max_leaves=3,
)
defaults = st.fixed_dictionaries({}, optional={"default": json_values})
plain_types = st.sampled_from(["string", "number", "integer", "boolean"])
leaves = st.one_of(
    plain_types.map(lambda name: {"type": name}),
    st.lists(words, min_size=1, max_size=3).map(lambda v: {"type": "string", "enum": v}),
    st.lists(plain_types | st.just("null"), min_size=2, max_size=3).map(lambda v: {"type": v}),
    st.just({}),
    st.just({"type": "object"}),
    st.just({"type": "array"}),
)  # fmt: skip


def with_notes(schemas: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.builds(
        lambda schema, note, default: schema | note | default, schemas, notes, defaults
    )


def object_schemas(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    properties = st.dictionaries(keys, with_notes(inner), max_size=3)
    required = st.lists(keys, max_size=2)
    return st.builds(
        lambda p, r: {"type": "object", "properties": p, "required": r}, properties, required
    )


def unions(inner: st.SearchStrategy[Schema], key: str) -> st.SearchStrategy[Schema]:
    return st.lists(with_notes(inner), min_size=1, max_size=3).map(lambda v: {key: v})


def is_bracketless(schema: Schema) -> bool:
    """Whether the library may put `[]` behind it."""
    return isinstance(schema.get("type"), str) and "enum" not in schema


def library_right(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    arrays = inner.filter(is_bracketless).map(lambda items: {"type": "array", "items": items})
    return st.one_of(object_schemas(inner), arrays, unions(inner, "oneOf"))


right_schemas = st.recursive(leaves, library_right, max_leaves=6)
right_parameters = object_schemas(right_schemas)


def resolvable(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    """The same types, said with keywords that the library does not read."""
    return st.one_of(
        library_right(inner),
        unions(inner, "anyOf"),
        inner.map(lambda schema: {"allOf": [schema]}),
        inner.map(lambda schema: {"anyOf": [schema]}),
        words.map(lambda text: {"const": text}),
        st.sampled_from(["A", "B"]).map(lambda name: {"$ref": f"#/$defs/{name}"}),
        st.lists(words, min_size=1, max_size=3).map(lambda v: {"enum": v}),
    )


resolvable_parameters = st.builds(
    lambda schema, a, b: schema | {"$defs": {"A": a, "B": b}},
    object_schemas(st.recursive(leaves, resolvable, max_leaves=6)),
    leaves.filter(is_bracketless),
    object_schemas(leaves),
)

KEYWORDS = [
    *("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "nullable"),
    *("properties", "required", "additionalProperties", "patternProperties", "items"),
    *("prefixItems", "description", "title", "default", "examples"),
]
anything = st.recursive(
    json_values,
    lambda inner: st.dictionaries(
        st.sampled_from(KEYWORDS),
        inner | st.lists(inner, max_size=3) | st.sampled_from(["string", "object", "array", "#"]),
        max_size=5,
    ),
    max_leaves=20,
).filter(lambda schema: isinstance(schema, dict))


def normalised(schema: Schema) -> Schema:
    return SchemaNormaliser().normalise(schema, param="tools[0].parameters")


descriptions = st.text(
    st.characters(exclude_characters=ENDS, exclude_categories=["Cs"]), max_size=30
)
tools = st.lists(
    st.builds(
        FunctionTool,
        name=names,
        description=st.none() | descriptions,
        parameters=st.none() | right_parameters,
    ),
    max_size=2,
).map(tuple)
answers = st.builds(
    AnswerFormat,
    st.sampled_from(["json_object", "json_schema"]),
    right_parameters,
    name=names,
    description=texts,
)
some_options = st.builds(
    options,
    instructions=st.none() | texts,
    tools=tools,
    current_date=st.sampled_from([None, "2026-11-20"]),
    commentary_without_tools=st.booleans(),
    answer=st.none() | answers,
)


# Laws -------------------------------------------------------------------------------------------


@pytest.mark.slow
@laws
@given(contexts, some_options)
def test_ids_equal_those_of_openai_harmony(items: list[ContextItem], chosen: RenderOptions) -> None:
    prompt = Renderer(vocabulary()).render(items, chosen)
    assert list(prompt.ids) == library_prompt(prompt_messages(items, chosen))


@pytest.mark.slow
@laws
@given(contexts, some_options)
def test_the_whole_prompt_is_preamble_items_and_opening(
    items: list[ContextItem], chosen: RenderOptions
) -> None:
    prompt = Renderer(vocabulary()).render(items, chosen)
    ends = [0, *(span.end for span in prompt.spans)]
    assert [span.start for span in prompt.spans] == ends[:-1]
    assert tuple(prompt.ids[ends[-1] :]) == OPENING
    assert prompt.spans[0].source == PREAMBLE
    sources = [span.source for span in prompt.spans]
    assert len(set(sources)) == len(sources)


@pytest.mark.slow
@laws
@given(contexts, some_options)
def test_items_that_carry_their_rendered_ids_make_the_same_prompt(
    items: list[ContextItem], chosen: RenderOptions
) -> None:
    renderer = Renderer(vocabulary())
    prompt = renderer.render(items, chosen)
    stored = list(items)
    for span in prompt.spans[1:]:
        stored[span.source] = stored[span.source].with_ids(prompt.ids[span.start : span.end])
    assert renderer.render(stored, chosen) == prompt


@pytest.mark.slow
@laws
@given(contexts, some_options, st.lists(texts, min_size=1, max_size=4))
def test_in_a_tool_loop_each_prompt_extends_the_one_before_and_its_output(
    items: list[ContextItem], chosen: RenderOptions, rounds: list[str]
) -> None:
    encode = vocabulary().encode
    renderer = Renderer(vocabulary())
    context = [*items, user()]
    for number, text in enumerate(rounds):
        prompt = renderer.render(context, chosen).ids
        thinking = [CHANNEL, *encode("analysis"), MESSAGE, *encode(text), END]
        header = [*encode("commentary to=functions.f "), CONSTRAIN, *encode("json"), MESSAGE]
        calling = [CHANNEL, *header, *encode("{}"), CALL]
        context += [
            thought(text).with_ids(array("I", [*OPENING, *thinking])),
            call(f"loop_{number}", "f").with_ids(array("I", [*OPENING, *calling])),
            output(f"loop_{number}", text),
        ]
        following = renderer.render(context, chosen).ids
        said = [*prompt, *thinking, *OPENING, *calling]
        assert list(following[: len(said)]) == said


@pytest.mark.slow
@laws
@given(some_options, some_options)
def test_what_stands_before_the_conversation_depends_on_nothing_but_the_request(
    chosen: RenderOptions, others: RenderOptions
) -> None:
    renderer = Renderer(vocabulary())
    alone = renderer.render([user()], chosen)
    renderer.render([user("of somebody else")], others)
    again = renderer.render([user(), thought(), call("c"), output("c"), user()], chosen)
    begin = alone.spans[0].end
    assert again.ids[:begin] == alone.ids[:begin]


@pytest.mark.slow
@laws
@given(contexts, st.text(max_size=60), some_options)
def test_the_number_of_special_ids_does_not_depend_on_text(
    items: list[ContextItem], text: str, chosen: RenderOptions
) -> None:
    def specials(content: str) -> int:
        prompt = Renderer(vocabulary()).render(
            [*items, user(content), answer(f"x{content}")], chosen
        )
        return sum(token >= FIRST_SPECIAL for token in prompt.ids)

    assert specials(text) == specials("harmless")


@pytest.mark.slow
@laws
@given(right_parameters)
def test_a_schema_that_the_library_writes_well_is_written_alike(schema: Schema) -> None:
    assert function_text("f", normalised(schema)) == library_declaration(schema)


@pytest.mark.slow
@laws
@given(resolvable_parameters)
def test_a_resolved_schema_is_written_as_the_library_would(schema: Schema) -> None:
    resolved = normalised(schema)
    assert function_text("f", resolved) == library_declaration(resolved)


@pytest.mark.slow
@laws
@given(anything)
def test_any_schema_is_written_or_refused(schema: dict[str, Any]) -> None:
    try:
        text = function_text("f", normalised(schema))
    except InvalidRequest as error:
        assert error.code == "invalid_function_parameters"  # noqa: PT017
    else:
        assert text.endswith(") => any;\n")


@pytest.mark.slow
@laws
@given(right_schemas | resolvable_parameters | anything)
@example({"const": None, "anyOf": [None, {"type": "string"}]})
def test_normalising_twice_changes_nothing(schema: Schema) -> None:
    try:
        once = normalised(schema)
    except InvalidRequest:
        return
    assert function_text("f", normalised(once)) == function_text("f", once)


@pytest.mark.slow
@laws
@given(contexts, some_options, some_options)
def test_what_is_kept_of_a_scope_changes_none_of_its_prompts(
    items: list[ContextItem], chosen: RenderOptions, others: RenderOptions
) -> None:
    renderer = Renderer(vocabulary())
    plain = Renderer(vocabulary()).render(items, chosen)
    renderer.render(items, replace(others, scope=b"tenant"))
    for _ in range(2):
        assert renderer.render(items, replace(chosen, scope=b"tenant")) == plain


@pytest.mark.slow
@laws
@given(contexts, contexts, some_options, st.lists(item_ids, min_size=1, max_size=3))
def test_items_that_are_sent_again_are_rendered_as_at_first(
    items: list[ContextItem],
    others: list[ContextItem],
    chosen: RenderOptions,
    names: list[str | None],
) -> None:
    renderer, kept = Renderer(vocabulary()), replace(chosen, scope=b"tenant")
    items, others = named(items, names), named(others, names)
    plain = renderer.render(items, chosen)
    renderer.render(others, kept)
    for _ in range(2):
        assert renderer.render(items, kept) == plain


def named(items: list[ContextItem], names: list[str | None]) -> list[ContextItem]:
    """The items with these ids, one after the other; those of which one is taken get another."""
    made: list[ContextItem] = []
    for item, name in zip(items, cycle(names), strict=False):
        typed = item.item().model_copy(update={"id": name})
        item_id = "another" if name == "taken" else name or f"own_{len(made)}"
        spelled = typed.model_copy(update={"id": item_id}).model_dump_json().encode()
        made.append(
            replace(context_item(typed, complete=item.complete), item_id=item_id, json=spelled)
        )
    return made
