"""Which family writes how, by the name of a model.

Sources: the chat templates of the models' repositories, and the parsers that vLLM's and SGLang's
documentation names for them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.models.chat.syntax.contract import THINK, Reasoning, Syntax
from gateway.models.chat.syntax.hermes import Hermes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.models.chat.syntax.contract import CallSyntax

NONE: Final = "none"
"""The name of the reasoning, or the calls, of a model that has none."""

REASONING: Final[Mapping[str, Reasoning | None]] = {
    NONE: None,
    "think": THINK,
    "mistral": Reasoning("[THINK]", "[/THINK]", inner="", behind=""),
}
"""How thoughts are written, by the name that settings have for it."""

CALLS: Final[Mapping[str, CallSyntax | None]] = {
    syntax.name if syntax else NONE: syntax for syntax in (None, Hermes())
}
"""How calls are written, by the name that settings have for it."""


@dataclass(frozen=True, slots=True)
class Preset:
    """What is known of a family: the names of its syntaxes in `REASONING` and `CALLS`.

    `switch` is the argument of its chat template that turns thinking on and off; None for a family
    that always thinks, or never does. `thinks` is what it does when nobody asks.
    """

    family: str
    models: re.Pattern[str]
    reasoning: str = NONE
    calls: str = NONE
    switch: str | None = None
    thinks: bool = False

    @property
    def syntax(self) -> Syntax:
        """How it writes."""
        return Syntax(REASONING[self.reasoning], CALLS[self.calls])
