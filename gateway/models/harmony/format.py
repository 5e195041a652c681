"""Harmony, the format of gpt-oss, as the rest of the gateway sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.generation import Framing
from gateway.models.harmony import framing as frames
from gateway.models.harmony.grammar import turn_constraint
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.rendering import Renderer
from gateway.models.harmony.transcript import messages, messages_of_turn
from gateway.models.harmony.vocabulary import (
    CHANNEL,
    CONSTRAIN,
    END,
    FIRST_SPECIAL,
    MESSAGE,
    RETURN,
    STOP_IDS,
    VOCABULARY_SIZE,
    Vocabulary,
)
from gateway.models.history import repeated_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gateway.constraints.rules import OutputRules
    from gateway.generation import Constraint, ParserPosition, Prompt, TokenParser
    from gateway.models.format import (
        FormatOptions,
        GrammarOptions,
        Rendering,
        SchemaLimits,
        Turn,
    )

_NO_TOOLS: Final[frozenset[str]] = frozenset()
"""An empty set has 200 bytes, and nearly every response would have one."""


class HarmonyFormat(Renderer):
    """A `ModelFormat`: a renderer of prompts, and what else there is to know of Harmony."""

    name: Final = "harmony"
    abilities: Final = ("reasoning", "tools", "structured_outputs", "streaming", "background")
    template_state: Final = b""
    questions: Final[tuple[bytes, ...]] = ()
    vocabulary_size: Final = VOCABULARY_SIZE
    text_ids: Final = range(FIRST_SPECIAL)
    stop_ids: Final = STOP_IDS
    framing: Final = Framing(opening=frames.OPENING, turn_end=RETURN, message_end=END)
    framing_tokens: Final = 12
    """`<|channel|>analysis<|message|>`, `<|end|><|start|>assistant`, and the header of an answer in
    JSON."""
    header_markers: Final = frozenset({CHANNEL, CONSTRAIN, MESSAGE})
    plain_header_ids_max: Final = frames.PLAIN_HEADER_IDS_MAX
    plain_header = staticmethod(frames.plain_header)
    said_ids = staticmethod(frames.said_ids)
    answer_opening = staticmethod(frames.answer_header)
    with_result = staticmethod(frames.with_result)
    repeated_ids = staticmethod(repeated_ids)

    @classmethod
    def load(cls, limits: SchemaLimits, options: FormatOptions | None = None) -> HarmonyFormat:  # noqa: ARG003 - one family has none
        # Raises `StartupError` when the vocabulary is damaged.
        return cls(Vocabulary.load(), limits)

    def with_state(self, template_state: bytes) -> HarmonyFormat:  # noqa: ARG002 - the format has no template_state
        return self

    def relearn(self) -> None:
        """Do nothing: this format asks no backend for anything."""

    def misfits(self, rendered: Mapping[bytes, Rendering]) -> tuple[str, ...]:  # noqa: ARG002 - no server renders it
        # Prompts are rendered here; no server takes part.
        return ()

    def prefill_size(self, prompt_ids: Sequence[int]) -> int:  # noqa: ARG002 - another format's
        # A prompt ends with the opening of a turn.
        return 0

    def check(self) -> None:
        """Render a prompt as openai-harmony does, whose 20 MiB nothing that serves has to load."""
        from gateway.models.harmony.reference import check_prompt

        check_prompt(self)

    def messages(self, prompt: Prompt, *, with_ids: bool) -> list[dict[str, Any]]:
        # The last message of a prompt is an opening, and left out.
        return messages(self.vocabulary, prompt.ids[: -len(frames.OPENING)], with_ids=with_ids)

    def messages_of_turn(
        self,
        ids: Sequence[int],
        taken_back: Sequence[tuple[str, Sequence[int]]] = (),
        *,
        with_ids: bool = False,
    ) -> list[dict[str, Any]]:
        """Return the messages of a turn's `ids` (`transcript`), then those `taken_back`.

        `taken_back` pairs the rule that took ids back with those ids. `with_ids` adds `token_ids`.
        """
        return messages_of_turn(self.vocabulary, ids, taken_back, with_ids=with_ids)

    def new_parser(self, rules: OutputRules, *, trace: bool = False) -> Parser:
        """Return a parser for one turn of a response that is held to `rules`.

        It knows their tools, and beside an answer in a format preambles are reasoning. With
        `trace` text has positions.
        """
        tools = None if rules.calls == "none" else frozenset(rules.tools) or _NO_TOOLS
        preambles, hosted = rules.answer is None, rules.hosted or _NO_TOOLS
        return Parser(self.vocabulary, tools, trace=trace, preambles=preambles, hosted=hosted)

    def rerender(self, turns: Iterable[Turn], new_parser: Callable[[], TokenParser]) -> list[int]:
        # Each turn is read by a parser of its own; calls that were cut off are left out.
        return frames.rerendered_ids(turns, new_parser, self._writer)

    def call_opening(self, rules: OutputRules) -> tuple[int, ...]:
        return frames.call_header(rules, self.vocabulary)

    def message_opening(self) -> tuple[int, ...]:
        # Behind this marker the model has to name a channel.
        return (CHANNEL,)

    def has_body(self, message: Sequence[int]) -> bool:
        return MESSAGE in message

    def turn_constraint(
        self,
        rules: OutputRules,
        place: ParserPosition,
        message: Sequence[int],
        options: GrammarOptions,
    ) -> Constraint | None:
        # None when nothing is bound, or can be. CPU work.
        return turn_constraint(rules, place, message, options, self.vocabulary)
