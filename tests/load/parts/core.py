"""The core part: ids → parser → fold → frames, in process, as one response after the other.

`python -m tests.load.parts.core LOAD TOKENS_PER_CHUNK` with a `Load` as JSON prints `{"cpu_s": …}`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from gateway.api.sse import obfuscated
from gateway.entries import Finished, Tokens, TurnEnded, TurnStarted
from gateway.eventlog.fold.fold import Fold
from gateway.generation import FinishReason, Framing
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.tokenizer import CHANNEL, END, MESSAGE, OPENING, RETURN, Vocabulary
from tests.fakes.fold_formats import parsed_by
from tests.fakes.response_heads import CREATED_AT, NO_RULES, response_head
from tests.load.loading import Load
from tests.load.tape import WORDS, words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.entries import Entry

PROMPT_TOKENS = 40


def log_of(vocabulary: Vocabulary, tokens: int, per_chunk: int) -> list[Entry]:
    """The log of one response of the load."""
    known = [token for token, _ in words(vocabulary)]
    said = [known[place * 7 % WORDS] for place in range(tokens - 4)]
    ids = (CHANNEL, *vocabulary.encode("final"), MESSAGE, *said, RETURN)
    chunks = [Tokens(ids[at : at + per_chunk]) for at in range(0, len(ids), per_chunk)]
    ended = TurnEnded(FinishReason.STOP)
    return [TurnStarted(PROMPT_TOKENS), *chunks, ended, Finished("completed", CREATED_AT)]


def play(vocabulary: Vocabulary, log: Sequence[Entry]) -> int:
    """Bytes of all frames of a response."""
    framing = Framing(opening=OPENING, turn_end=RETURN, message_end=END)
    fold = Fold(
        response_head(),
        parsed_by(lambda trace: Parser(vocabulary, frozenset(), trace=trace), framing),
        NO_RULES,
    )
    size = 0
    for entry in log:
        for event in fold.apply(entry):
            size += len(obfuscated(event))
    return size


def main() -> None:
    load, per_chunk = Load(**json.loads(sys.argv[1])), int(sys.argv[2])
    vocabulary = Vocabulary.load()
    log = log_of(vocabulary, load.tokens, per_chunk)
    play(vocabulary, log)
    began = time.process_time()
    for _ in range(load.requests):
        play(vocabulary, log)
    print(json.dumps({"cpu_s": time.process_time() - began}))


if __name__ == "__main__":
    main()
