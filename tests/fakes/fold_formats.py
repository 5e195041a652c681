"""Formats as far as a fold needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tests.fakes.harmony_script import harmony

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.constraints.output_rules import OutputRules
    from gateway.generation import Framing, TokenParser
    from gateway.models.format import ModelFormat


@dataclass(frozen=True)
class _Parsed:
    make: Callable[[bool], TokenParser]
    framing: Framing
    messages_of_turn: Callable[..., list[dict[str, Any]]] | None

    def new_parser(self, _rules: OutputRules, *, trace: bool = False) -> TokenParser:
        return self.make(trace)

    def __getattr__(self, name: str) -> Any:
        return getattr(harmony(), name)


def parsed_by(
    make: Callable[[bool], TokenParser],
    framing: Framing,
    messages_of_turn: Callable[..., list[dict[str, Any]]] | None = None,
) -> ModelFormat:
    """Harmony with other parsers (which trace their text or not), and another framing."""
    return cast("ModelFormat", _Parsed(make, framing, messages_of_turn))
