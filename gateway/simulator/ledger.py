"""What an instance was asked and what became of it, for tests to look at."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gateway.simulator.faults import ids_hash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.simulator.wire.requests import CompletionRequest


@dataclass(slots=True)
class Observed:
    """One request. `outcome` is vLLM's finish reason, or what happened instead.

    `waiting`, `running` and `stalled` while it lasts; then `stop`, `length`, `abort` (as reported,
    on a fault or at shutdown), `disconnected` (the client went away), `rejected`, `error`, or the
    fault that cut it: `die`, `stall`, `end`.
    """

    number: int
    request: CompletionRequest
    prefilled_ids: int
    """Ids of the open turn that the prompt already held, `<|start|>assistant` left out."""
    headers: dict[str, str]
    cached_ids: int = 0
    sent: array[int] = field(default_factory=lambda: array("I"))
    outcome: str = "waiting"
    status: int = 200
    kept: bool = True
    """Whether the ledger still holds it."""

    def as_json(self, *, with_ids: bool) -> dict[str, Any]:
        """For `GET /simulator/requests`; ids only when asked for."""
        request = self.request
        ids = {"prompt_ids": request.prompt, "sent_ids": self.sent.tolist()} if with_ids else {}
        return {
            "number": self.number,
            "request_id": self.headers.get("x-request-id") or request.id,
            "model": request.model,
            "adapter": request.adapter,
            "prompt_tokens": len(request.prompt),
            "prompt_hash": ids_hash(request.prompt),
            "prefilled_ids": self.prefilled_ids,
            "cached_tokens": self.cached_ids,
            "max_tokens": request.max_tokens,
            "stop_token_ids": list(request.stop_ids),
            "sampling": dict(request.sampling),
            "priority": request.priority,
            "logprobs": request.logprobs,
            "demand": request.constraint.as_json() if request.constraint else None,
            "cache_salt": request.cache_salt,
            "stream": request.stream,
            "sent_tokens": len(self.sent),
            "outcome": self.outcome,
            "aborted": self.outcome == "disconnected",
            "status": self.status,
            **ids,
        }


class Ledger:
    """The last requests, bounded by their number and, with them, by the ids they hold."""

    def __init__(self, requests_max: int, ids_max: int) -> None:
        self._requests_max = requests_max
        self._ids_max = ids_max
        self._requests: deque[Observed] = deque()
        self._ids = 0
        self._number = 0

    def open(
        self, request: CompletionRequest, prefilled_ids: int, headers: dict[str, str]
    ) -> Observed:
        """A request has arrived."""
        self._number += 1
        observed = Observed(self._number, request, prefilled_ids, headers)
        self._requests.append(observed)
        self._ids += len(request.prompt)
        self._trim()
        return observed

    def say(self, observed: Observed, ids: list[int]) -> None:
        """Ids were sent for it."""
        observed.sent.extend(ids)
        if observed.kept:
            self._ids += len(ids)
            self._trim()

    def _trim(self) -> None:
        while len(self._requests) > self._requests_max or self._ids > self._ids_max:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        observed = self._requests.popleft()
        observed.kept = False
        self._ids -= len(observed.request.prompt) + len(observed.sent)

    def clear(self) -> None:
        """Forget all of them; numbers go on."""
        while self._requests:
            self._forget_oldest()

    def __iter__(self) -> Iterator[Observed]:
        """The requests, oldest first."""
        return iter(tuple(self._requests))
