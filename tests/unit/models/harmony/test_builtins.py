"""The tools that the model was trained with, in the system message."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.models.format import NO_BUILTINS, Builtins
from gateway.models.harmony.rendering import SYSTEM_MESSAGES_MAX, Renderer
from gateway.protocol.grants import BrowserGrant, Grants, PythonGrant
from gateway.protocol.tool_types import FunctionTool
from tests.fakes.contexts import options, user
from tests.fakes.harmony_oracle import library_prompt, spelled, vocabulary
from tests.fakes.harmony_reference import prompt_messages

F = FunctionTool(name="f", parameters={})
BOTH = Builtins(browser=True, python=True)
words = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=20)
some_builtins = st.builds(
    Builtins,
    browser=st.booleans(),
    python=st.booleans(),
    python_description=st.none() | words.map(str.strip).filter(bool),
    location=st.none() | words,
)


@pytest.mark.slow
def test_the_packaged_texts_are_openai_harmonys() -> None:
    packaged = json.loads(
        (files("gateway.models.harmony") / "data" / "builtin_tools.json").read_text("utf-8")
    )
    tools = {"browser": Builtins(browser=True), "python": Builtins(python=True)}
    assert packaged == {name: library_section(builtins) for name, builtins in tools.items()}


def library_section(builtins: Builtins) -> str:
    """Return openai-harmony's text about a tool, cut out of its system message."""
    text = spelled(library_prompt(prompt_messages([], replace(options(), builtins=builtins))))
    tools, channels = "# Tools\n\n", "\n\n# Valid channels"
    return text[text.index(tools) + len(tools) : text.rindex(channels)]


def test_a_description_of_python_is_told_as_openai_harmony_tells_it() -> None:
    builtins = Builtins(browser=True, python=True, python_description="A shell.")
    chosen = replace(options(), builtins=builtins)
    ids = Renderer(vocabulary()).render([user("hi")], chosen).ids
    assert list(ids) == library_prompt(prompt_messages([user("hi")], chosen))


@pytest.mark.slow
@given(some_builtins, st.booleans(), st.booleans(), st.none() | st.text(max_size=9))
def test_prompts_with_built_in_tools_are_openai_harmonys(
    builtins: Builtins, has_function: bool, commentary: bool, instructions: str | None
) -> None:
    chosen = replace(
        options(
            instructions=instructions,
            tools=(F,) if has_function else (),
            commentary_without_tools=commentary,
        ),
        builtins=builtins,
    )
    items = [user("hi")]
    ids = Renderer(vocabulary()).render(items, chosen).ids
    assert list(ids) == library_prompt(prompt_messages(items, chosen))


@pytest.mark.parametrize(
    ("builtins", "ids"), [(Builtins(browser=True), 400), (Builtins(python=True), 137), (BOTH, 534)]
)
def test_a_tool_costs_what_it_was_measured_to_cost(builtins: Builtins, ids: int) -> None:
    renderer = Renderer(vocabulary())
    bare = len(renderer.render([], options()).ids)
    assert len(renderer.render([], replace(options(), builtins=builtins)).ids) - bare == ids


def test_only_functions_have_to_be_called_in_the_commentary_channel() -> None:
    renderer = Renderer(vocabulary())
    line = "Calls to these tools must go to the commentary channel: 'functions'."
    alone = spelled(renderer.render([], replace(options(), builtins=BOTH)).ids)
    beside = spelled(renderer.render([], replace(options(tools=(F,)), builtins=BOTH)).ids)
    assert "# Tools\n\n## browser\n\n// Tool for browsing." in alone
    assert line not in alone
    assert line in beside


def test_where_the_user_is_stands_in_no_system_message() -> None:
    """It is a word of the request: no more than its instructions, and not kept for anybody else."""
    renderer = Renderer(vocabulary())
    placed = replace(BOTH, location="Paris,\n\nFR")
    ids = renderer.render([], replace(options(instructions="Be kind."), builtins=placed)).ids
    system, developer = spelled(ids).split("<|start|>developer")
    assert "Paris" not in system
    assert "# Instructions\n\nBe kind.\n\n" in developer
    assert developer.startswith("<|message|>")
    assert "Paris, FR.<|end|>" in developer
    blank = replace(options(), builtins=replace(BOTH, location=" \n"))
    assert "developer" not in spelled(renderer.render([], blank).ids)


def test_what_is_kept_of_system_messages_is_bounded_and_told_apart() -> None:
    renderer = Renderer(vocabulary())
    for number in range(2 * SYSTEM_MESSAGES_MAX):
        told = Builtins(python=True, python_description=f"No. {number}")
        ids = renderer.render([], replace(options(), builtins=told)).ids
        assert f"## python\n\nNo. {number}\n\n# Valid" in spelled(ids)
    assert renderer._system_ids.cache_info().currsize == SYSTEM_MESSAGES_MAX


def test_prompts_of_a_scope_tell_locations_apart() -> None:
    renderer = Renderer(vocabulary())
    for town in ("Rome", "Oslo"):
        chosen = replace(options(), scope=b"t", builtins=replace(BOTH, location=town))
        assert town in spelled(renderer.render([], chosen).ids)


def test_grants_say_which_tools_are_told_of() -> None:
    browser = BrowserGrant("web_search", location="Paris")
    python = PythonGrant("cntr_1", "linux", 1 << 30, description=" Python 3.14.\n")
    assert Builtins.from_grants(None) is NO_BUILTINS
    assert Builtins.from_grants(Grants()) == NO_BUILTINS
    blank = PythonGrant("cntr_1", "linux", 1 << 30, description=" ")
    assert Builtins.from_grants(Grants(python=blank)) == Builtins(python=True)
    assert Builtins.from_grants(Grants(browser=browser)) == Builtins(browser=True, location="Paris")
    assert Builtins.from_grants(Grants(python=python)) == Builtins(
        python=True, python_description="Python 3.14."
    )
