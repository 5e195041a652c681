"""Recorded model output, well formed and not, that is said on request: `corpus:H01`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.errors import ConfigError
from gateway.generation import FinishReason
from gateway.models.harmony.tokenizer import OPENING

if TYPE_CHECKING:
    from collections.abc import Mapping

PATH: Final = Path(__file__).parent / "data" / "corpus.jsonl"
CASE: Final = re.compile(r"\bcorpus:(\w+)")


@dataclass(frozen=True, slots=True)
class Recorded:
    """The ids of a turn from its `<|start|>assistant` on, and why it ends where it ends."""

    ids: list[int]
    finish: FinishReason


def load(path: Path = PATH) -> Mapping[str, Recorded]:
    """Return the scripts by name, from lines of `{"id", "ids", "finish"}`.

    They are played to their last id, over stop ids in the middle too: some record a server that did
    not stop there. Raises `ConfigError` for a file that cannot be read.
    """
    try:
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        return {
            line["id"]: Recorded([*OPENING, *line["ids"]], FinishReason(line["finish"]))
            for line in lines
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"cannot be read as a corpus: {error}",
            where=str(path),
            remedy='Give lines such as {"id": "H01", "ids": [200005], "finish": "stop"}.',
        ) from error
