from __future__ import annotations

import re
from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway.generation import Constraint, Ebnf, InOrder, Json, Node, Sampling, Token, TokenRequest
from gateway.upstreams.backend import ServedModel
from gateway.upstreams.engines import TOP_P_MIN, LmDeploy, SGLang, TensorRtLlm, Vllm
from gateway.upstreams.request_writer import TAG_BYTES_MAX, RequestWriter
from tests.fakes.backend_captures import capture
from tests.fakes.cases import each

if TYPE_CHECKING:
    from gateway.upstreams.engines import InferenceEngine

SERVED = ServedModel("served")
STOP_IDS = (200002, 200012, 199999)
REQUEST = TokenRequest(
    "req_1", "public", [1, 2, 3], Sampling(max_tokens=9), "salt", STOP_IDS, 1 << 31
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
MARKERS = (200006, 200005, 200003, 200008, 200007)
BOUND = replace(
    REQUEST,
    constraint=Constraint(
        InOrder((Token(200006), Json(SCHEMA))),
        answer=SCHEMA,
        markers=MARKERS,
        answer_opening=(200005, 17196),
    ),
)


def speaking(
    engine: InferenceEngine, *, grammars: bool = True, priorities: bool = False
) -> RequestWriter:
    return RequestWriter(engine, engine.capabilities(grammars=grammars, priorities=priorities))


VLLM = speaking(Vllm("0.32.0"), priorities=True)
VLLM_29 = speaking(Vllm("0.29.0"))
VLLM_20 = speaking(Vllm("0.20.2"))
VLLM_10 = speaking(Vllm("0.10.2"))
SGLANG = speaking(SGLang("0.5.23"), priorities=True)
SGLANG_5 = speaking(SGLang("0.5.5"))
UNKNOWN = RequestWriter()


def sent(
    dialect: RequestWriter, request: TokenRequest = REQUEST, served: ServedModel = SERVED
) -> dict[str, Any]:
    grammar = dialect.grammar(request)
    body = dialect.body(
        request,
        served=served,
        endpoint=dialect.engine.endpoint(request),
        prompt=[orjson.dumps(request.prompt_ids)],
        grammar=grammar,
    )
    found: dict[str, Any] = orjson.loads(b"".join(body))
    return found


def sampled(**chosen: Any) -> TokenRequest:
    return replace(REQUEST, sampling=Sampling(max_tokens=9, **chosen))


EVERYWHERE = {
    "model": "served",
    "prompt": [1, 2, 3],
    "stream": True,
    "stream_options": {"include_usage": True},
    "return_token_ids": True,
    "skip_special_tokens": False,
    "stop_token_ids": [200002, 200012, 199999],
    "max_tokens": 9,
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "cache_salt": "salt",
}


@pytest.mark.parametrize("dialect", [VLLM, VLLM_10, UNKNOWN])
def test_everything_vllm_has_a_default_for_is_sent(dialect: RequestWriter) -> None:
    own: dict[str, Any] = {"request_id": "req_1", "include_stop_str_in_output": True}
    if dialect is VLLM:
        own["priority"] = 0
    assert sent(dialect) == {**EVERYWHERE, **own}


def test_sglang_is_sent_only_what_it_knows() -> None:
    own: dict[str, Any] = {"rid": "req_1", "no_stop_trim": True, "priority": 0}
    assert sent(SGLANG) == {**EVERYWHERE, **own}


SGLANG_RUST = speaking(SGLang("0.5.23", frontend="rust"), priorities=True)
SAMPLED = {
    "max_new_tokens": 9,
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "stop_token_ids": [200002, 200012, 199999],
    "skip_special_tokens": False,
    "no_stop_trim": True,
    "stream_interval": 1,
}
KNOWN_SAMPLING = re.findall(
    rb"`(\w+)`", capture("sglang/generate_unknown_sampling_key").body.partition(b"one of")[2]
)
"""What SGLang 0.5.23 said that it expects."""


def test_generate_is_asked_in_its_own_words() -> None:
    assert sent(SGLANG_RUST) == {
        "input_ids": [1, 2, 3],
        "stream": True,
        "rid": "req_1",
        "cache_salt": "salt",
        "priority": 0,
        "sampling_params": SAMPLED,
    }


@pytest.mark.parametrize(
    ("engine", "salts"),
    [
        (SGLang("0.5.5"), {"extra_key"}),
        (SGLang("0.5.18"), {"extra_key"}),
        (SGLang("0.5.19"), {"cache_salt"}),
        (SGLang(), {"extra_key", "cache_salt"}),
    ],
)
def test_tenants_are_kept_apart_in_the_words_of_each_release(
    engine: SGLang, salts: set[str]
) -> None:
    body = sent(speaking(engine), sampled(logprobs=1))
    assert {key for key, value in body.items() if value == "salt"} == salts
    assert not salts & sent(speaking(engine), replace(sampled(logprobs=1), cache_salt="")).keys()


def test_generate_is_given_the_tag_as_a_string_among_the_sampling_parameters() -> None:
    bare = replace(
        BOUND, constraint=Constraint(Token(200006), bare=True, markers=MARKERS), priority=3
    )
    body = sent(SGLANG_RUST, bare)
    assert body["priority"] == 3
    sampling = body["sampling_params"]
    assert orjson.loads(sampling["structural_tag"])["format"] == {"type": "token", "token": 200006}
    assert sampling["logit_bias"] == {str(marker): -100 for marker in MARKERS}
    assert "response_format" in sent(SGLANG, bare), "the two forms are kept apart"


@pytest.mark.parametrize("writer", [SGLANG_RUST, speaking(SGLang("0.5.5"))])
def test_generate_is_sent_no_sampling_parameter_that_it_would_refuse(writer: RequestWriter) -> None:
    chosen = sampled(seed=3, top_k=4, min_p=0.1, logprobs=2, top_p=0.0)
    sampling = sent(writer, replace(chosen, constraint=BOUND.constraint))["sampling_params"]
    assert {name.encode() for name in sampling} <= set(KNOWN_SAMPLING)
    assert (sampling["sampling_seed"], sampling["top_k"], sampling["min_p"]) == (3, 4, 0.1)
    assert sampling["top_p"] == TOP_P_MIN


def test_generate_tells_logprobs_by_id() -> None:
    body = sent(SGLANG, sampled(logprobs=5))
    assert (body["return_logprob"], body["top_logprobs_num"]) == (True, 5)
    assert (body["logprob_start_len"], body["return_text_in_logprobs"]) == (-1, False)
    assert sent(SGLANG, sampled(logprobs=0))["top_logprobs_num"] == 0
    assert "return_logprob" not in sent(SGLANG_RUST)


def test_generate_is_asked_for_an_adapter_by_its_path() -> None:
    assert sent(SGLANG_RUST, served=ADAPTER)["lora_path"] == "ad"
    assert "lora_path" not in sent(SGLANG_RUST)


@pytest.mark.parametrize(("most", "interval"), [(1, 1), (8192, 1), (8193, 4), (32769, 8)])
def test_events_that_grow_come_seldom_where_there_may_be_many(most: int, interval: int) -> None:
    long = replace(REQUEST, sampling=Sampling(max_tokens=most))
    assert sent(SGLANG_RUST, long)["sampling_params"]["stream_interval"] == interval
    small = speaking(SGLang("0.5.23", frontend="rust", incremental=True))
    assert "stream_interval" not in sent(small, long)["sampling_params"]


TENSORRT_LLM = speaking(TensorRtLlm(), priorities=True)
LMDEPLOY = speaking(LmDeploy(), priorities=True)
ALL = {"seed": 3, "top_k": 4, "min_p": 0.1, "logprobs": 2, "top_p": 0.0}


def test_tensorrt_llm_is_sent_nothing_that_it_would_refuse() -> None:
    """Names of `CompletionRequest` in `tensorrt_llm/serve/openai_protocol.py`."""
    known = {
        *("model", "prompt", "stream", "stream_options", "stop_token_ids", "max_tokens"),
        *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
        *("seed", "priority", "detokenize", "response_format", "logit_bias"),
    }
    bare = replace(
        sampled(**ALL),
        constraint=Constraint(Token(200006), bare=True, markers=MARKERS),
        cache_salt="salt",
    )
    body = sent(TENSORRT_LLM, bare)
    assert body.keys() == known
    assert body["detokenize"] is False, "it returns ids only without text"
    assert body["response_format"]["type"] == "structural_tag"


@pytest.mark.parametrize(("ours", "theirs"), [(-9, 0.0), (-1, 0.25), (0, 0.5), (1, 0.75), (9, 1.0)])
def test_tensorrt_llm_ranks_from_zero_to_one(ours: int, theirs: float) -> None:
    assert sent(TENSORRT_LLM, replace(REQUEST, priority=ours))["priority"] == theirs
    assert "priority" not in sent(speaking(TensorRtLlm()), replace(REQUEST, priority=ours))


def test_lmdeploy_is_sent_its_sampling_parameters_at_the_top() -> None:
    bound = replace(sampled(**ALL, temperature=2.5), constraint=BOUND.constraint)
    assert LMDEPLOY.grammar(bound) is None
    assert sent(LMDEPLOY, bound) == {
        "input_ids": [1, 2, 3],
        "stream": True,
        "stop_token_ids": [200002, 200012, 199999],
        "max_tokens": 9,
        "temperature": 2.0,
        "top_p": TOP_P_MIN,
        "top_k": 4,
        "min_p": 0.1,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }
    assert not {"top_k", "min_p"} & sent(LMDEPLOY).keys()


@pytest.mark.parametrize("dialect", [VLLM, SGLANG, UNKNOWN])
def test_what_was_not_chosen_is_not_sent(dialect: RequestWriter) -> None:
    body = sent(dialect, sampled(seed=0, top_k=40, min_p=0.0))
    assert (body["seed"], body["top_k"], body["min_p"]) == (0, 40, 0.0)
    assert not {"seed", "top_k", "min_p"} & sent(dialect).keys()


def test_an_empty_cache_salt_is_not_sent_because_vllm_refuses_it() -> None:
    assert "cache_salt" not in sent(VLLM, replace(REQUEST, cache_salt=""))


@pytest.mark.parametrize("alternatives", [0, 5, 20])
def test_logprobs_are_asked_for_by_id(alternatives: int) -> None:
    body = sent(VLLM, sampled(logprobs=alternatives))
    assert (body["logprobs"], body["return_tokens_as_token_ids"]) == (alternatives, True)


def test_logprobs_are_not_asked_of_who_may_name_them_by_text() -> None:
    assert sent(UNKNOWN, sampled(logprobs=5)) == sent(UNKNOWN)


@pytest.mark.parametrize(
    ("engine", "sign"),
    [(Vllm("0.32.0"), -1), (SGLang("0.5.23"), 1), (SGLang("0.5.23", low_values_first=True), -1)],
)
@pytest.mark.parametrize("priority", [-10, 10])
def test_a_priority_has_the_sign_of_the_engine(
    engine: InferenceEngine, sign: int, priority: int
) -> None:
    request = replace(REQUEST, priority=priority)
    assert sent(speaking(engine, priorities=True), request)["priority"] == sign * priority
    assert "priority" not in sent(speaking(engine), request)


@pytest.mark.parametrize("dialect", [VLLM, SGLANG])
def test_ordinary_work_has_the_priority_zero_where_there_are_any(dialect: RequestWriter) -> None:
    """To SGLang a request without any is the least urgent of all."""
    assert sent(dialect)["priority"] == 0


ADAPTER = ServedModel("ad", parent="base")


def test_sglang_is_asked_for_an_adapter_by_its_path_of_the_base_model() -> None:
    body = sent(SGLANG, served=ADAPTER)
    assert (body["model"], body["lora_path"]) == ("base", "ad")
    assert "lora_path" not in sent(SGLANG)


def test_vllm_is_asked_for_an_adapter_by_its_name() -> None:
    body = sent(VLLM, served=ADAPTER)
    assert body["model"] == "ad"
    assert "lora_path" not in body


def test_who_has_not_said_what_it_is_is_asked_for_an_adapter_in_both_ways() -> None:
    body = sent(UNKNOWN, served=ADAPTER)
    assert (body["model"], body["lora_path"]) == ("ad", "ad")


def tag_of_bound(**json: object) -> dict[str, Any]:
    elements = [
        {"type": "token", "token": 200006},
        {"type": "json_schema", "json_schema": SCHEMA, **json},
    ]
    return {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}


def test_vllm_is_given_the_tag_as_a_string() -> None:
    structured = sent(VLLM, BOUND)["structured_outputs"]
    assert orjson.loads(structured.pop("structural_tag")) == tag_of_bound(max_whitespace_cnt=1)
    assert structured == {}
    older = sent(VLLM_29, BOUND)["structured_outputs"]["structural_tag"]
    assert orjson.loads(older) == tag_of_bound()


def test_sglang_is_given_the_tag_as_a_format() -> None:
    body = sent(SGLANG, BOUND)
    assert body["response_format"] == tag_of_bound(max_whitespace_cnt=1)
    assert "structured_outputs" not in body


def test_only_a_tag_is_a_promise() -> None:
    held = [dialect.grammar(BOUND) for dialect in (VLLM, VLLM_29, SGLANG)]
    assert [grammar.holds for grammar in held if grammar is not None] == [True] * 3
    answer = VLLM_20.grammar(BOUND)
    assert answer is not None
    assert not answer.holds


@pytest.mark.parametrize("dialect", [VLLM, SGLANG])
def test_what_a_constraint_leaves_open_is_no_promise(dialect: RequestWriter) -> None:
    loose = replace(REQUEST, constraint=Constraint(Token(200006), exact=False))
    grammar = dialect.grammar(loose)
    assert grammar is not None
    assert not grammar.holds
    assert "logit_bias" not in grammar.fields


@pytest.mark.parametrize("dialect", [VLLM, SGLANG])
def test_markers_are_ruled_out_where_none_is_to_come(dialect: RequestWriter) -> None:
    bare = replace(REQUEST, constraint=Constraint(Ebnf('root ::= "a"'), bare=True, markers=MARKERS))
    grammar = dialect.grammar(bare)
    assert grammar is not None
    assert grammar.fields["logit_bias"] == dict.fromkeys(
        ("200003", "200005", "200006", "200007", "200008"), -100
    )


def test_an_older_vllm_is_given_the_schema_of_the_answer() -> None:
    assert sent(VLLM_20, BOUND)["structured_outputs"] == {"json": SCHEMA}
    assert BOUND.constraint is not None
    only_turn = replace(BOUND, constraint=replace(BOUND.constraint, answer=None))
    assert VLLM_20.grammar(only_turn) is None


def test_an_older_vllm_takes_an_earlier_answer_for_the_one_to_bind() -> None:
    again = replace(BOUND, prompt_ids=[1, 200005, 17196, 200008, 2])
    assert VLLM_20.grammar(again) is None
    assert VLLM.grammar(again) is not None
    assert VLLM_20.grammar(replace(BOUND, prompt_ids=[200005, 1, 17196])) is not None


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_ids_that_only_look_like_an_earlier_answer_are_none(shift: int) -> None:
    opening = array("I", [200005, 17196]).tobytes()
    apart = array("I", bytes(shift) + opening + bytes(4 - shift))
    assert VLLM_20.grammar(replace(BOUND, prompt_ids=apart)) is not None
    both = apart + array("I", opening)
    assert VLLM_20.grammar(replace(BOUND, prompt_ids=both)) is None


@pytest.mark.parametrize(
    "dialect", [VLLM_10, SGLANG_5, UNKNOWN, speaking(Vllm("0.32.0"), grammars=False)]
)
def test_who_cannot_hold_a_constraint_is_not_bothered_with_it(dialect: RequestWriter) -> None:
    assert dialect.grammar(BOUND) is None
    assert sent(dialect, BOUND) == sent(dialect)


def deep() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(1000):
        schema = {"items": schema}
    return schema


@each(
    "node",
    [
        InOrder(()),
        Json({"description": "x" * TAG_BYTES_MAX}),
        Json({"const": 1 << 70}),
        Json({"const": "\ud800"}),
        Json(deep()),
    ],
)
@each("dialect", [VLLM, SGLANG])
def test_what_cannot_be_said_is_not_said(dialect: RequestWriter, node: Node) -> None:
    assert dialect.grammar(replace(REQUEST, constraint=Constraint(node))) is None


def test_there_is_no_grammar_without_a_constraint() -> None:
    assert VLLM.grammar(REQUEST) is None


@pytest.mark.parametrize("dialect", [VLLM, SGLANG, UNKNOWN])
def test_a_top_p_of_zero_is_one_that_engines_take(dialect: RequestWriter) -> None:
    assert sent(dialect, sampled(top_p=0.0))["top_p"] == TOP_P_MIN
    assert sent(dialect, sampled(top_p=0.5))["top_p"] == 0.5
