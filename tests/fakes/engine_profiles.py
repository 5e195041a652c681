"""The engines, each with what was recorded of it, and what that has to come out as.

A new engine is a class, its recordings, and a profile here: the tests of
`tests/integration/upstreams/test_captures.py` are the same for all. What a profile leaves empty
was not recorded of that engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from typing_extensions import override

from gateway.errors import ContextOverflow, UpstreamError, UpstreamRejected, UpstreamUnavailable
from gateway.generation import FinishReason
from gateway.upstreams.engines import LmDeploy, SGLang, TensorRtLlm, Vllm
from gateway.upstreams.problems import BackendBusy, BrokeDown, ModelGone, NoTokenIds
from tests.fakes.backend_captures import capture, names

if TYPE_CHECKING:
    from gateway.upstreams.engines import InferenceEngine
    from tests.fakes.backend_captures import Capture

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH

_TOKEN_IDS = re.compile(rb'(?<!prompt_)"token_ids":\[([\d,]*)\]')
_OUTPUT_IDS = re.compile(rb'"output_ids":\[([\d,]*)\]')


@dataclass(frozen=True)
class Profile:
    """`engine` is who is spoken to.

    `complete` maps recordings of turns that ended well to their finish and cached tokens, `broken`
    those that broke off to a word of the reason, `refused` those of refusals to the error that they
    are. `told` are those with logprobs, and how many alternatives were asked for. `events_repeat`:
    each event has all ids so far. `is_recorded`: the recordings are of a server that ran, and not
    written down from its source.
    """

    name: str
    engine: InferenceEngine
    complete: dict[str, tuple[FinishReason, int | None]]
    refused: dict[str, type[UpstreamError]]
    broken: dict[str, str] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    events_repeat: bool = False
    is_recorded: bool = True

    @override
    def __str__(self) -> str:
        return self.name

    def ids_in(self, recorded: Capture) -> list[int]:
        """Read from the recording with nothing but a regular expression."""
        found = [*_TOKEN_IDS.findall(recorded.response), *_OUTPUT_IDS.findall(recorded.response)]
        lists = [[int(number) for number in one.split(b",") if number] for one in found]
        return lists[-1] if self.events_repeat else [id_ for ids in lists for id_ in ids]


def _refusals(*patterns: str, **others: type[UpstreamError]) -> dict[str, type[UpstreamError]]:
    """Those of the patterns that have an HTTP status, as it tells, but for the `others`."""
    kinds = dict.fromkeys((400, 422), UpstreamRejected) | dict.fromkeys((429, 503), BackendBusy)
    found: dict[str, type[UpstreamError]] = {
        name: kinds.get(capture(name).status, UpstreamUnavailable)
        for name in names(*patterns)
        if capture(name).status >= 400
    }
    return {name: others.get(name.rpartition("/")[2], kind) for name, kind in found.items()}


VLLM = Profile(
    "vLLM 0.32",
    Vllm("0.32.0"),
    complete={
        "a_cached_1": (LENGTH, 0),
        "a_cached_2": (LENGTH, 384),
        "cmpl_stream_all": (LENGTH, None),
        "cmpl_stream_cont_usage": (LENGTH, None),
        "cmpl_stream_token_ids": (LENGTH, None),
        "d_eos_call_stopids": (STOP, None),
        "d_eos_call_stream": (STOP, None),
        "d_eos_incl": (STOP, None),
        "d_eos_return_stream": (STOP, None),
        "d_ignore_eos": (LENGTH, None),
        "d_min_tokens": (STOP, None),
        "d_stop_str": (STOP, None),
        "d_stop_token_stream": (STOP, None),
        "lp0_stream": (LENGTH, None),
        "lp20_sampled": (LENGTH, None),
        "lp5_interval": (LENGTH, None),
        "o_overload_0": (LENGTH, 0),
        "o_overload_5": (LENGTH, 0),
        "s_json_stream": (LENGTH, 0),
        "si2_req": (LENGTH, None),
        "si5_stream": (LENGTH, None),
        "si8_req": (LENGTH, None),
        "tok_stream_logprobs": (STOP, None),
    },
    broken={
        "k_api9_stream": "RemoteProtocolError",  # the API process was killed: no end, no [DONE]
        "k_engine9_stream": "EngineCore encountered an issue",
        "k_int_stream": "EngineCore encountered an issue",
        "k_term_stream": "finish reason abort",
        "s_stream_gave_up": "Internal server error",
        "x_abort_cmpl_stream": "finish reason abort",
        "x_disconnect_stream": "RemoteProtocolError",
    },
    refused={
        **_refusals(
            "a_badauth", "a_noauth_cmpl", "a_dprank_bad", "d_*", "e_*", "s_bad_*", "l_*",
            "s_stream_refused_tag", "k_*_nostream", "o_gen_overload_hdrs",
            a_dprank_bad=UpstreamUnavailable,
            e_too_long=ContextOverflow, e_too_long_stream=ContextOverflow,
            e_exact_maxlen=ContextOverflow, s_bad_grammar=BrokeDown,
            k_int_nostream=BrokeDown, k_engine9_nostream=BrokeDown,
            **dict.fromkeys(("e_model", "e_model_stream"), ModelGone),
            **dict.fromkeys(("l_gpt-oss-tiny", "l_my-adapter"), BrokeDown),
            **dict.fromkeys(
                ("d_max_tokens_huge", "d_max_tokens_neg", "d_max_tokens_zero"), ContextOverflow
            ),
        ),
        # From a server that compiles grammars after it has said 200.
        "s_stream_refused_400": UpstreamRejected,
        "s_stream_refused_500": BrokeDown,
        "cmpl_stream": NoTokenIds,
    },
    told={"lp0_stream": 0, "lp5_interval": 5, "lp20_sampled": 20, "tok_stream_logprobs": 2},
)  # fmt: skip

SGLANG_COMPLETIONS = Profile(
    "SGLang 0.5.23, /v1/completions",
    SGLang("0.5.23", frontend="python"),
    complete={
        "sglang/completions_bootstrap_fields": (LENGTH, None),
        "sglang/completions_ignore_eos_and_stop_ids": (LENGTH, None),
        "sglang/completions_logprobs": (LENGTH, None),  # by text, and so not read
        "sglang/completions_logprobs_0": (LENGTH, None),
        "sglang/completions_no_max_tokens": (LENGTH, None),
        "sglang/completions_priority_disabled": (LENGTH, None),
        "sglang/completions_stream": (LENGTH, None),
        "sglang/completions_structural_tag": (STOP, None),
        "sglang/completions_structured_outputs_ignored": (LENGTH, None),
        "sglang/completions_unknown_key": (LENGTH, None),
        "sglang/completions_unknown_model": (LENGTH, None),
        "sglang_flags/incremental_completions": (LENGTH, 0),
        "sglang_flags/incremental_completions_cached": (LENGTH, 179),
        "sglang_flags/queue_full_higher_priority": (LENGTH, 8),
        "sglang_gptoss/after_sigterm_new_request": (LENGTH, 14),
        "sglang_gptoss/completions_stream": (STOP, 0),
    },
    broken={
        "sglang/abort_by_rid_completions_stream": "finish reason abort",
        "sglang/disconnect_completions_stream": "RemoteProtocolError",
        "sglang_flags/incremental_abort_completions": "finish reason abort",
    },
    refused={
        **_refusals(
            "sglang/completions_*", "sglang/duplicate_rid_second", "sglang_flags/no_key",
            "sglang_flags/queue_full_completions_plain", "sglang_lora/completions_*",
            completions_too_long=ContextOverflow,
            completions_prompt_plus_max_too_long=ContextOverflow,
            completions_model_with_adapter=ModelGone,
            completions_unknown_adapter=ModelGone,
            # Which id a request has is the gateway's choice, and which rank is asked.
            duplicate_rid_second=UpstreamUnavailable,
            completions_dp_header_out_of_range=UpstreamUnavailable,
        ),
        "sglang/completions_bad_regex": UpstreamRejected,
        "sglang_flags/queue_full_completions_stream": BackendBusy,
        "sglang_flags/queue_waiting": BackendBusy,  # by one of a higher priority
        "sglang_rust/completions_as_the_gateway_sends_it": NoTokenIds,
    },
)  # fmt: skip

_GENERATE_COMPLETE: dict[str, tuple[FinishReason, int | None]] = {
    "generate_ebnf": (STOP, 8),
    "generate_stop_id": (STOP, 8),
    "generate_stream": (LENGTH, 8),
    "generate_stream_interval": (LENGTH, 8),
    "generate_stream_logprobs": (LENGTH, 8),
    "generate_stream_logprobs_text": (LENGTH, 8),
}
_GENERATE_TOLD = {"generate_stream_logprobs": 2, "generate_stream_logprobs_text": 2}


def _generate(folder: str, engine: SGLang) -> Profile:
    """The same requests were sent to both frontends."""
    return Profile(
        f"SGLang 0.5.23, /generate, {engine.frontend}",
        engine,
        complete={f"{folder}/{name}": how for name, how in _GENERATE_COMPLETE.items()},
        refused={
            **_refusals(
                f"{folder}/generate_*",
                generate_too_long=ContextOverflow,
                generate_prompt_plus_max_too_long=ContextOverflow,
                generate_lora_unknown=ModelGone,
                generate_dp_rank_out_of_range=UpstreamUnavailable,
            ),
            f"{folder}/generate_bad_ebnf": UpstreamRejected,
            f"{folder}/generate_too_long_stream": ContextOverflow,
        },
        told={f"{folder}/{name}": count for name, count in _GENERATE_TOLD.items()},
        events_repeat=True,
    )


SGLANG_TOLD = Profile(
    "SGLang 0.5.23, /generate, gpt-oss",
    SGLang("0.5.23", frontend="python"),
    complete={"sglang_gptoss/completions_logprobs_generate": (LENGTH, 14)},
    refused={},
    told={"sglang_gptoss/completions_logprobs_generate": 2},
    events_repeat=True,
)
SGLANG_INCREMENTAL = Profile(
    "SGLang 0.5.23, /generate, new ids only",
    SGLang("0.5.23", frontend="rust", incremental=True),
    complete={"sglang_flags/incremental_generate": (LENGTH, 8)},
    broken={"sglang_flags/incremental_abort_generate": "Aborted"},
    refused={
        "sglang_flags/queue_full_generate_plain": BackendBusy,
        "sglang_flags/queue_full_generate_stream": BackendBusy,
    },
    told={"sglang_flags/incremental_generate": 1},
)

TENSORRT_LLM = Profile(
    "TensorRT-LLM, written down",
    TensorRtLlm(),
    complete={
        "tensorrt_llm/completions_stop": (STOP, 8),
        "tensorrt_llm/completions_length": (LENGTH, 8),
    },
    broken={"tensorrt_llm/completions_cancelled": "finish reason cancelled"},
    refused={
        "tensorrt_llm/completions_unknown_key": UpstreamRejected,
        "tensorrt_llm/completions_with_text": NoTokenIds,
    },
    is_recorded=False,
)
LMDEPLOY = Profile(
    "LMDeploy, written down",
    LmDeploy(),
    complete={"lmdeploy/generate_stop": (STOP, None), "lmdeploy/generate_length": (LENGTH, None)},
    broken={"lmdeploy/generate_failed": "error"},
    refused={"lmdeploy/generate_bad_top_p": UpstreamRejected},
    is_recorded=False,
)

PROFILES = (
    VLLM,
    SGLANG_COMPLETIONS,
    _generate("sglang", SGLang("0.5.16", frontend="python")),
    _generate("sglang_rust", SGLang("0.5.23", frontend="rust")),
    SGLANG_TOLD,
    SGLANG_INCREMENTAL,
    TENSORRT_LLM,
    LMDEPLOY,
)
