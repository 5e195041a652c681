"""The events of SGLang's own `POST /generate`.

Source: SGLang 0.5.23, both frontends. Each event has all ids so far, and so their logprobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from gateway.simulator.wire.frames import EventWriter, alternatives, event, logprob_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.simulator.wire.frames import Ending


class GenerateWriter(EventWriter):
    """Writer of the events of one stream."""

    @override
    def _event(self, ids: Sequence[int], ending: Ending | None) -> bytes:
        self._said += ids
        said, request = self._said, self._request
        meta: dict[str, Any] = {
            "id": self._head["id"],
            "finish_reason": _reason(said, ending),
            "prompt_tokens": len(request.prompt),
            "completion_tokens": len(said),
            "cached_tokens": self.cached,
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
