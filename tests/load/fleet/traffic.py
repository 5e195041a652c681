"""Who asks what: sessions of agents, of people who chat, and questions about documents.

A session is a generator: it yields a turn, is sent nothing until that has ended, and then may wait.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate, count
from typing import TYPE_CHECKING, Final

from tests.load.fleet.prompts import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

AGENT_PROMPTS: Final = 60
CHAT_PROMPTS: Final = 20
DOCUMENTS: Final = 400
LATE_S: Final = 40.0
THINK_S: Final = 4.0


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt, what is answered, and how long after the end of the one before it is asked.

    `opening` is where the first message of the user ends.
    """

    messages: tuple[Message, ...]
    said: tuple[Message, ...]
    pause_s: float
    opening: int


class Zipf:
    """Numbers from 0 on, the first ones more often."""

    def __init__(self, size: int, exponent: float) -> None:
        self._sums = list(accumulate((n + 1) ** -exponent for n in range(size)))

    def draw(self, random: Random) -> int:
        """One of them."""
        return bisect_left(self._sums, random.random() * self._sums[-1])


def log_uniform(random: Random, least: float, most: float) -> int:
    """Between these, as often below their geometric mean as above."""
    return round(math.exp(random.uniform(math.log(least), math.log(most))))


class Traffic:
    """Sessions of one kind of workload."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._ids = count(1_000_000)
        self._agent_prompts = Zipf(AGENT_PROMPTS, 1.0)
        self._chat_prompts = Zipf(CHAT_PROMPTS, 1.0)
        self._documents = Zipf(DOCUMENTS, 0.9)

    def _new(self, tokens: float) -> Message:
        return Message(next(self._ids), max(1, round(tokens)))

    def agent(self) -> Iterator[Turn]:
        """Loops of tool calls; a person speaks now and then, and the thoughts of the loop before
        leave the prompt, as Harmony has it.
        """
        random = self._random
        which = self._agent_prompts.draw(random)
        system = Message(which, 3_000 + which * 151)
        prompt = [system, self._new(random.uniform(50, 1_000))]
        opening, thoughts, pause_s = sum(one.tokens for one in prompt), set[int](), 0.0
        for _ in range(log_uniform(random, 5, 60)):
            said = random.uniform(100, 800)
            thought, call = self._new(said / 2), self._new(said / 2)
            yield Turn(tuple(prompt), (thought, call), pause_s, opening)
            prompt += (thought, call)
            thoughts.add(thought.id)
            if random.random() < 0.1:
                prompt = [one for one in prompt if one.id not in thoughts]
                thoughts.clear()
                prompt.append(self._new(random.uniform(50, 1_000)))
                pause_s = LATE_S
            else:
                prompt.append(self._new(log_uniform(random, 200, 4_000)))
                pause_s = random.expovariate(1 / THINK_S)

    def chat(self) -> Iterator[Turn]:
        """A person asks some questions; half of what is said is thought, and leaves the prompt."""
        random = self._random
        which = self._chat_prompts.draw(random)
        prompt = [Message(10_000 + which, 500 + which * 50), self._new(random.uniform(50, 1_500))]
        opening, pause_s = sum(one.tokens for one in prompt), 0.0
        for _ in range(random.randint(1, 9)):
            said = random.uniform(100, 500)
            thought, answer = self._new(said / 2), self._new(said / 2)
            yield Turn(tuple(prompt), (thought, answer), pause_s, opening)
            prompt += (answer, self._new(random.uniform(20, 400)))
            pause_s = random.expovariate(1 / 20.0)

    def rag(self) -> Iterator[Turn]:
        """One question about one to three documents."""
        random = self._random
        prompt = [Message(20_000, 200)]
        for _ in range(random.randint(1, 3)):
            which = self._documents.draw(random)
            prompt.append(Message(30_000 + which, 1_000 + which * 617 % 5_000))
        prompt.append(self._new(random.uniform(20, 200)))
        said = (self._new(random.uniform(50, 400)),)
        yield Turn(tuple(prompt), said, 0.0, sum(one.tokens for one in prompt))

    def one_prompt(self) -> Iterator[Turn]:
        """The same 8,000 tokens and a short question: what everybody asks at once."""
        prompt = (Message(50_000, 8_000), self._new(50))
        yield Turn(prompt, (self._new(100),), 0.0, 8_050)


@dataclass(frozen=True, slots=True)
class Workload:
    """`rates`: sessions a second of each kind at 100 %, which the oracle carries with 8 members."""

    name: str
    rates: tuple[tuple[Callable[[Traffic], Iterator[Turn]], float], ...]
    kv_tokens: int = 600_000


WORKLOADS: Final = {
    one.name: one
    for one in (
        Workload("agents", ((Traffic.agent, 0.60),)),
        Workload("agents2M", ((Traffic.agent, 1.2),), kv_tokens=2_000_000),
        Workload("chat", ((Traffic.chat, 11.5),)),
        Workload("rag", ((Traffic.rag, 16.5),)),
        Workload(
            "mix", ((Traffic.agent, 0.3 * 0.8), (Traffic.chat, 5 * 0.8), (Traffic.rag, 4 * 0.8))
        ),
    )
}
