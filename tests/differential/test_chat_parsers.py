"""The parsers of chat formats against vLLM's own, for turns that are right, mutated and random.

Needs the Python of an environment in which vLLM is installed, TEST_VLLM_PYTHON; no server. Of every
turn both make the same, or the difference has one of the reasons that docs/parsers.md lists.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.differential.turns import FAMILIES, TOOLS, Comparison, Family, Turns
from tests.fakes.chat_vocabulary import tokenizer_json, vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3600)]

PYTHON: Final = os.environ.get("TEST_VLLM_PYTHON", "")
TURNS: Final = int(os.environ.get("TEST_CHAT_TURNS", "4000"))
"""In all."""
SEED: Final = int(os.environ.get("TEST_CHAT_SEED", "17"))
STREAMED_OF: Final = 10
"""One of so many turns is also read id by id."""
BATCH: Final = 500
WORKER: Final = Path(__file__).parent / "vllm_worker.py"


def batches(family: Family, count: int, seed: int) -> Iterator[tuple[list[list[int]], bool]]:
    """Turns, and whether they are read id by id, too."""
    turns = Turns(family, vocabulary(family.added), random.Random(seed))
    for at in range(0, count, BATCH):
        made = [turns.new() or [65] for _ in range(min(BATCH, count - at))]
        yield made, (at // BATCH) % STREAMED_OF == 0


@pytest.mark.skipif(not PYTHON, reason="TEST_VLLM_PYTHON is not set")
def test_turns_are_read_as_vllm_reads_them(tmp_path: Path) -> None:
    log = (tmp_path / "worker.log").open("w+")
    worker = subprocess.Popen(
        [PYTHON, str(WORKER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    compared = Comparison()
    try:
        for at, (name, family) in enumerate(FAMILIES.items()):
            known = vocabulary(family.added)
            for turns, streamed in batches(family, TURNS // len(FAMILIES), SEED + at):
                batch = {
                    "tokenizer": tokenizer_json(family.added),
                    "reasoning": family.their_reasoning,
                    "calls": family.their_calls,
                    "tools": TOOLS,
                    "thinking": family.thinking,
                    "streamed": streamed,
                    "turns": turns,
                }
                worker.stdin.write(json.dumps(batch) + "\n")
                worker.stdin.flush()
                line = worker.stdout.readline()
                assert line, Path(log.name).read_text()[-2000:]
                for ids, answer in zip(turns, json.loads(line), strict=True):
                    compared.add(name, known, ids, answer)
    finally:
        worker.stdin.close()
        worker.wait(30)
        worker.stdout.close()
        log.close()
    compared.check()
