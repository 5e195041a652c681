"""What comes next: a pure function of the prompt's ids, the same on every instance.

No clock, no chance, no memory. A prompt that already holds the first ids of the answer gets the
rest of the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.simulator import corpus
from gateway.simulator.alignment import rest_of
from gateway.simulator.conversation import Conversation
from gateway.simulator.scripting import ScriptWriter
from gateway.simulator.transcript import Bodies, messages_of, turn_start

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.generation import FinishReason
    from gateway.harmony.vocabulary import Vocabulary
    from gateway.simulator.directives import Directives
    from gateway.simulator.script import Script
    from gateway.simulator.transcript import Message

_CORPUS_USERS_MAX: Final = 2
"""A recorded output may itself contain a message of the user: look behind it, once."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """`ids` are still to be said; the turn they end begins at `turn_start` of the prompt.

    `finish` is None for an ordinary script, which ends with a stop id; a recorded one that may
    hold stop ids anywhere says itself how it ended.
    """

    ids: list[int]
    turn_start: int
    directives: Directives
    finish: FinishReason | None = None


class ScriptedModel:
    """Holds what never changes: vocabulary and corpus."""

    def __init__(self, vocabulary: Vocabulary, recorded: Mapping[str, Script]) -> None:
        self.vocabulary = vocabulary
        self._recorded = recorded

    def continuation(self, prompt: list[int]) -> Continuation:
        """Raises `SimulatedError` for a directive that means nothing."""
        messages = messages_of(prompt, self.vocabulary)
        bodies = Bodies(prompt, self.vocabulary)
        replayed = self._replay(prompt, messages, bodies)
        if replayed is not None:
            return replayed
        start = turn_start(prompt, messages)
        writer = self._writer(messages, bodies, start)
        script = writer.script()
        ids = rest_of(script, prompt[start:], writer.part, self.vocabulary)
        return Continuation(ids=ids, turn_start=start, directives=writer.directives)

    def _writer(self, messages: list[Message], bodies: Bodies, start: int) -> ScriptWriter:
        before = tuple(message for message in messages if message.start < start)
        return ScriptWriter(Conversation(before, bodies), self.vocabulary)

    def _replay(
        self, prompt: list[int], messages: list[Message], bodies: Bodies
    ) -> Continuation | None:
        users = [message for message in messages if message.role == "user"]
        for message in users[-_CORPUS_USERS_MAX:]:
            match = corpus.CASE.search(bodies.text(message))
            script = self._recorded.get(match[1]) if match else None
            said = prompt[message.end :]
            if script is not None and script.ids[: len(said)] == said:
                directives = self._writer(messages, bodies, message.end).directives
                ids = script.ids[len(said) :]
                return Continuation(ids, message.end, directives, script.finish)
        return None
