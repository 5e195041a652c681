"""The formats that exist, and the format of each model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from gateway.errors import ConfigError
from gateway.models.format import FormatOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gateway.models.format import ModelFormat, SchemaLimits

HARMONY: Final = "harmony"
CHAT: Final = "chat"
PASSTHROUGH: Final = "passthrough"

FORMATS: Final = {
    HARMONY: "gateway.models.harmony.format:HarmonyFormat",
    CHAT: "gateway.models.chat.format:ChatFormat",
    PASSTHROUGH: "gateway.models.chat.passthrough.format:PassThroughFormat",
}
"""Module and class of each. A class has `load(limits, options)`, which may read files and raises
`StartupError` for what is damaged or missing. None is imported before a model has it."""
NO_OPTIONS: Final = FormatOptions()


class Formats:
    """The formats of all models: of each that is configured its own, of an adapter that of its base
    model, of any other Harmony.
    """

    def __init__(
        self,
        by_model: Mapping[str, ModelFormat],
        other: ModelFormat,
        parent_of: Callable[[str], str | None] | None = None,
    ) -> None:
        """`parent_of` tells the base model of an adapter."""
        self._by_model = by_model
        self._parent_of = parent_of
        self.default = other
        """Of models that nobody configured, and of what belongs to no model."""

    @classmethod
    def load(
        cls,
        named: Mapping[str, str],
        limits: SchemaLimits,
        options: Mapping[str, FormatOptions] | None = None,
    ) -> Formats:
        """`named`: public id → name; `options` are those of the models that have some. Raises
        `ConfigError` for an unknown name, and what loading raises.
        """
        own = options or {}
        wanted = {model: (name, own.get(model, NO_OPTIONS)) for model, name in named.items()}
        harmony = HARMONY, NO_OPTIONS
        loaded = {key: _load(*key, limits) for key in dict.fromkeys((harmony, *wanted.values()))}
        return cls({model: loaded[key] for model, key in wanted.items()}, loaded[harmony])

    def of(self, model: str) -> ModelFormat:
        """Return the format of a model, by its public id."""
        found = self._by_model.get(model)
        if found is None and self._parent_of is not None and (parent := self._parent_of(model)):
            found = self._by_model.get(parent)
        return found or self.default

    def relearn(self, model: str) -> None:
        self.of(model).relearn()

    def with_parents(self, parent_of: Callable[[str], str | None]) -> Formats:
        return Formats(self._by_model, self.default, parent_of)


def _load(name: str, options: FormatOptions, limits: SchemaLimits) -> ModelFormat:
    if name not in FORMATS:
        raise ConfigError(
            f"there is no format '{name}'",
            where="models",
            remedy=f"Set the model's format to one of: {', '.join(FORMATS)}.",
        )
    module, _, made = FORMATS[name].partition(":")
    return cast("ModelFormat", getattr(import_module(module), made).load(limits, options))
