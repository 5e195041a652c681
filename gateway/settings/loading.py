"""Arguments > environment > gateway.yaml > defaults, and every mistake with its place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from gateway.errors import ConfigError
from gateway.settings.model import Settings
from gateway.settings.sources import (
    CONFIG_VARIABLE,
    PREFIX,
    Layer,
    Mistake,
    read_document,
    read_environment,
)
from gateway.settings.wording import UNKNOWN, explanation, spelled, unknown, value_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_core import ErrorDetails

DEFAULT_FILE = "gateway.yaml"


def load_settings(
    config: Path | None = None,
    arguments: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Load the settings of this process.

    `config` is the file (default: `GATEWAY_CONFIG`, then ./gateway.yaml if there is one),
    `arguments` nested values that win over all else, `environ` the environment (default: the
    process's). Raises one `ConfigError` that lists every mistake.
    """
    environ = os.environ if environ is None else environ
    layers = [
        Layer(dict(arguments or {})),
        read_environment(Settings, environ),
        _read_file(config, environ),
    ]
    mistakes = [mistake for layer in layers for mistake in layer.mistakes]
    values: dict[str, Any] = {}
    for layer in reversed(layers):
        values = _over(values, layer.values)
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        mistakes += [_located(detail, layers, values) for detail in details]
    else:
        if not mistakes:
            return settings
    raise _as_error(list(dict.fromkeys(mistakes)))


def _over(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    # `upper` wins; sections are merged.
    both = {**lower, **upper}
    for key in lower.keys() & upper.keys():
        if isinstance(lower[key], dict) and isinstance(upper[key], dict):
            both[key] = _over(lower[key], upper[key])
    return both


def _read_file(config: Path | None, environ: Mapping[str, str]) -> Layer:
    named = config or environ.get(CONFIG_VARIABLE)
    if named is None and not Path(DEFAULT_FILE).is_file():
        return Layer()
    return read_document(Path(named or DEFAULT_FILE), environ)


def _located(detail: ErrorDetails, layers: Sequence[Layer], values: Mapping[str, Any]) -> Mistake:
    # At the nearest section around the value. A default may be wrong only beside another value of
    # its section: then that value has a place.
    path, message = detail["loc"], _message(detail, values)
    for length in range(len(path), 0, -1):
        for layer in layers:
            if path[:length] in layer.places:
                return Mistake(layer.places[path[:length]], message)
    said = (
        place for layer in layers for spot, place in layer.places.items() if spot[:1] == path[:1]
    )
    return Mistake(next(said, spelled(path) or "settings"), message)


def _message(detail: ErrorDetails, values: Mapping[str, Any]) -> str:
    path = detail["loc"]
    if detail["type"] == UNKNOWN:
        return unknown(path)
    reason = explanation(detail, value_at(values, path))
    return f"{spelled(path)}: {reason}" if path else reason


def _as_error(mistakes: Sequence[Mistake]) -> ConfigError:
    first, *others = mistakes
    return ConfigError(
        "\n".join([first.message, *map(str, others)]),
        where=first.where,
        remedy=f"`harmony-gateway config env` lists every setting; in {DEFAULT_FILE} "
        f"{PREFIX}SERVER__PORT is `port` under `server`.",
    )
