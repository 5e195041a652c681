"""Requests of SGLang's own `POST /generate`, in the words of `/v1/completions`."""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.simulator.errors import bad_request

PATH: Final = "/generate"
_SAME: Final = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
    *("stop_token_ids", "skip_special_tokens", "logit_bias"),
)
_RENAMED: Final = {"max_new_tokens": "max_tokens", "sampling_seed": "seed"}
_IGNORED: Final = frozenset({"no_stop_trim", "stream_interval", "ignore_eos", "min_new_tokens"})


def as_completion(members: dict[str, Any]) -> dict[str, Any]:
    """Return the body of an equivalent completion request. Raises `SimulatedError`."""
    sampling = members.get("sampling_params") or {}
    known = {*_SAME, *_RENAMED, *_IGNORED, "structural_tag"}
    if unknown := sampling.keys() - known:
        raise bad_request(f"unknown field `{min(unknown)}`, expected one of {sorted(known)}")
    body = {name: sampling[name] for name in _SAME if name in sampling}
    body |= {new: sampling[old] for old, new in _RENAMED.items() if old in sampling}
    if "structural_tag" in sampling:
        body["response_format"] = orjson.loads(sampling["structural_tag"])
    if members.get("return_logprob"):
        body |= {"logprobs": members.get("top_logprobs_num", 0)}
    salt = members.get("cache_salt") or members.get("extra_key")
    body |= {
        "prompt": members.get("input_ids"),
        "cache_salt": salt,
        "return_token_ids": True,
        "stream_options": {"include_usage": True} if members.get("stream") else None,
    }
    return body | {name: members.get(name) for name in ("rid", "stream", "priority", "lora_path")}
