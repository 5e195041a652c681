"""Read the settings in the environment and gateway.yaml, and the place of each.

An environment variable is `GATEWAY_` and the path of the setting, sections separated by `__`; lists
as JSON. Secrets can be given as the name of a file in the same variable with `_FILE` behind it.
`DATABASE_URL` and `PORT` are honoured because platforms set them; ours win over them.

In gateway.yaml `${NAME}` stands for an environment variable (or the file that NAME_FILE names) and
is a mistake when there is none; `${NAME:-default}` has something to fall back on; `$${` is a plain
`${`. A key without a value, or whose references come out empty, counts as not given.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import yaml
from pydantic import BaseModel, SecretStr
from typing_extensions import override

from gateway.settings.wording import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo

PREFIX = "GATEWAY_"
CONFIG_VARIABLE = PREFIX + "CONFIG"
FILE_SUFFIX = "_FILE"
CUSTOMARY = {"DATABASE_URL": ("database", "url"), "PORT": ("server", "port")}
NESTING_MAX = 20
_REFERENCE = re.compile(r"\$\$\{|\$\{(?:(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\})?")

KeyPath = tuple[str | int, ...]
"""The way to a value: keys of sections and indexes of lists."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """Mistake in the settings, and the `file:line` or variable where it can be corrected."""

    where: str
    message: str

    @override
    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


@dataclass(frozen=True, slots=True)
class Layer:
    """Nested values, the place of each, and what could not even be read."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, str] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)

    def put(self, path: tuple[str, ...], value: object, place: str) -> None:
        """Set a value, making the sections on its path."""
        section = self.values
        for key in path[:-1]:
            section = section.setdefault(key, {})
        section[path[-1]] = value
        self.places[path] = place


@dataclass(frozen=True, slots=True)
class Variable:
    """Setting as an environment variable."""

    name: str
    path: tuple[str, ...]
    field: FieldInfo

    @property
    def is_secret(self) -> bool:
        # A secret must not be shown, and has a `_FILE` twin.
        return _mentions(self.field.annotation, SecretStr)

    @property
    def is_list(self) -> bool:
        # Lists are written as JSON.
        return _mentions(self.field.annotation, tuple)


def _mentions(annotation: object, kind: type) -> bool:
    if annotation is kind or getattr(annotation, "__origin__", None) is kind:
        return True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields.values()
        return any(_mentions(one.annotation, kind) for one in fields)
    return any(_mentions(argument, kind) for argument in get_args(annotation))


def variables(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[Variable]:
    """Yield every setting of a model, section by section, in the order of declaration."""
    for key, info in model.model_fields.items():
        path = (*above, key)
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from variables(annotation, path)
        else:
            yield Variable(PREFIX + "__".join(path).upper(), path, info)


def lookup(name: str, environ: Mapping[str, str]) -> str | None:
    """Return a variable, or the content of the file that its `_FILE` twin names.

    An empty variable counts as unset. Raises `OSError` or `UnicodeDecodeError` when the file cannot
    be read.
    """
    if environ.get(name):
        return environ[name]
    file = environ.get(name + FILE_SUFFIX)
    return Path(file).read_text(encoding="utf-8").rstrip("\r\n") if file else None


def inherited(**changes: str) -> dict[str, str]:
    # For a program that replaces this process.
    return {**os.environ, **changes}


def read_environment(model: type[BaseModel], environ: Mapping[str, str]) -> Layer:
    """Read the settings of `model` from the environment."""
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


def read_document(path: Path, environ: Mapping[str, str]) -> Layer:
    """Read the settings from a file. A file that is not YAML is one mistake and no values."""
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        return _unreadable(str(path), f"cannot read it: {error.strerror or error}")
    except UnicodeDecodeError:
        return _unreadable(str(path), "it is not UTF-8 text")
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        return _unreadable(f"{path}:{line}", f"not YAML: {error.problem or error.context}")
    except (yaml.YAMLError, RecursionError) as error:  # the latter of a thousand brackets
        return _unreadable(str(path), f"not YAML: {str(error).splitlines()[0]}")
    if root is None:
        return Layer()
    reader = _Reader(path, environ)
    values = reader.value(root, ())
    if values is not None and not isinstance(values, dict):
        reader.mistake(root, "expected settings such as `server:` at the top")
        values = None
    return Layer(values or {}, reader.places, reader.mistakes)


def _unreadable(where: str, message: str) -> Layer:
    return Layer(mistakes=[Mistake(where, message)])


class _Reader:
    """Turns YAML nodes into values, keeping their lines."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        self._path = path
        self._environ = environ
        self._scalars = yaml.SafeLoader("")
        self.places: dict[KeyPath, str] = {}
        self.mistakes: list[Mistake] = []

    def mistake(self, node: yaml.Node, message: str) -> None:
        self.mistakes.append(Mistake(self._place(node), message))

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self.places.setdefault(path, self._place(node))
        if len(path) > NESTING_MAX:
            self.mistake(node, f"nested deeper than {NESTING_MAX} levels")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            values = (self.value(item, (*path, i)) for i, item in enumerate(node.value))
            return list(values)
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        seen: set[str] = set()
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else "?"
            if key in seen:
                self.mistake(key_node, f"{key} is given twice")
                continue
            seen.add(key)
            self.places[*path, key] = self._place(key_node)
            value = self.value(value_node, (*path, key))
            if value is not None:
                found[key] = value
        return found

    def _scalar(self, node: yaml.Node) -> Any:
        if not (isinstance(node, yaml.ScalarNode) and "${" in node.value):
            try:
                return self._scalars.construct_object(node, deep=True)
            except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
                # Of a tag that its text does not fit, PyYAML raises whatever happens to go wrong.
                self.mistake(node, f"not a value: {(str(error) or node.tag).splitlines()[0]}")
                return None
        return _REFERENCE.sub(lambda match: self._resolved(match, node), node.value) or None

    def _resolved(self, match: re.Match[str], node: yaml.Node) -> str:
        name = match["name"]
        if match[0] == "$${":
            return "${"
        if name is None:
            self.mistake(node, "expected ${NAME} or ${NAME:-default}; a plain ${ is written $${")
            return ""
        try:
            value = lookup(name, self._environ)
        except (OSError, UnicodeDecodeError):
            self.mistake(node, f"cannot read the file that {name}{FILE_SUFFIX} names")
            return ""
        if value is None and match["default"] is None:
            if name not in self._environ:
                self.mistake(node, f"the variable {name} is not set; ${{{name}:-}} allows that")
            return ""
        return value or match["default"] or ""

    def _place(self, node: yaml.Node) -> str:
        return f"{self._path}:{node.start_mark.line + 1}"
