from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstreams.probe import NO_LOAD, ReportedLoad, from_loads, from_metrics

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",engine="0"} 1.0
vllm:generation_tokens_total{engine="0",model_name="tiny"} 1.000648e+06
vllm:generation_tokens_created{engine="0",model_name="tiny"} 1.76388e+09
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
process_start_time_seconds 1.76388e+09
"""
SGLANG = """\
sglang:num_running_reqs{model_name="tiny"} 1.0
sglang:num_queue_reqs{model_name="tiny"} 4.0
sglang:max_total_num_tokens{model_name="tiny"} 65536.0
sglang:generation_tokens_total{model_name="tiny"} 337.0
sglang:token_usage{model_name="tiny"} 0.5
sglang:gen_throughput{model_name="tiny"} 81.7
"""
LOADS = {
    "timestamp": "now",
    "loads": [
        {
            "dp_rank": 0,
            "num_running_reqs": 2,
            "num_waiting_reqs": 1,
            "max_total_num_tokens": 4096,
            "max_running_requests": 48,
            "token_usage": 0.75,
            "gen_throughput": 120.5,
        },
        {
            "dp_rank": 1,
            "num_running_reqs": 0,
            "num_waiting_reqs": 5,
            "max_total_num_tokens": 4096,
            "max_running_requests": 48,
            "token_usage": 0.25,
            "gen_throughput": 80,
        },
    ],
}


def vllm(waiting: int, running: int, kv_tokens: int, **more: Any) -> ReportedLoad:
    told = {"kv_used": 0.25, "generated": 1_000_648} | more
    return ReportedLoad(waiting, running, 1_763_880_000, kv_tokens, **told)


def sglang(**more: Any) -> ReportedLoad:
    return ReportedLoad(4, 1, None, 65_536, kv_used=0.5, tokens_per_s=81, **more)


def test_vllm_tells_it_among_its_metrics() -> None:
    assert from_metrics(VLLM) == vllm(2, 3, 16_000)


def test_engines_behind_one_server_are_added_up() -> None:
    second = VLLM.replace('engine="0"', 'engine="1"').replace("} 0.25", "} 0.75")
    found = from_metrics(VLLM + second)
    assert found == vllm(4, 6, 32_000, kv_used=0.5, generated=2_001_296)


def test_of_one_rank_only_what_is_told_of_it_is_known() -> None:
    second = VLLM.replace('engine="0"', 'engine="1"').replace("} 3.0", "} 5.0")
    assert from_metrics(VLLM + second, 1) == vllm(2, 5, 16_000)
    assert from_metrics(VLLM + second, 2) == ReportedLoad(epoch=1_763_880_000)
    assert from_metrics(SGLANG, 0) == NO_LOAD
    ranked = SGLANG.replace("{", '{dp_rank="1",engine_type="unified",')
    assert from_metrics(SGLANG + ranked, 1) == sglang()
    of_one = ReportedLoad(5, 0, None, 4096, places=48, kv_used=0.25, tokens_per_s=80)
    assert from_loads(orjson.dumps(LOADS), 1) == of_one
    assert from_loads(orjson.dumps(LOADS), 2) == NO_LOAD


def test_sglang_tells_it_among_its_metrics_or_on_a_path_of_its_own() -> None:
    assert from_metrics(SGLANG) == sglang()
    both = ReportedLoad(6, 2, None, 8192, places=96, kv_used=0.5, tokens_per_s=200)
    assert from_loads(orjson.dumps(LOADS)) == both


@pytest.mark.parametrize(
    ("before", "after", "seconds", "speed"),
    [(100, 150, 2.0, 25.0), (100, 50, 2.0, None), (None, 50, 2.0, None), (100, 150, 0.0, None)],
)
def test_tokens_that_are_counted_have_a_speed(
    before: int | None, after: int, seconds: float, speed: float | None
) -> None:
    found = ReportedLoad(generated=after).since(ReportedLoad(generated=before), seconds)
    assert found.tokens_per_s == speed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "vllm:num_requests_waiting NaN\n",
        "vllm:num_requests_waiting -1\n",
        "vllm:num_requests_waiting 1e400\n",
        "process_start_time_seconds 4294967296\n",
        'vllm:cache_config_info{block_size="999999999999",num_gpu_blocks="999999999999"} 1\n',
        "vllm:num_requests_waiting --1\n",
        'vllm:cache_config_info{num_gpu_blocks="None"} 1\n',
        "vllm:kv_cache_usage_perc 1.5\n",
        "x" * 100,
    ],
)
def test_what_says_nothing_useful_says_nothing(text: str) -> None:
    assert from_metrics(text) == NO_LOAD


@pytest.mark.parametrize("body", [b"", b"[", b"7", b"[]", b'{"loads": 3}', b'{"loads": [7]}'])
def test_a_body_that_is_none_says_nothing(body: bytes) -> None:
    assert from_loads(body) == NO_LOAD


def test_counts_that_are_none_are_left_out() -> None:
    row = {"num_waiting_reqs": True, "num_running_reqs": -1, "max_total_num_tokens": 0}
    assert from_loads(orjson.dumps([row])) == NO_LOAD
    many = dict.fromkeys(LOADS["loads"][0], 2**63)
    assert from_loads(orjson.dumps([many, many])) == NO_LOAD


@pytest.mark.slow
@given(st.text(max_size=300), st.binary(max_size=200))
def test_whatever_comes_is_read(text: str, body: bytes) -> None:
    from_metrics(text)
    from_metrics(VLLM[:100] + text)
    from_loads(body)
