"""The create command: a request for a response, who sent it, and what is to become of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.protocol.responses.idempotency import RequestKey
    from gateway.protocol.responses.requests import CreateResponse
    from gateway.services.history_source import History
    from gateway.tenancy import Principal


@dataclass(frozen=True, slots=True)
class CreateCommand:
    """One request to create a response.

    `body_bytes` is how long it was as JSON; `requested_at` when it came, in seconds of
    `time.perf_counter`. `local` are responses that it may continue without their being stored.
    `remembered`: if this one is not stored either, others may continue it in the same way
    (`Generation.continued`). Without `generate` the context is checked and prepared for whoever
    continues it, and no model is asked anything.
    """

    principal: Principal
    request: CreateResponse
    key: RequestKey | None
    body_bytes: int
    requested_at: float
    local: Mapping[str, History] = field(default_factory=dict)
    remembered: bool = False
    generate: bool = True

    @property
    def is_durable(self) -> bool:
        """The response must outlive its client, and this process."""
        request, policy = self.request, self.principal.policy
        is_kept = self.key is not None or policy.on_disconnect == "continue"
        return self.generate and (request.background or (request.store and is_kept))

    @property
    def is_remembered(self) -> bool:
        """What it inherits is to be known afterwards."""
        return self.remembered and not self.request.store
