"""The continuation of a prompt: a pure function of its ids, the same on every instance.

No clock, no chance, no memory. A prompt that already holds the first ids of the answer gets the
rest of the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gateway.generation import FinishReason
from gateway.simulator.alignment import rest_of
from gateway.simulator.directives import Malformed, parse
from gateway.simulator.malformed import corpus
from gateway.simulator.malformed.attacks import turn_of
from gateway.simulator.scripting.speech import Conversation
from gateway.simulator.scripting.writer import ScriptWriter
from gateway.simulator.turns import Bodies, Continuation, messages_of, turn_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gateway.models.harmony.vocabulary import Vocabulary
    from gateway.simulator.directives import Directives
    from gateway.simulator.turns import Message, Script

    InForce = Callable[[Directives, Sequence[int]], Directives]

_CORPUS_USERS_MAX: Final = 2
"""A recorded output may itself contain a message of the user: look behind it, once."""


def _as_asked(directives: Directives, _: Sequence[int]) -> Directives:
    return directives


@dataclass(frozen=True, slots=True)
class PromptReading:
    """A prompt that was read. `continuation` may be CPU work when the prompt shows shapes."""

    continuation: Callable[[], Continuation]
    is_shaped: bool


class ScriptedModel:
    """The scripted model, with what never changes: vocabulary and corpus."""

    def __init__(self, vocabulary: Vocabulary, recorded: Mapping[str, Script]) -> None:
        self.vocabulary = vocabulary
        self._recorded = recorded

    def continuation(self, prompt: list[int], in_force: InForce = _as_asked) -> Continuation:
        # `in_force` filters the directives of the user. Raises `SimulatedError` for an invalid
        # directive.
        return self.reading(prompt, in_force).continuation()

    def reading(self, prompt: list[int], in_force: InForce = _as_asked) -> PromptReading:
        """Read the prompt up to the part that may be CPU work. Raises as `continuation` does."""
        messages = messages_of(prompt, self.vocabulary)
        bodies = Bodies(prompt, self.vocabulary)
        replayed = self._replay(prompt, messages, bodies, in_force)
        if replayed is not None:
            return PromptReading(lambda: replayed, is_shaped=False)
        start = turn_start(prompt, messages)
        conversation = _conversation(messages, bodies, start)
        directives = in_force(parse(conversation.raw_request), prompt[:start])
        writer = ScriptWriter(conversation, directives, self.vocabulary)
        return PromptReading(
            lambda: self._scripted(writer, conversation, start, prompt[start:]),
            is_shaped=writer.is_shaped,
        )

    def _scripted(
        self, writer: ScriptWriter, conversation: Conversation, start: int, said: list[int]
    ) -> Continuation:
        script = turn_of(writer)
        return Continuation(
            ids=rest_of(script, said, writer, self.vocabulary),
            turn_start=start,
            directives=writer.directives,
            finish=script.finish if script.finish is FinishReason.LENGTH else None,
            others=lambda: self._others(conversation, writer.directives, said),
        )

    def _others(
        self, conversation: Conversation, directives: Directives, said: list[int]
    ) -> Iterator[list[int]]:
        meek = replace(directives, malformed=Malformed())
        writer = ScriptWriter(conversation, meek, self.vocabulary)
        for draft in writer.drafts():
            yield rest_of(draft, said, writer, self.vocabulary)

    def _replay(
        self, prompt: list[int], messages: list[Message], bodies: Bodies, in_force: InForce
    ) -> Continuation | None:
        users = [message for message in messages if message.role == "user"]
        for message in users[-_CORPUS_USERS_MAX:]:
            match = corpus.CASE.search(bodies.text(message))
            script = self._recorded.get(match[1]) if match else None
            said = prompt[message.end :]
            if script is not None and script.ids[: len(said)] == said:
                asked = parse(_conversation(messages, bodies, message.end).raw_request)
                directives = in_force(asked, prompt[: message.end])
                ids = script.ids[len(said) :]
                return Continuation(ids, message.end, directives, script.finish)
        return None


def _conversation(messages: list[Message], bodies: Bodies, start: int) -> Conversation:
    before = tuple(message for message in messages if message.start < start)
    return Conversation(before, bodies)
