"""What must be answered: the scripted model's exact words, computed without any of our rendering.

The prompt is openai-harmony's. Every question asks for other words, so that an answer that lost a
word, repeats one, or was given to somebody else cannot look right by chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from gateway.models.harmony.tokenizer import STOP_IDS
from tests.fakes.simulated_conversation import continuation, parsed, prompt_of, system, user

if TYPE_CHECKING:
    from random import Random

WORDS: Final = (
    *("apple", "river", "stone", "cloud", "green", "seven", "table", "light", "north", "paper"),
    *("music", "horse", "glass", "bread", "chair", "ocean", "train", "white", "round", "smile"),
    *("night", "grass", "metal", "storm", "field", "house", "quiet", "sugar", "tower", "wheel"),
)
THINK_IDS: Final = 8
UNPACED: Final = 0


class Asked(Protocol):
    """What a client sends: a user message, and other members of the body."""

    @property
    def text(self) -> str: ...

    @property
    def fields(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Question:
    """What a client sends: `words` to be said, at `tokens_per_s` (0: as fast as it can be)."""

    words: tuple[str, ...]
    tokens_per_s: int = UNPACED

    @property
    def text(self) -> str:
        """The user's message."""
        pace = f" tokens_per_s={self.tokens_per_s}" if self.tokens_per_s else ""
        return f"[[sim think={THINK_IDS}{pace} say={' '.join(self.words)}]]"

    @property
    def fields(self) -> dict[str, Any]:
        """Nothing else."""
        return {}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a completed response must hold, and what it must have cost."""

    reasoning: str
    text: str
    input_tokens: int
    output_tokens: int


def question(rng: Random, *, words: int, tokens_per_s: int = UNPACED) -> Question:
    """A question with so many random words."""
    return Question(tuple(rng.choices(WORDS, k=words)), tokens_per_s)


@cache
def answer_to(asked: Question) -> Answer:
    """The whole answer to a conversation of this one question."""
    prompt = prompt_of(system(), user(asked.text))
    script = continuation(prompt)
    said = script[: 1 + next(place for place, one in enumerate(script) if one in STOP_IDS)]
    turn = parsed(said)
    return Answer(
        reasoning="".join(turn.texts("analysis")),
        text=turn.final,
        input_tokens=len(prompt),
        output_tokens=len(said),
    )
