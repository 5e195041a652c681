"""Read the facts beside a model's tokenizer that the gateway needs: `config.json` and
`generation_config.json`, as Hugging Face has them in the folder of a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_BYTES_MAX: Final = 1024 * 1024
ENDS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Number of ids of a model (0: unknown), and the ids with which it ends a turn."""

    size: int = 0
    end_ids: tuple[int, ...] = ()

    @classmethod
    def beside(cls, tokenizer: str) -> Self:
        """Read the files in the folder of the tokenizer; missing or damaged ones are ignored."""
        path = Path(tokenizer)
        folder = path if path.is_dir() else path.parent
        config = _read(folder / "config.json")
        text = config.get("text_config")
        sizes = [one.get("vocab_size") for one in (config, text if isinstance(text, dict) else {})]
        ends = [*_ends(_read(folder / "generation_config.json")), *_ends(config)]
        size = next((one for one in sizes if type(one) is int and one > 0), 0)
        return cls(size, tuple(dict.fromkeys(ends))[:ENDS_MAX])


def _ends(config: dict[str, Any]) -> Iterator[int]:
    told = config.get("eos_token_id")
    for token in told if isinstance(told, list) else [told]:
        if type(token) is int and token >= 0:
            yield token


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            return {}
        document = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return document if isinstance(document, dict) else {}
