"""The simulated server of tests: it also misbehaves, obeys grammars, and checks its prompts."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from gateway.constraints.structural_tags import Unsayable, tag_of
from gateway.models.format import GrammarOptions
from gateway.simulator.app import Simulator
from gateway.simulator.engine import SimulatedEngine
from gateway.simulator.wire import chat
from gateway.simulator.wire.requests import CompletionRequest, Fields, json_object, request_of
from tests.fakes.wayward_engine import corpus, generate_endpoint
from tests.fakes.wayward_engine.constraint_fields import OutputConstraint, constraint_of
from tests.fakes.wayward_engine.decoding import constrained
from tests.fakes.wayward_engine.generate_endpoint import GenerateWriter
from tests.fakes.wayward_engine.misbehaviour import WaywardPlan
from tests.fakes.wayward_engine.prompt_checks import PromptChecks
from tests.fakes.wayward_engine.scripted_misbehaviour import WaywardModel

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from gateway.constraints.output_rules import OutputRules
    from gateway.models.harmony.vocabulary import Vocabulary
    from gateway.simulator.directives import Attempts
    from gateway.simulator.engine import Observed
    from gateway.simulator.options import SimulatorOptions
    from gateway.simulator.turns import Continuation
    from gateway.simulator.wire.frames import EventWriter

_CONSTRAINTS: Final = (
    *(b'"structured_outputs"', b'"response_format"'),
    *(b'"structural_tag"', b'"json_schema"', b'"regex"', b'"ebnf"'),
)
"""The fields of a body that may hold a grammar."""


def create_simulator(options: SimulatorOptions, attempts: Attempts | None = None) -> ASGIApp:
    """Return the ASGI app of one instance. See `gateway.simulator.app.create_simulator`."""
    return Simulator(WaywardEngine(options, attempts))


@dataclass(frozen=True, slots=True)
class HeldRequest(CompletionRequest):
    """A request whose output is held to a shape."""

    constraint: OutputConstraint | None = None
    is_generate: bool = False
    """It came to SGLang's `/generate`."""


class WaywardEngine(SimulatedEngine):
    """The engine of one instance. Raises `ConfigError` for an invalid fault plan or corpus."""

    plan_type = WaywardPlan

    def __init__(self, options: SimulatorOptions, attempts: Attempts | None = None) -> None:
        super().__init__(options, attempts)
        self.checks = PromptChecks(self.model.vocabulary)
        for name in self.checks.as_json():
            read = partial(getattr, self.checks, name)
            self.metrics.watch(f"simulator:{name}", "Of prompts.", read)

    @override
    def new_model(self, vocabulary: Vocabulary) -> WaywardModel:
        path = corpus.PATH
        if isinstance(self.options, corpus.RecordedOptions):
            path = self.options.corpus_path
        return WaywardModel(vocabulary, corpus.load(path))

    @property
    @override
    def paths(self) -> frozenset[str]:
        is_sglang = self.options.engine == "sglang"
        return super().paths | ({generate_endpoint.PATH} if is_sglang else set())

    @override
    async def read(self, body: bytes, path: str = "/v1/completions") -> HeldRequest:
        # Grammars and schemas are compiled in a thread, so that the event loop answers other
        # requests, health checks among them.
        if path == chat.PATH or any(name in body for name in _CONSTRAINTS):
            return await asyncio.to_thread(self._read, body, path)
        return self._read(body, path)

    def _read(self, body: bytes, path: str) -> HeldRequest:
        members = json_object(body)
        rules = None
        if path == chat.PATH:
            members, rules = self.conversations.as_completion(members, body)
            members["response_format"] = self._format(rules)
        is_generate = path == generate_endpoint.PATH
        fields = Fields(generate_endpoint.as_completion(members) if is_generate else members)
        request = request_of(fields, self.options)
        known = {one.name: getattr(request, one.name) for one in dataclasses.fields(request)}
        known |= {"chat_rules": rules, "return_token_ids": is_generate or request.return_token_ids}
        constraint = constraint_of(fields, self.options)
        return HeldRequest(**known, constraint=constraint, is_generate=is_generate)

    def _format(self, rules: OutputRules) -> dict[str, Any] | None:
        # Of a chat, only a turn that must call, or answer in a format, is constrained.
        if rules.calls != "required" and rules.answer is None:
            return None
        start = self.conversations.parser(rules).place
        options = GrammarOptions()
        constraint = self.conversations.format.turn_constraint(rules, start, (), options)
        try:
            return None if constraint is None else tag_of(constraint, max_whitespace=False)
        except Unsayable:
            return None

    @override
    async def held(self, continuation: Continuation, request: CompletionRequest) -> Continuation:
        # Raises `SimulatedError` for a bad constraint.
        assert isinstance(request, HeldRequest)
        if request.constraint is None:
            return continuation
        return await asyncio.to_thread(
            constrained,
            continuation,
            request.prompt,
            request.constraint,
            ids_max=request.max_tokens,
            vocabulary=self.model.vocabulary,
        )

    @override
    def writer(self, head: dict[str, Any], request: CompletionRequest) -> EventWriter:
        assert isinstance(request, HeldRequest)
        if not request.is_generate:
            return super().writer(head, request)
        known = (head, request, self.model.vocabulary, self.tails, self.fingerprint)
        return GenerateWriter(*known, self.options.engine)

    @override
    def observe(
        self, request: CompletionRequest, continuation: Continuation, headers: dict[str, str]
    ) -> Observed:
        observed = super().observe(request, continuation, headers)
        self.checks.see(observed.request_id, request.prompt, continuation.turn_start)
        return observed

    @override
    def seen(self, begin: str, *, with_ids: bool) -> dict[str, Any]:
        return {**super().seen(begin, with_ids=with_ids), "checks": self.checks.as_json()}

    @override
    def row(self, observed: Observed, *, with_ids: bool) -> dict[str, Any]:
        request = observed.request
        assert isinstance(request, HeldRequest)
        demand = request.constraint.as_json() if request.constraint else None
        return {**super().row(observed, with_ids=with_ids), "demand": demand}
