"""Cost of what one process generated in background, until it reports that with its next claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.store.replicas.shares import EndedResponse
from gateway.tenancy import DEFAULT_POLICY
from gateway.upstreams.admission.queue import CLASS_WEIGHTS, OUTPUT_WEIGHT
from gateway.upstreams.admission.slots import class_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.engine.run_spec import RunSpec
    from gateway.generation import TokenUsage

TOLD_MAX: Final = 4_096
"""Responses that are remembered; of more, which nobody has claimed after, the first are forgotten:
then their tenants were charged what was expected of them."""


class BackgroundShares:
    """Ended background responses that no claim has reported: `ended` adds them, a claim takes all
    of them, and puts them back if it failed.
    """

    def __init__(self) -> None:
        self._ended: list[EndedResponse] = []

    def ended(self, spec: RunSpec, usage: TokenUsage, *, counted: float) -> None:
        """Record the end of a response generated here; `counted` is what its claim was charged."""
        cost = cost_of(spec, usage)
        self.put_back([EndedResponse(spec.principal.tenant_id, cost, counted)])

    def take(self) -> list[EndedResponse]:
        """Take the ends that were not reported yet."""
        taken, self._ended = self._ended, []
        return taken

    def put_back(self, ended: Sequence[EndedResponse]) -> None:
        # For responses whose end could not be reported after all.
        self._ended = [*self._ended, *ended][-TOLD_MAX:]


def cost_of(spec: RunSpec, usage: TokenUsage) -> float:
    """Return a background response's cost, weighted as admission does: by tier and tenant share."""
    share = spec.share_weight / DEFAULT_POLICY.share_weight
    weight = CLASS_WEIGHTS[class_of(spec.priority, is_background=True)] * share
    return (usage.input_tokens + OUTPUT_WEIGHT * usage.output_tokens) / weight
