from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import InvalidRequest, ModelNotFound, NoUpstreamAvailable, shown
from gateway.models.format import SEES
from gateway.protocol.parameters import DEFAULT_EFFORT
from gateway.tenancy.policy import DEFAULT_POLICY
from gateway.upstreams.pool import SILENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gateway.models.format import FormatOf, ModelFormat
    from gateway.protocol.parameters import Effort
    from gateway.tenancy.policy import TenantPolicy
    from gateway.upstreams.pool import ModelInfo, Pool

VENDOR_PREFIX = "openai/"
"""Some clients and servers write it before the model's name."""
GENERATES: Final = ("generate",)
_UNABLE: Final = {
    "generate": "The model '{}' does not generate. GET /v1/models tells what each model can do.",
    "embeddings": "The model '{}' makes no embeddings here. GET /v1/models tells which models do.",
    "rerank": "The model '{}' does not rerank here. GET /v1/models tells which models do.",
}

COMPACTION_PERCENT: Final = 80
"""Codex compacts a session at this part of the window. The rest must hold one more tool output, its
answer, and the request for the summary.
"""
TOOL_OUTPUT_PERCENT: Final = 8
TOOL_OUTPUT_TOKENS_MAX: Final = 10_000
"""Bounds of a tool's output as shown to the model: part of the window, and tokens."""

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


@dataclass(frozen=True, slots=True)
class Model:
    """Served model; `context_length` is for prompt and output together."""

    id: str
    created_at: int
    context_length: int
    aliases: tuple[str, ...]
    reasoning_effort: Effort
    format: ModelFormat
    parent: str | None = None
    """Base model of an adapter."""
    tasks: tuple[str, ...] = GENERATES

    def body(self) -> dict[str, Any]:
        others = [task for task in self.tasks if task != "generate"]
        abilities = self.format.abilities if "generate" in self.tasks else ()
        return {
            "id": self.id,
            "object": "model",
            "created": self.created_at,
            "owned_by": "harmony-gateway",
            "shutdown_date": None,
            "context_length": self.context_length,
            "max_output_tokens": self.context_length,
            "aliases": list(self.aliases),
            "parent": self.parent,
            "capabilities": [*abilities, *others],
            "reasoning_effort": self.reasoning_effort,
        }


class Models:
    def __init__(
        self,
        pool: Pool,
        format_of: FormatOf,
        *,
        aliases: Mapping[str, str],
        efforts: Mapping[str, Effort],
        tasks: Mapping[str, tuple[str, ...]],
    ) -> None:
        """Take `aliases` (name to id), and the rest by id."""
        self._tasks = tasks
        self._pool = pool
        self._format_of = format_of
        self._aliases = aliases
        self._efforts = efforts
        self._created_at = int(time.time())
        self._served: tuple[ModelInfo, ...] = ()
        self._by_name: dict[str, Model] = {}

    def list(self, policy: TenantPolicy = DEFAULT_POLICY) -> list[Model]:
        models = [self._model(info) for info in self._pool.models]
        return [model for model in models if policy.may_use((model.id, *model.aliases))]

    def get(
        self, name: str, policy: TenantPolicy = DEFAULT_POLICY, *, task: str | None = None
    ) -> Model:
        """Return a model by name or alias, with or without the `openai/` prefix.

        Raises `InvalidRequest` if it cannot do `task`; `ModelNotFound` if it is unknown or the
        tenant may not use it; `ModelNotServed` if no backend lists it; `NoUpstreamAvailable` before
        any backend has reported its models, or this one's context length.
        """
        served = self._pool.models
        if served != self._served:
            self._served, self._by_name = served, {}
        model = self._by_name.get(name)
        if model is None:
            # Unknown names are refused, so the cache is bounded by what is served.
            model = self._by_name[name] = self._look_up(name, served)
        if not policy.may_use((model.id, *model.aliases)):
            raise ModelNotFound(shown(name))
        if task is not None and task not in model.tasks:
            raise InvalidRequest(_UNABLE[task].format(shown(name)), param="model")
        return model

    def _look_up(self, name: str, served: tuple[ModelInfo, ...]) -> Model:
        infos = {info.id: info for info in served}
        candidates = tuple(self._candidates(name))
        for candidate in candidates:
            if candidate in infos:
                return self._model(infos[candidate])
        for candidate in candidates:
            if self._pool.expects(candidate):
                raise self._pool.absence(candidate, shown=shown(name))
        if not infos:
            raise NoUpstreamAvailable(name, SILENT)
        raise ModelNotFound(shown(name))

    def require_logprobs(self, model: Model) -> None:
        # Raises `InvalidRequest` if no backend of this model returns logprobs,
        # `NoUpstreamAvailable` while one that might has not yet reported its abilities.
        self._pool.require_logprobs(model.id)

    def _candidates(self, name: str) -> Iterable[str]:
        bare = name.removeprefix(VENDOR_PREFIX)
        for spelling in (name, bare, VENDOR_PREFIX + bare):
            yield self._aliases.get(spelling, spelling)

    def _model(self, info: ModelInfo) -> Model:
        aliases = tuple(alias for alias, target in self._aliases.items() if target == info.id)
        parent = info.parent or ""
        return Model(
            id=info.id,
            created_at=self._created_at,
            context_length=info.context_length,
            aliases=aliases,
            reasoning_effort=self._efforts.get(info.id, self._efforts.get(parent, DEFAULT_EFFORT)),
            format=self._format_of(info.id),
            parent=info.parent,
            tasks=self._tasks.get(info.id, self._tasks.get(parent, GENERATES)),
        )


def codex_catalog(models: Models, policy: TenantPolicy = DEFAULT_POLICY) -> dict[str, Any]:
    """Return the catalog of the Codex CLI (0.169); aliases are hidden from its menu.

    Entries have required fields, and those whose default would be wrong here.
    """
    named = ((model, name) for model in models.list(policy) for name in (model.id, *model.aliases))
    return {"models": [_entry(model, name, place) for place, (model, name) in enumerate(named)]}


def _entry(model: Model, name: str, priority: int) -> dict[str, Any]:
    # The first in Codex's list is its default. gpt-oss calls one tool at a time. Lengths are in
    # tokens. Codex uses only the effective part of the window.
    is_alias, length = name != model.id, model.context_length
    tool_output = min(length * TOOL_OUTPUT_PERCENT // 100, TOOL_OUTPUT_TOKENS_MAX)
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
        "default_reasoning_level": model.reasoning_effort,
        "supported_reasoning_levels": [
            {"effort": effort, "description": description}
            for effort, description in _EFFORTS.items()
        ],
        "supports_reasoning_summaries": True,
        "default_reasoning_summary": "auto",
        "support_verbosity": False,
        "default_verbosity": None,
        "context_window": length,
        "max_context_window": length,
        "effective_context_window_percent": COMPACTION_PERCENT,
        "auto_compact_token_limit": length * COMPACTION_PERCENT // 100,
        "truncation_policy": {"mode": "tokens", "limit": tool_output},
        "shell_type": "unified_exec",
        "apply_patch_tool_type": "freeform",
        "supports_parallel_tool_calls": False,
        "web_search_tool_type": "text",
        "supports_search_tool": False,
        "experimental_supported_tools": [],
        "input_modalities": ["text", "image"] if SEES in model.format.abilities else ["text"],
    }
