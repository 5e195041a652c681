"""The tools that gpt-oss was trained with: how the system message tells of them, how it calls them.

The texts are those of openai-harmony 0.0.8 (`data/builtin_tools.json`, made and compared by
`reference.builtin_sections`), because each changed word moves away from what the model knows.
Python is told of in words alone: it takes code, and has no signature.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

import orjson

from gateway.generation import BUILTIN_PREFIX, PYTHON_TOOL

BUILTIN_CHANNEL: Final = "analysis"
"""The channel that calls of these tools, and their results, were trained on."""
SECTIONS_FILE: Final = "builtin_tools.json"
PYTHON_HEADING: Final = "## python\n\n"


def is_builtin(name: str) -> bool:
    return name.startswith(BUILTIN_PREFIX)


def is_code(name: str) -> bool:
    return name == PYTHON_TOOL


def sections(*, browser: bool, python: bool, python_description: str | None) -> list[str]:
    """Return the paragraphs of the section "Tools" of a system message.

    `python_description` replaces the text that the model was trained with.
    """
    trained = _sections()
    told = [trained["browser"]] if browser else []
    if python:
        replaced = python_description is not None
        told.append(f"{PYTHON_HEADING}{python_description}" if replaced else trained["python"])
    return told


@cache
def _sections() -> dict[str, str]:
    data = files("gateway.models.harmony") / "data" / SECTIONS_FILE
    texts: dict[str, str] = orjson.loads(data.read_bytes())
    return texts
