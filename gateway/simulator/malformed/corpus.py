"""Recorded model output, well formed and not, that is said on request: `corpus:H01`."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from gateway.errors import ConfigError
from gateway.generation import FinishReason
from gateway.models.harmony.vocabulary import OPENING
from gateway.simulator.turns import Script

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CASE: Final = re.compile(r"\bcorpus:(\w+)")


def load(path: Path | None = None) -> Mapping[str, Script]:
    """Return the scripts by name, from lines of `{"id", "ids", "finish"}`.

    They are played to their last id, over stop ids in the middle too: some record a server that did
    not stop there. Raises `ConfigError` for a file that cannot be read.
    """
    source = path or files("gateway.simulator.malformed") / "data" / "corpus.jsonl"
    try:
        lines = [json.loads(line) for line in source.read_text("utf-8").splitlines()]
        return {
            line["id"]: Script([*OPENING, *line["ids"]], finish=FinishReason(line["finish"]))
            for line in lines
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"cannot be read as a corpus: {error}",
            where=str(source),
            remedy='Give lines such as {"id": "H01", "ids": [200005], "finish": "stop"}.',
        ) from error
