"""Requests of `POST /v1/chat/completions`, in the words of `/v1/completions`.

A conversation becomes a prompt in Harmony, and what it demands of the answer a grammar, as servers
of gpt-oss do it. `stop`, `n` and `chat_template_kwargs` have no effect on a script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from gateway.constraints.structural_tags import Unsayable, tag_of
from gateway.context.assembly import assemble
from gateway.errors import InvalidRequest
from gateway.models.format import GrammarOptions, RenderOptions, SchemaLimits
from gateway.models.harmony.harmony_format import HarmonyFormat
from gateway.protocol.chat_conversion import parse_chat
from gateway.protocol.json_body import InputLimits
from gateway.protocol.responses.response_object import echo
from gateway.protocol.responses.response_rules import rules_of
from gateway.protocol.tool_types import declared
from gateway.simulator.errors import bad_request

if TYPE_CHECKING:
    from gateway.constraints.output_rules import OutputRules
    from gateway.generation import TokenParser
    from gateway.models.harmony.vocabulary import Vocabulary
    from gateway.protocol.responses.create_request import CreateResponse

PATH: Final = "/v1/chat/completions"
_LIMITS: Final = InputLimits(
    json_depth_max=128,
    items_max=10_000,
    tools_max=1024,
    schema_bytes_max=1_000_000,
    text_chars_max=32 * 1024 * 1024,
    json_containers_max=1_000_000,
)
_SAME: Final = (
    *("model", "request_id", "stream", "stream_options", "temperature", "top_p", "top_k", "min_p"),
    *("presence_penalty", "frequency_penalty", "seed", "cache_salt", "priority"),
)
_NOBODY: Final = UUID(int=0)


class Conversations:
    """Reader of these requests, with the gateway's own rendering and limits for gpt-oss."""

    def __init__(self, vocabulary: Vocabulary, *, context_length: int) -> None:
        self._format = HarmonyFormat(vocabulary, SchemaLimits())
        self._context_length = context_length

    def as_completion(
        self, members: dict[str, Any], body: bytes
    ) -> tuple[dict[str, Any], OutputRules]:
        """Return the equivalent completion request, and the rules to read its output by.

        Raises `SimulatedError`.
        """
        try:
            request = parse_chat(body, limits=_LIMITS).request
            prompt = self._prompt(request)
        except InvalidRequest as error:
            raise bad_request(str(error), error.param) from error
        rules = rules_of(echo(request))
        wished = members.get("max_completion_tokens") or members.get("max_tokens")
        completion = {name: members[name] for name in _SAME if name in members} | {
            "prompt": prompt,
            "max_tokens": wished or max(self._context_length - len(prompt), 1),
            "logprobs": (members.get("top_logprobs") or 0) if members.get("logprobs") else None,
            "response_format": self._grammar(rules),
        }
        return completion, rules

    def parser(self, rules: OutputRules) -> TokenParser:
        # Reads one turn.
        return self._format.new_parser(rules)

    def _prompt(self, request: CreateResponse) -> list[int]:
        context = assemble((), request.input, stored={}, unsealed={}, response=_NOBODY)
        options = RenderOptions(
            instructions=None,
            tools=declared(request.tools) if request.tools else (),
            effort=echo(request)["reasoning"]["effort"],
            current_date=None,
            model_identity="You are ChatGPT, a large language model trained by OpenAI.",
            knowledge_cutoff="2024-06",
            commentary_without_tools=False,
            answer=rules_of(echo(request)).answer,
        )
        return list(self._format.render(context.items, options).ids)

    def _grammar(self, rules: OutputRules) -> dict[str, Any] | None:
        # Only a turn that must call, or answer in a format, is constrained.
        if rules.calls != "required" and rules.answer is None:
            return None
        start = self.parser(rules).place
        constraint = self._format.turn_constraint(rules, start, (), GrammarOptions())
        if constraint is None:
            return None
        try:
            return tag_of(constraint, max_whitespace=False)
        except Unsayable:
            return None
