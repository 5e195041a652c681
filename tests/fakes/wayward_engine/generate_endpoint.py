"""Requests of SGLang's own `POST /generate`, in the words of `/v1/completions`, and its events.

Source: SGLang 0.5.23, both frontends. Each event has all ids so far, and so their logprobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson
from typing_extensions import override

from gateway.simulator.completion_wire import (
    EventWriter,
    alternatives,
    bad_request,
    event,
    logprob_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.simulator.completion_wire import CompletionRequest, Ending, EventTails
    from tests.fakes.wayward_engine.options import WaywardOptions


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


class GenerateWriter(EventWriter):
    """Writer of the events of one stream."""

    def __init__(
        self,
        head: dict[str, Any],
        request: CompletionRequest,
        tails: EventTails,
        options: WaywardOptions,
    ) -> None:
        super().__init__(head, request, tails, options)
        self._reports_cached = options.report_cached_tokens
        self._said: list[int] = []
        self.cached = 0
        """Cached ids of the prompt; 0 until they are known."""

    @override
    def _event(self, ids: Sequence[int], ending: Ending | None) -> bytes:
        self._said += ids
        said, request = self._said, self._request
        meta: dict[str, Any] = {
            "id": self._head["id"],
            "finish_reason": _reason(said, ending),
            "prompt_tokens": len(request.prompt),
            "completion_tokens": len(said),
            "cached_tokens": self.cached if self._reports_cached else 0,
        }
        if request.logprobs is not None:
            tops = [alternatives(one, request.logprobs) for one in said]
            meta["output_token_logprobs"] = [[logprob_of(one), one, None] for one in said]
            meta["output_top_logprobs"] = [
                [[logprob, one, None] for one, logprob in top.items()] for top in tops
            ]
        return event({"text": "", "output_ids": said, "meta_info": meta})

    @override
    def usage(self, usage: dict[str, Any]) -> bytes:
        return b""


def _reason(said: Sequence[int], ending: Ending | None) -> dict[str, Any] | None:
    if ending is None:
        return None
    if ending.finish == "stop":
        return {"type": "stop", "matched": said[-1] if said else None}
    if ending.finish == "length":
        return {"type": "length", "length": len(said)}
    return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
