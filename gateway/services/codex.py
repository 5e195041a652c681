"""The model catalog of the Codex CLI: what it has to know of a model to work well with it.

The shape is that of the entries that come with Codex 0.169. Of their fields those are given without
which an entry is refused, and those whose default would be wrong here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.services.models import Model, Models

COMPACTION_PERCENT: Final = 80
"""Codex sums up a session once it fills so much of the window. What is left must hold the output of
one more tool, the answer to it, and the request for the summary."""
TOOL_OUTPUT_PERCENT: Final = 8
TOOL_OUTPUT_TOKENS_MAX: Final = 10_000
"""Of one tool's output the model is shown so much of the window, at most so many tokens."""

_EFFORTS: Final = {
    "low": "Short thinking, quick answers",
    "medium": "Some thinking, for everyday work",
    "high": "Long thinking, for hard problems",
}
_INSTRUCTIONS: Final = """\
You are Codex, a coding agent in a terminal. You work in the user's folder, with the user's tools.

Working:
- Look before you change: find files with `rg --files` and text with `rg -n`; read what you edit.
- Keep going until the task is done and checked. Do not stop to announce what you would do next.
- If the task has several steps, plan them first, and follow the plan to its end.
- Change only what the task needs, in the style of the code around it. Never undo changes that
  are not yours, and never commit or push unless you are asked to.
- Afterwards run the tests, the build or the program that shows whether it works; mend what fails.

Tools:
- Call only tools that you were given, by their exact names, one at a time; read each result.
- `exec_command` runs a shell command. Give `workdir` instead of `cd`, and do not print whole
  large files: use `sed -n`. If a command goes on running, its session takes `write_stdin`.
- `apply_patch` edits files; its whole input is one patch, without quotes or a shell around it:
*** Begin Patch
*** Update File: src/name.py
@@ def function():
 a line that stays
-a line that goes
+a line that comes
*** End Patch
  `*** Add File: path` takes lines that all begin with `+`; `*** Delete File: path` takes none.
In the end say briefly what you changed and how you checked it, or what keeps you from it.
"""


class CodexCatalog:
    """The models of this gateway as Codex is told of them."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def body(self) -> dict[str, Any]:
        """An entry for each name that requests may use; the aliases are not offered for choice."""
        named = enumerate(self._names())
        return {"models": [_entry(model, name, place) for place, (model, name) in named]}

    def _names(self) -> Iterator[tuple[Model, str]]:
        for model in self._models.list():
            yield model, model.id
            for alias in model.aliases:
                yield model, alias


def _entry(model: Model, name: str, priority: int) -> dict[str, Any]:
    """`priority` is the place in Codex's list; the first is its default."""
    is_alias = name != model.id
    return {
        "slug": name,
        "display_name": name,
        "description": f"Another name of {model.id}" if is_alias else "Served by this gateway",
        "visibility": "hide" if is_alias else "list",
        "priority": priority,
        "supported_in_api": True,
        "availability_nux": None,
        "upgrade": None,
        "base_instructions": _INSTRUCTIONS,
        **_thinking(model),
        **_window(model.context_length),
        **_tools(),
    }


def _thinking(model: Model) -> dict[str, Any]:
    levels = [{"effort": effort, "description": said} for effort, said in _EFFORTS.items()]
    return {
        "default_reasoning_level": model.reasoning_effort,
        "supported_reasoning_levels": levels,
        "supports_reasoning_summaries": True,
        "default_reasoning_summary": "auto",
        "support_verbosity": False,
        "default_verbosity": None,
    }


def _window(context_length: int) -> dict[str, Any]:
    """In tokens. The effective part is what Codex shows as the whole: it uses no more."""
    tool_output = context_length * TOOL_OUTPUT_PERCENT // 100
    return {
        "context_window": context_length,
        "max_context_window": context_length,
        "effective_context_window_percent": COMPACTION_PERCENT,
        "auto_compact_token_limit": context_length * COMPACTION_PERCENT // 100,
        "truncation_policy": {"mode": "tokens", "limit": min(tool_output, TOOL_OUTPUT_TOKENS_MAX)},
    }


def _tools() -> dict[str, Any]:
    """gpt-oss calls one tool at a time and reads text only."""
    return {
        "shell_type": "unified_exec",
        "apply_patch_tool_type": "freeform",
        "supports_parallel_tool_calls": False,
        "web_search_tool_type": "text",
        "supports_search_tool": False,
        "experimental_supported_tools": [],
        "input_modalities": ["text"],
    }
