"""The tables of releases, as they were read from the sources of vLLM and SGLang."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.generation import Constraint, Sampling, Token, TokenRequest
from gateway.upstreams.engines import (
    ENGINES,
    Capabilities,
    InferenceEngine,
    LmDeploy,
    SGLang,
    TensorRtLlm,
    UnknownEngine,
    Vllm,
)
from tests.fakes.cases import each

VLLM = {
    "0.10.2": ("none", False),
    "0.11.0": ("answer", False),
    "0.11.2": ("answer", False),
    "0.12.0": ("answer", False),
    "0.19.0": ("answer", False),
    "0.20.2": ("answer", False),
    "0.22.1": ("answer", False),
    "0.25.0": ("answer", False),
    "0.26.0": ("answer", False),
    "0.27.0": ("turn", False),
    "0.28.0": ("turn", False),
    "0.29.0": ("turn", False),
    "0.30.0": ("turn", False),
    "0.31.0": ("turn", True),
    "0.32.0": ("turn", True),
    "0.33.0": ("turn", True),
    "1.0.0": ("turn", True),
}
SGLANG = {
    "0.5.2": ("none", False),
    "0.5.4": ("none", False),
    "0.5.6": ("none", False),
    "0.5.8": ("none", False),
    "0.5.10": ("none", False),
    "0.5.11": ("none", False),
    "0.5.12": ("turn", False),
    "0.5.17": ("turn", False),
    "0.5.20": ("turn", False),
    "0.5.21": ("turn", True),
    "0.5.22": ("turn", True),
    "0.5.23": ("turn", True),
    "0.6.0": ("turn", True),
}
SPELLINGS = {
    "0.32.0+cpu": "turn",
    "v0.32.0": "turn",
    " 0.32.0\n": "turn",
    "0.32": "turn",
    "0.32.0.post1": "turn",
    "0.27.0rc1": "turn",
    "0.27.0rc2.dev3+g1a2b3c4": "turn",
    "0.30.1.dev12+g1a2b3c4.d20261120": "turn",
    "0.27.1.dev5": "turn",
    "0.11.1rc7.dev64+g1a2b3c4.cu129": "answer",
    "0.26.1.dev7+g1a2b3c4": "none",  # between an engine that waits for the answer and one that not
    "0.27.0.dev7": "none",
    "0.26.1rc1.dev7": "none",
    "0.11.0.dev1": "none",
    "0.1.dev1+g1a2b3c4": "none",  # what a build without tags calls itself
    "dev": "none",
    "": "none",
    "nightly-2026": "none",
    "1": "none",
    "0.32.0; rm -rf": "none",
}


@each("version", VLLM)
def test_what_a_vllm_can_depends_on_its_release(version: str) -> None:
    grammars, max_whitespace = VLLM[version]
    can = Vllm(version).capabilities(priorities=True)
    assert can == Capabilities(grammars, True, -1, max_whitespace)  # type: ignore[arg-type]


@each("version", SGLANG)
def test_what_an_sglang_can_depends_on_its_release(version: str) -> None:
    grammars, max_whitespace = SGLANG[version]
    can = SGLang(version).capabilities(priorities=True)
    assert can == Capabilities(grammars, True, 1, max_whitespace)  # type: ignore[arg-type]


@each("version", SPELLINGS)
def test_a_version_may_be_spelled_in_many_ways(version: str) -> None:
    assert Vllm(version).capabilities().grammars == SPELLINGS[version]


@pytest.mark.parametrize(
    ("version", "grammars", "max_whitespace"),
    [
        ("0.5.12.post1", "turn", False),
        ("0.5.12rc0", "turn", False),
        ("0.5.13.dev4+g1a2b3c4", "turn", False),
        ("0.5.12.dev4", "none", False),
        ("0.5.21.dev4", "turn", False),
        ("0.5.22.dev4", "turn", True),
        ("0.0.0.dev1", "none", False),
    ],
)
def test_a_development_build_counts_as_what_both_its_neighbours_are(
    version: str, grammars: str, max_whitespace: bool
) -> None:
    can = SGLang(version).capabilities()
    assert (can.grammars, can.max_whitespace) == (grammars, max_whitespace)


def test_what_is_unknown_is_asked_for_nothing() -> None:
    assert UnknownEngine().capabilities(priorities=True) == Capabilities()
    assert SGLang().capabilities() == Capabilities(logprobs=True)
    assert Vllm().capabilities() == Capabilities(logprobs=True)


def test_engines_whose_release_nobody_knows_can_what_their_source_says() -> None:
    assert TensorRtLlm().capabilities(priorities=True) == Capabilities("turn", priority_sign=1)
    assert TensorRtLlm().capabilities(grammars=False) == Capabilities()
    assert LmDeploy().capabilities(priorities=True) == Capabilities()


def test_the_operator_may_turn_grammars_off_and_priorities_on() -> None:
    engine = Vllm("0.32.0")
    assert engine.capabilities(grammars=False).grammars == "none"
    assert engine.capabilities().priority_sign == 0
    assert engine.capabilities(priorities=True).priority_sign == -1


@pytest.mark.parametrize(("low_first", "sign"), [(False, 1), (True, -1)])
def test_an_sglang_may_have_been_told_to_serve_low_priorities_first(
    low_first: bool, sign: int
) -> None:
    said = {"version": "0.5.23", "schedule_low_priority_values_first": low_first}
    engine = SGLang.read("/server_info", said)
    assert engine is not None
    assert engine.capabilities(priorities=True).priority_sign == sign


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("configured", [True, False])
def test_an_sglang_says_itself_whether_it_schedules_by_priority(
    said: bool, configured: bool
) -> None:
    engine = SGLang.read("/server_info", {"version": "0.5.23", "enable_priority_scheduling": said})
    silent = SGLang.read("/server_info", {"version": "0.5.6"})
    assert engine is not None
    assert silent is not None
    assert engine.capabilities(priorities=configured).priority_sign == int(said)
    assert silent.capabilities(priorities=configured).priority_sign == int(configured)


UNUSABLE = {
    SGLang("0.5.2"): "Upgrade it to 0.5.3 or newer",
    Vllm("0.10.1"): "Upgrade it to 0.10.2 or newer",
}


@pytest.mark.parametrize("engine", UNUSABLE)
def test_an_engine_that_is_too_old_is_not_used_and_what_to_do_is_said(
    engine: InferenceEngine,
) -> None:
    found = engine.unusable
    assert found is not None
    assert str(engine) in str(found)
    assert type(engine).lacks in found.why
    assert UNUSABLE[engine] in found.remedy


@each(
    "engine",
    [
        UnknownEngine(),
        SGLang(),
        SGLang("0.5.3"),
        SGLang("0.5.23", frontend="python"),
        SGLang("0.5.23", frontend="rust"),
        Vllm("0.10.2"),
        Vllm("0.1.dev1+g1a2b3c4"),
        SGLang("0.0.0.dev1"),
    ],
)
def test_an_engine_that_may_return_ids_is_used(engine: InferenceEngine) -> None:
    assert engine.unusable is None


@pytest.mark.parametrize(
    ("backend", "grammars"),
    [("xgrammar", "turn"), (None, "turn"), ("none", "none"), ("outlines", "none")],
)
def test_an_sglang_may_have_been_started_with_another_grammar_engine(
    backend: str | None, grammars: str
) -> None:
    engine = SGLang.read("/server_info", {"version": "0.5.23", "grammar_backend": backend})
    assert engine is not None
    assert engine.capabilities().grammars == grammars


PLAIN = TokenRequest("r", "m", [1], Sampling(max_tokens=9), "salt", (2,), 9)
TOLD = replace(PLAIN, sampling=Sampling(max_tokens=9, logprobs=0))


@each(
    ("engine", "plain", "told"),
    [
        (SGLang("0.5.23"), "/v1/completions", "/generate"),
        (SGLang("0.5.17", frontend="python"), "/v1/completions", "/generate"),
        (SGLang("0.5.23", frontend="rust"), "/generate", "/generate"),
        (SGLang("0.5.16"), "/generate", "/generate"),
        (SGLang(), "/v1/completions", "/generate"),
        (SGLang("0.5.17.dev3"), "/v1/completions", "/generate"),
        (Vllm("0.32.0"), "/v1/completions", "/v1/completions"),
        (UnknownEngine(), "/v1/completions", "/v1/completions"),
    ],
)
def test_a_request_goes_to_the_endpoint_that_returns_what_it_needs(
    engine: InferenceEngine, plain: str, told: str
) -> None:
    assert (engine.endpoint(PLAIN).path, engine.endpoint(TOLD).path) == (plain, told)


def test_an_engine_is_known_by_what_it_answers() -> None:
    assert Vllm.read("/version", {"version": "0.32.0"}) == Vllm("0.32.0")
    assert SGLang.read("/server_info", {"version": "0.5.23"}) == SGLang("0.5.23")
    rust = SGLang.read("/server_info", {"version": "0.5.23", "frontend": "rust"})
    assert rust == SGLang("0.5.23", frontend="rust")
    assert SGLang.read("/model_info", {"model_path": "/models/gpt-oss"}) == SGLang()
    listed = {"data": [{"id": "m", "owned_by": "tensorrt_llm"}]}
    assert TensorRtLlm.read("/v1/models", listed) == TensorRtLlm()
    assert LmDeploy.read("/v1/models", {"data": [{"owned_by": "lmdeploy"}]}) == LmDeploy()
    shapes: list[object] = [None, [], [5], [{"owned_by": "vllm"}], {}]
    for rows in shapes:
        assert TensorRtLlm.read("/v1/models", {"data": rows}) is None
        assert LmDeploy.read("/v1/models", {"data": rows}) is None
    for answer in ({}, {"version": 3}, {"detail": "Not Found"}):
        assert Vllm.read("/version", answer) is None
        assert SGLang.read("/server_info", answer) is None
        assert SGLang.read("/model_info", answer) is None


@pytest.mark.parametrize("kind", [Vllm, SGLang])
def test_a_version_is_cut_whatever_a_server_says(kind: type[InferenceEngine]) -> None:
    engine = kind.read(kind.questions[0], {"version": "0.1.0+" + "x" * 10**6})
    assert engine is not None
    assert len(str(engine.unusable)) < 300


def test_engines_and_capabilities_are_shown_to_operators() -> None:
    assert [str(engine) for engine in (Vllm("0.32.0"), SGLang(), UnknownEngine())] == [
        "vLLM 0.32.0",
        "SGLang (version unknown)",
        "unknown engine",
    ]
    assert str(Capabilities("turn", logprobs=True)) == "grammars, logprobs"
    assert str(Capabilities("answer")) == "grammars for answers, no logprobs"
    assert str(Capabilities()) == "no grammars, no logprobs"


def test_a_constraint_holds_in_all_of_a_turn_or_in_its_answer_or_nowhere() -> None:
    bound, bound_answer = Constraint(Token(1)), Constraint(Token(1), answer={})
    for grammars, ranks in (("turn", (0, 2, 2)), ("answer", (0, 0, 1)), ("none", (0, 0, 0))):
        can = Capabilities(grammars)  # type: ignore[arg-type]
        assert tuple(can.rank(one) for one in (None, bound, bound_answer)) == ranks


@pytest.mark.slow
@given(st.text(max_size=30) | st.from_regex(r"v?\d+\.\d+(\.\d+)?(rc\d+)?(\.dev\d+)?(\+\w+)?"))
def test_no_version_makes_it_raise(version: str) -> None:
    for kind in ENGINES:
        kind(version).capabilities()
