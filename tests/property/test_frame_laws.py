"""What is kept for requests that are alike is what each of them would be given by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.alike import alike
from gateway.protocol.create import CreateResponse
from gateway.protocol.echo import echo
from gateway.protocol.limits import InputLimits
from gateway.protocol.responses import spelled_echo
from gateway.services.frames import Frames, frame_of
from gateway.services.models import Model
from gateway.tenancy import TenantPolicy

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
DOCUMENTS = st.fixed_dictionaries(
    {"model": st.sampled_from(["m", "alias"]), "input": st.text(min_size=1, max_size=20)},
    optional={
        "background": st.booleans(),
        "frequency_penalty": st.just(0.5),
        "include": st.just(["reasoning.encrypted_content"]),
        "instructions": st.text(max_size=20),
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


@given(DOCUMENTS, MODELS, POLICIES)
def test_a_kept_frame_is_the_request_s_own(
    document: dict[str, Any], model: Model, policy: TenantPolicy
) -> None:
    request = alike(document, LIMITS)
    assert request is not None
    for _ in range(2):
        kept = frames.kept(request, model, policy)
        assert kept is not None
        assert kept.checker is not None
        own = frame_of(CreateResponse.model_validate(document), model, policy)
        assert replace(kept, checker=None, request=own.request) == own


@given(DOCUMENTS, MODELS, POLICIES)
def test_a_head_repeats_what_its_request_says(
    document: dict[str, Any], model: Model, policy: TenantPolicy
) -> None:
    request = CreateResponse.model_validate(document)
    head = frame_of(request, model, policy).head(UUID_1, 1, request.instructions, None)
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
    DOCUMENTS, MODELS, st.sampled_from([{"top_p": 0.25}, {"tool_choice": "none"}, {"user": "x"}])
)
def test_a_request_that_was_changed_is_like_no_other(
    document: dict[str, Any], model: Model, change: dict[str, Any]
) -> None:
    request = alike(document, LIMITS)
    assert request is not None
    assert frames.kept(request, model, TenantPolicy()) is not None
    assert frames.kept(request.model_copy(update=change), model, TenantPolicy()) is None


def test_a_request_that_was_read_by_itself_has_no_frame_of_others() -> None:
    request = CreateResponse.model_validate({"model": "m", "input": "hi"})
    assert frames.kept(request, Model("m", 0, 1000, (), "low"), TenantPolicy()) is None
