"""A file with a list of backends, which is read again and again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter, ValidationError

from gateway.errors import ConfigError
from gateway.settings.sections import Backend
from gateway.settings.sources import Layer, read_document
from gateway.settings.wording import UNKNOWN, explanation, spelled

if TYPE_CHECKING:
    from pathlib import Path

FILE_BYTES_MAX: Final = 1024 * 1024
_BACKENDS: Final = TypeAdapter(tuple[Backend, ...])


def read_backends(path: Path) -> tuple[Backend, ...]:
    """Read the list `backends` of a file in the form of gateway.yaml that has nothing else.

    References to the environment are replaced. Raises `ConfigError`, also for an empty file,
    because one that is being written may look so. An empty list means that there are no backends.
    """
    layer = _layer(path)
    if layer.mistakes:
        first = layer.mistakes[0]
        raise _unusable(first.where, first.message)
    listed = layer.values.get("backends")
    if not isinstance(listed, list) or len(layer.values) != 1:
        raise _unusable(str(path), "expected `backends:` with a list below it, and nothing else")
    try:
        found = _BACKENDS.validate_python(listed)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        spot = ("backends", *detail["loc"])
        place = layer.places.get(spot) or layer.places.get(spot[:2]) or str(path)
        what = (
            "there is no such setting" if detail["type"] == UNKNOWN else explanation(detail, None)
        )
        raise _unusable(place, f"{spelled(spot)}: {what}") from None
    names = [one.name for one in found]
    if len(set(names)) < len(names):
        raise _unusable(str(path), "names of backends must differ")
    return found


def _layer(path: Path) -> Layer:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise _unusable(str(path), f"cannot read it: {error.strerror or error}") from None
    if size > FILE_BYTES_MAX:
        raise _unusable(str(path), f"it has more than {FILE_BYTES_MAX} bytes")
    return read_document(path, os.environ)


def _unusable(where: str, message: str) -> ConfigError:
    return ConfigError(
        message, where=where, remedy="What was read before counts until it is mended."
    )
