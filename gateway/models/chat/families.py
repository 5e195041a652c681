"""Families of chat models: their syntaxes and how thinking is set.

Sources: the chat templates of the models' repositories, and the parsers that vLLM's and SGLang's
documentation names for them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from gateway.errors import ConfigError
from gateway.models.chat.call_syntax import THINK, ReasoningMarkers, Syntax
from gateway.models.chat.syntax.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from gateway.models.chat.syntax.glm import GLM
from gateway.models.chat.syntax.hermes import HERMES
from gateway.models.chat.syntax.llama3_json import LLAMA3_JSON
from gateway.models.chat.syntax.mistral import MISTRAL, MISTRAL_V3
from gateway.models.chat.syntax.qwen3_coder import QWEN3_CODER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.models.chat.call_syntax import CallSyntax
    from gateway.models.format import FormatOptions


NONE: Final = "none"
REASONING: Final[Mapping[str, ReasoningMarkers | None]] = {
    NONE: None,
    "think": THINK,
    "mistral": ReasoningMarkers("[THINK]", "[/THINK]", inner="", behind=""),
}
"""By name in settings."""
_SYNTAXES: Final[tuple[CallSyntax, ...]] = (
    *(HERMES, QWEN3_CODER, LLAMA3_JSON, GLM),
    *(MISTRAL, MISTRAL_V3, DEEPSEEK_V3, DEEPSEEK_V31),
)
CALLS: Final[Mapping[str, CallSyntax | None]] = {
    NONE: None,
    **{syntax.name: syntax for syntax in _SYNTAXES},
}
"""By name in settings."""


@dataclass(frozen=True, slots=True)
class Preset:
    """Family with the names of its syntaxes in `REASONING` and `CALLS`.

    `switch` is the argument of its chat template that turns thinking on and off; None for a family
    that always thinks, or never does. `thinks` is its default.
    """

    family: str
    models: re.Pattern[str]
    reasoning: str = NONE
    calls: str = NONE
    switch: str | None = None
    thinks: bool = False

    @property
    def opens_thoughts(self) -> bool:
        # The template puts the opening tag of a thought into the prompt.
        return self.thinks and self.switch is None and REASONING[self.reasoning] is THINK


def _preset(family: str, pattern: str, **fields: Any) -> Preset:
    return Preset(family, re.compile(pattern, re.IGNORECASE), **fields)


PRESETS: Final = (
    _preset("DeepSeek-R1 distilled", r"deepseek-r1-distill", reasoning="think", thinks=True),
    _preset("DeepSeek-V3.1", r"deepseek-(v|chat-v)3\.1", reasoning="think", calls="deepseek_v31",
            switch="thinking"),
    _preset("DeepSeek-R1", r"deepseek-r1", reasoning="think", calls="deepseek_v3", thinks=True),
    _preset("DeepSeek-V3", r"deepseek-(v|chat-v)3(?!\.[2-9])", calls="deepseek_v3"),
    _preset("Qwen3-Coder", r"qwen-?3-?coder", calls="qwen3_coder"),
    _preset("Qwen3.5", r"qwen-?3\.[5-9]", reasoning="think", calls="qwen3_coder",
            switch="enable_thinking", thinks=True),
    _preset("QwQ", r"qwq", reasoning="think", calls="hermes", thinks=True),
    _preset("Qwen3 Thinking", r"qwen-?3(?![\db]).*thinking", reasoning="think", calls="hermes",
            thinks=True),
    _preset("Qwen3 Instruct", r"qwen-?3(?![\db]).*instruct", calls="hermes"),
    _preset("Qwen3", r"qwen-?3(?![\db])", reasoning="think", calls="hermes",
            switch="enable_thinking", thinks=True),
    _preset("Qwen2.5", r"qwen-?2(?![\db])", calls="hermes"),
    _preset("Hermes", r"hermes", calls="hermes"),
    _preset("GLM-4.5", r"glm-?(4\.[5-9]|[5-9])", reasoning="think", calls="glm",
            switch="enable_thinking", thinks=True),
    _preset("Magistral", r"magistral|ministral-3.*reasoning", reasoning="mistral", calls="mistral",
            thinks=True),
    _preset("Mistral before version 11", calls="mistral_v3",
            pattern=r"mistral-(7b|nemo|large(?!-3)|small-(24|250[13]|3\.1))|mixtral|pixtral"
            r"|ministral-\db.*2410|devstral-small-2505"),
    _preset("Mistral", r"mistral|ministral|devstral", calls="mistral"),
    _preset("Llama 3", r"llama-?3", calls="llama3_json"),
)  # fmt: skip
"""The first match counts. A model distilled into a Qwen has that name behind its own, and a number
may be a size (`Qwen-32B`)."""


def preset_for(model: str) -> Preset | None:
    return next((preset for preset in PRESETS if preset.models.search(model)), None)


T = TypeVar("T")
NO_EFFORT: Final = "none"
SWITCHES: Final = ("enable_thinking", "thinking")
"""Templates ignore those that they do not use."""


@dataclass(frozen=True, slots=True)
class Family:
    syntax: Syntax
    switches: tuple[str, ...] = SWITCHES

    @classmethod
    def from_options(cls, options: FormatOptions) -> Self:
        """Read the family from settings, else from the model's name."""
        preset = preset_for(options.model)
        if preset is None and options.reasoning is None and options.calls is None:
            raise ConfigError(
                f"it is not known how the model '{options.model}' writes thoughts and calls",
                where="models",
                remedy=f"Set its reasoning ({', '.join(REASONING)}) and its calls "
                f"({', '.join(CALLS)}): docs/models.md tells which.",
            )
        reasoning = options.reasoning or (preset.reasoning if preset else NONE)
        calls = options.calls or (preset.calls if preset else NONE)
        syntax = Syntax(
            _look_up(REASONING, "reasoning", reasoning, options),
            _look_up(CALLS, "calls", calls, options),
        )
        if preset is None:
            return cls(syntax)
        return cls(syntax, (preset.switch,) if preset.switch else ())

    def switched(self, requested: str | None, effort: str) -> dict[str, Any]:
        if requested is None:
            return {}
        if requested == NO_EFFORT:
            return dict.fromkeys(self.switches, False)
        return {**dict.fromkeys(self.switches, True), "reasoning_effort": effort}


def _look_up(table: Mapping[str, T], what: str, name: str, options: FormatOptions) -> T:
    if name not in table:
        raise ConfigError(
            f"there is no {what} '{name}', which the model '{options.model}' is given",
            where="models",
            remedy=f"Set its {what} to one of: {', '.join(table)}.",
        )
    return table[name]
