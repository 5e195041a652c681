"""What is kept for requests that are alike is what each of them would be given by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from gateway.constraints.validation import Checker
from gateway.protocol.alike import alike
from gateway.protocol.calls import call_fields
from gateway.protocol.create import CreateResponse
from gateway.protocol.echo import echo
from gateway.protocol.limits import InputLimits
from gateway.protocol.responses import spelled_echo
from gateway.services.frames import GRAMMAR_BYTES_MIN, Frames, frame_of
from gateway.services.models import Model
from gateway.tenancy import TenantPolicy

if TYPE_CHECKING:
    from gateway.constraints.rules import OutputRules

LIMITS = InputLimits(
    json_depth_max=20,
    items_max=10,
    tools_max=10,
    schema_bytes_max=1000,
    text_chars_max=20,
    json_containers_max=100,
)
MODELS = st.sampled_from(
    [
        Model("m", 0, 1000, (), "low"),
        Model("m", 0, 2000, (), "high"),
        Model("n", 0, 1000, (), "low"),
    ]
)
POLICIES = st.builds(
    TenantPolicy,
    reasoning_summary=st.sampled_from(["analysis", "off"]),
    service_tier_max=st.sampled_from(["default", "priority"]),
)
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "f", "description": "100 %b", "parameters": {}},
    {"type": "function", "name": "g", "parameters": {"type": "object"}, "strict": True},
    {"type": "custom", "name": "c"},
    {"type": "web_search"},
]
DOCUMENTS = st.fixed_dictionaries(
    {"model": st.sampled_from(["m", "alias"]), "input": st.text(min_size=1, max_size=20)},
    optional={
        "background": st.booleans(),
        "frequency_penalty": st.just(0.5),
        "include": st.just(["reasoning.encrypted_content"]),
        "instructions": st.text(max_size=20),
        "metadata": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
        "previous_response_id": st.text(max_size=5),
        "prompt_cache_key": st.text(max_size=5),
        "safety_identifier": st.just("%s"),
        "tool_choice": st.sampled_from(["auto", "none"]),
        "tools": st.lists(st.sampled_from(TOOLS), max_size=2, unique_by=str),
        "user": st.text(max_size=5),
        "max_output_tokens": st.sampled_from([16, 500]),
        "parallel_tool_calls": st.booleans(),
        "reasoning": st.sampled_from([{"effort": "low"}, {"summary": "auto"}]),
        "service_tier": st.sampled_from(["flex", "priority"]),
        "stream": st.booleans(),
        "top_p": st.just(0.5),
    },
)
frames = Frames()
UUID_1 = UUID(int=1)


def checked(rules: OutputRules) -> Checker:
    checker = Checker(rules, call_fields)
    checker.compile()
    return checker


@given(DOCUMENTS, MODELS, POLICIES)
def test_a_kept_frame_is_the_request_s_own(
    document: dict[str, Any], model: Model, policy: TenantPolicy
) -> None:
    request = alike(document, LIMITS, scope=b"ours")
    assert request is not None
    made = frames.made(request, model, policy, checked)
    kept = frames.kept(request, model, policy)
    assert kept is made
    assert kept.checker is not None
    alone = frame_of(CreateResponse.model_validate(document), model, policy)
    shared = replace(kept, checker=None, request=alone.request)
    assert replace(shared, spelled=b"", template=b"", json_bytes=0) == alone
    assert kept.head(UUID_1, 1, request, None) == alone.head(UUID_1, 1, alone.request, None)


@given(DOCUMENTS, MODELS, POLICIES)
def test_a_head_repeats_what_its_request_says(
    document: dict[str, Any], model: Model, policy: TenantPolicy
) -> None:
    request = CreateResponse.model_validate(document)
    alone = frame_of(request, model, policy).head(UUID_1, 1, request, None)
    like_others = alike(document, LIMITS, scope=b"ours")
    assert like_others is not None
    kept = frames.made(like_others, model, policy, checked)
    head = kept.head(UUID_1, 1, like_others, None)
    assert head.echo == alone.echo
    assert head.spelled == alone.spelled
    tier = head.echo["service_tier"]
    assert head.echo == echo(
        request,
        model=model.id,
        default_effort=model.reasoning_effort,
        service_tier=tier,
        summaries=policy.reasoning_summary != "off",
    )
    assert head.spelled == spelled_echo(head.echo)


@given(
    DOCUMENTS,
    MODELS,
    st.sampled_from([{"top_p": 0.25}, {"tool_choice": "required"}, {"seed": 1}, {"stop": ("x",)}]),
)
def test_a_request_that_was_changed_is_like_no_other(
    document: dict[str, Any], model: Model, change: dict[str, Any]
) -> None:
    request = alike(document, LIMITS, scope=b"ours")
    assert request is not None
    frames.made(request, model, TenantPolicy(), checked)
    assert frames.kept(request, model, TenantPolicy()) is not None
    assert frames.kept(request.model_copy(update=change), model, TenantPolicy()) is None


def test_a_request_that_was_read_by_itself_has_no_frame_of_others() -> None:
    request = CreateResponse.model_validate({"model": "m", "input": "hi"})
    frames.made(request, Model("m", 0, 1000, (), "low"), TenantPolicy(), checked)
    assert frames.kept(request, Model("m", 0, 1000, (), "low"), TenantPolicy()) is None


def test_each_grammar_of_a_frame_counts_though_they_are_the_same() -> None:
    def is_kept(tools: int) -> bool:
        grammar = {"type": "grammar", "syntax": "regex", "definition": r"\p{L}"}
        custom = [{"type": "custom", "name": f"c{at}", "format": grammar} for at in range(tools)]
        request = alike({"model": "m", "input": "hi", "tools": custom}, LIMITS, scope=b"ours")
        assert request is not None
        few, model = Frames(bytes_max=3 * GRAMMAR_BYTES_MIN), Model("m", 0, 1000, (), "low")
        few.made(request, model, TenantPolicy(), checked)
        return few.kept(request, model, TenantPolicy()) is not None

    assert is_kept(2)
    assert not is_kept(3)
