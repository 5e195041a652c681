from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

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
from gateway.simulator.scripted_model import read_prompt

if TYPE_CHECKING:
    from gateway.simulator.completion_wire import CompletionRequest
    from gateway.simulator.simulator_options import SimulatorOptions


class SimulatedEngine:
    """State that the requests of one server share."""

    def __init__(self, options: SimulatorOptions) -> None:
        self.options = options
        self.vocabulary = Vocabulary.load()
        self.conversations = Conversations(self.vocabulary, context_length=options.context_length)
        self.tails = EventTails(self.vocabulary)
        self.running = 0

    @property
    def paths(self) -> frozenset[str]:
        return frozenset({PATH, CHAT_PATH})

    async def read(self, body: bytes, path: str = PATH) -> CompletionRequest:
        if path == CHAT_PATH:
            return await asyncio.to_thread(self.conversations.read, body, self.options)
        return request_of(json_object(body), self.options)

    async def rest_of_turn(self, request: CompletionRequest) -> list[int]:
        reading = read_prompt(request.prompt, self.vocabulary)
        return await asyncio.to_thread(reading.rest) if reading.is_shaped else reading.rest()

    def writer(self, head: dict[str, Any], request: CompletionRequest) -> EventWriter:
        if request.chat_rules is None:
            return EventWriter(head, request, self.tails, self.options)
        parser = self.conversations.format.new_parser(request.chat_rules)
        return ChatWriter(head, request, self.tails, self.options, parser)

    def usage(self, prompt: int, completion: int) -> dict[str, Any]:
        usage = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }
        return usage | ({"reasoning_tokens": 0} if self.options.engine == "sglang" else {})

    def metrics(self) -> bytes:
        label = f'{{engine="0",model_name="{self.options.models[0]}"}}'
        gauges = {"vllm:num_requests_running": self.running, "vllm:num_requests_waiting": 0}
        lines = (f"# TYPE {name} gauge\n{name}{label} {at}\n" for name, at in gauges.items())
        return "".join(lines).encode()

    def server_info(self) -> dict[str, Any]:
        """Return those arguments of SGLang 0.5.23 that matter to the gateway."""
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
