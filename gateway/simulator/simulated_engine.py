"""The parts that the requests of one simulated server share."""

from __future__ import annotations

import asyncio
from array import array
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gateway.errors import ConfigError
from gateway.models.harmony.vocabulary import Vocabulary
from gateway.simulator.completion_wire import (
    CHAT_PATH,
    PATH,
    ChatWriter,
    Conversations,
    EventTails,
    EventWriter,
    json_object,
    request_of,
)
from gateway.simulator.directives import Attempts, FaultPlan
from gateway.simulator.scripted_model import ScriptedModel
from gateway.simulator.simulated_errors import SimulatedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from gateway.simulator.completion_wire import CompletionRequest
    from gateway.simulator.directives import Directives
    from gateway.simulator.scripted_turns import Continuation
    from gateway.simulator.simulator_options import SimulatorOptions

FAULT_PROMPTS_MAX: Final = 10_000
"""Prompts whose attempts are counted for `times=`; the oldest are forgotten."""


@dataclass(slots=True)
class Exchange:
    """A request, and what was sent for it. `outcome` is vLLM's finish reason, or what happened
    instead.

    `waiting`, `running` and `stalled` while it lasts; then `stop`, `length`, `abort` (as reported,
    on a fault or at shutdown), `disconnected` (the client went away), `rejected`, `error`, or the
    fault that cut it: `die`, `stall`, `end`.
    """

    request: CompletionRequest
    request_id: str | None
    """The client's name for the request, or its own id."""
    sent: array[int] = field(default_factory=lambda: array("I"))
    outcome: str = "waiting"
    status: int = 200
    cached_ids: int = 0


class SimulatedEngine:
    """The engine of one instance. Raises `ConfigError` for an invalid fault plan."""

    plan_type: ClassVar[type[FaultPlan]] = FaultPlan

    def __init__(self, options: SimulatorOptions, attempts: Attempts | None = None) -> None:
        self.options = options
        vocabulary = Vocabulary.load()
        self.model = self.new_model(vocabulary)
        self.conversations = Conversations(vocabulary, context_length=options.context_length)
        self.tails = EventTails(vocabulary)
        attempts = attempts or Attempts(FAULT_PROMPTS_MAX)
        self.faults = self.plan_type(options.name, self.standing_plan(), attempts)
        self.running = 0

    def new_model(self, vocabulary: Vocabulary) -> ScriptedModel:
        return ScriptedModel(vocabulary)

    def standing_plan(self) -> Directives:
        """Return the plan of the options. Raises `ConfigError`."""
        try:
            return self.model.syntax.parse_plan(self.options.faults)
        except SimulatedError as error:
            raise ConfigError(
                str(error),
                where="faults",
                remedy='Write a plan such as "status=503 times=2"; GET / explains them.',
            ) from error

    @property
    def paths(self) -> frozenset[str]:
        # The endpoints at which the model writes.
        return frozenset({PATH, CHAT_PATH})

    async def read(self, body: bytes, path: str = PATH) -> CompletionRequest:
        """Return the request of a body that came to the endpoint `path`.

        Raises `SimulatedError`.
        """
        if path == CHAT_PATH:
            return await asyncio.to_thread(self.conversations.read, body, self.options)
        return request_of(json_object(body), self.options)

    async def continuation(self, request: CompletionRequest) -> Continuation:
        """Return what the model would write. Raises `SimulatedError` for an invalid directive."""
        reading = self.model.reading(request.prompt, self.faults.in_force)
        if not reading.is_shaped:
            return reading.continuation()
        return await asyncio.to_thread(reading.continuation)

    async def held(self, continuation: Continuation, request: CompletionRequest) -> Continuation:  # noqa: ARG002
        """Return what the request allows of the continuation: here all, grammars have no effect."""
        return continuation

    def begin(
        self,
        request: CompletionRequest,
        continuation: Continuation,  # noqa: ARG002
        headers: Mapping[str, str],
    ) -> Exchange:
        return Exchange(request, headers.get("x-request-id") or request.id)

    @asynccontextmanager
    async def place(self, exchange: Exchange) -> AsyncIterator[None]:  # noqa: ARG002
        """Hold a slot for the block. Raises `SimulatedError` where too many requests wait."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def writer(self, head: dict[str, Any], request: CompletionRequest) -> EventWriter:
        """Return the writer of the events of one stream."""
        if request.chat_rules is None:
            return EventWriter(head, request, self.tails, self.options)
        parser = self.conversations.format.new_parser(request.chat_rules)
        return ChatWriter(head, request, self.tails, self.options, parser)

    def prefill(self, exchange: Exchange) -> None:
        """Count the prompt as computed."""

    def say(self, exchange: Exchange, ids: list[int]) -> None:
        """Count ids as generated and sent."""
        exchange.sent.extend(ids)

    def close(self, exchange: Exchange) -> None:
        """Count how the request ended."""

    def usage(self, exchange: Exchange) -> dict[str, Any]:
        """Return the `usage` object of a completion, as vLLM and SGLang write it."""
        prompt, completion = len(exchange.request.prompt), len(exchange.sent)
        usage = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }
        return usage | ({"reasoning_tokens": 0} if self.options.engine == "sglang" else {})

    def metrics(self) -> bytes:
        """Return the gauges that a gateway reads, in the text format of Prometheus."""
        label = f'{{engine="0",model_name="{self.options.models[0]}"}}'
        gauges = {"vllm:num_requests_running": self.running, "vllm:num_requests_waiting": 0}
        lines = (f"# TYPE {name} gauge\n{name}{label} {at}\n" for name, at in gauges.items())
        return "".join(lines).encode()

    def server_info(self) -> dict[str, Any]:
        """Return those arguments of SGLang 0.5.23's `/server_info` that matter to the gateway."""
        options = self.options
        return {
            "served_model_name": options.models[0],
            "context_length": options.context_length,
            "grammar_backend": "xgrammar",
            "enable_priority_scheduling": True,
            "schedule_low_priority_values_first": False,
            "incremental_streaming_output": False,
            "stream_interval": 1,
            "enable_cache_report": False,
            "internal_states": [],
            "version": options.engine_version,
            "frontend": "python",
        }

    def model_rows(self, created: int) -> list[dict[str, Any]]:
        """Return the models, as `/v1/models` lists them."""
        return [
            {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": self.options.engine,
                "root": name,
                "parent": None,
                "max_model_len": self.options.context_length,
                "permission": [],
            }
            for name in self.options.models
        ]
