"""How a model writes, as settings name it or its name tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from gateway.errors import ConfigError
from gateway.models.chat.syntax.contract import Syntax
from gateway.models.chat.syntax.presets import CALLS, NONE, REASONING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.models.format import FormatOptions

T = TypeVar("T")


def syntax_of(options: FormatOptions) -> Syntax:
    """The syntax of a model. Raises `ConfigError` for a name that is not known."""
    reasoning = options.reasoning or NONE
    calls = options.calls or NONE
    return Syntax(
        _known(REASONING, "reasoning", reasoning, options), _known(CALLS, "calls", calls, options)
    )


def _known(table: Mapping[str, T], what: str, name: str, options: FormatOptions) -> T:
    if name not in table:
        raise ConfigError(
            f"there is no {what} '{name}', which the model '{options.model}' is given",
            where="models",
            remedy=f"Set its {what} to one of: {', '.join(table)}.",
        )
    return table[name]
