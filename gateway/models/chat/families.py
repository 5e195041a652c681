"""Families of models, from settings or a model's name: how a model writes, how thinking is set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from gateway.errors import ConfigError
from gateway.models.chat.syntax.contract import Syntax
from gateway.models.chat.syntax.presets import CALLS, NONE, REASONING, preset_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.models.format import FormatOptions

T = TypeVar("T")

NO_EFFORT: Final = "none"
"""The effort of requests for an answer without thoughts."""
SWITCHES: Final = ("enable_thinking", "thinking")
"""What chat templates call it. Those that do not know one of them are not disturbed by it."""


@dataclass(frozen=True, slots=True)
class Family:
    """Syntax of a model, and the arguments of its template that turn thinking on and off."""

    syntax: Syntax
    switches: tuple[str, ...] = SWITCHES

    @classmethod
    def of(cls, options: FormatOptions) -> Self:
        """Read the family of a model from its settings, else from its name.

        Raises `ConfigError` for an unknown name.
        """
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
            _known(REASONING, "reasoning", reasoning, options),
            _known(CALLS, "calls", calls, options),
        )
        if preset is None:
            return cls(syntax)
        return cls(syntax, (preset.switch,) if preset.switch else ())

    def switched(self, asked: str | None, effort: str) -> dict[str, Any]:
        """Return the template arguments for the effort `asked` for, which is passed on as `effort`.

        Empty where none was asked for: the template then does as it does by itself.
        """
        if asked is None:
            return {}
        if asked == NO_EFFORT:
            return dict.fromkeys(self.switches, False)
        return {**dict.fromkeys(self.switches, True), "reasoning_effort": effort}


def _known(table: Mapping[str, T], what: str, name: str, options: FormatOptions) -> T:
    if name not in table:
        raise ConfigError(
            f"there is no {what} '{name}', which the model '{options.model}' is given",
            where="models",
            remedy=f"Set its {what} to one of: {', '.join(table)}.",
        )
    return table[name]
