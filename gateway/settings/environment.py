"""Environment variables: which there are, and reading them.

`GATEWAY_` and the path of the setting, sections separated by `__`; lists as JSON. Secrets can be
given as the name of a file in the same variable with `_FILE` behind it. `DATABASE_URL` and `PORT`
are honoured because platforms set them; ours win over them.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, SecretStr

from gateway.settings.layer import Layer, Mistake
from gateway.settings.wording import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo

PREFIX = "GATEWAY_"
CONFIG_VARIABLE = PREFIX + "CONFIG"
FILE_SUFFIX = "_FILE"
CUSTOMARY = {"DATABASE_URL": ("database", "url"), "PORT": ("server", "port")}


@dataclass(frozen=True, slots=True)
class Variable:
    """One setting as an environment variable."""

    name: str
    path: tuple[str, ...]
    field: FieldInfo

    @property
    def is_secret(self) -> bool:
        """Its value is a secret or holds some: it must not be shown, and has a `_FILE` twin."""
        return _mentions(self.field.annotation, SecretStr)

    @property
    def is_list(self) -> bool:
        """Its value is JSON."""
        return _mentions(self.field.annotation, tuple)


def _mentions(annotation: object, kind: type) -> bool:
    if annotation is kind or getattr(annotation, "__origin__", None) is kind:
        return True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields.values()
        return any(_mentions(field.annotation, kind) for field in fields)
    return any(_mentions(argument, kind) for argument in get_args(annotation))


def variables(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[Variable]:
    """Every setting of a model, section by section, in the order of declaration."""
    for key, field in model.model_fields.items():
        path = (*above, key)
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from variables(annotation, path)
        else:
            yield Variable(PREFIX + "__".join(path).upper(), path, field)


def lookup(name: str, environ: Mapping[str, str]) -> str | None:
    """A variable, or the content of the file that its `_FILE` twin names; empty counts as unset.

    Raises `OSError` or `UnicodeDecodeError` when the file cannot be read.
    """
    if environ.get(name):
        return environ[name]
    file = environ.get(name + FILE_SUFFIX)
    return Path(file).read_text(encoding="utf-8").rstrip("\r\n") if file else None


def inherited(**changes: str) -> dict[str, str]:
    """The environment of a program that this one becomes: ours, with changes."""
    return {**os.environ, **changes}


def read_environment(model: type[BaseModel], environ: Mapping[str, str]) -> Layer:
    """What the environment says about the settings of `model`."""
    layer = Layer()
    known = {variable.name: variable for variable in variables(model)}
    by_path = {variable.path: variable for variable in known.values()}
    for name, path in CUSTOMARY.items():
        _read(layer, name, by_path[path], environ)
    for name, variable in known.items():
        _read(layer, name, variable, environ)
    legitimate = {CONFIG_VARIABLE, *known}
    legitimate.update(name + FILE_SUFFIX for name in known if known[name].is_secret)
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in legitimate:
            hint = did_you_mean(name, legitimate)
            layer.mistakes.append(Mistake(name, f"there is no such setting{hint}"))
    return layer


def _read(layer: Layer, name: str, variable: Variable, environ: Mapping[str, str]) -> None:
    place = name + FILE_SUFFIX if variable.is_secret and not environ.get(name) else name
    try:
        text = lookup(name, environ) if variable.is_secret else environ.get(name)
        value: Any = json.loads(text) if text and variable.is_list else text
    except (OSError, UnicodeDecodeError) as error:
        layer.mistakes.append(Mistake(place, f"cannot read the file: {_reason(error)}"))
    except ValueError as error:
        layer.mistakes.append(Mistake(place, f"expected JSON: {error}"))
    else:
        if text:
            layer.put(variable.path, value, place)


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or "unreadable" if isinstance(error, OSError) else "it is not UTF-8 text"
