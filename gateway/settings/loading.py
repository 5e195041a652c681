"""Arguments > environment > gateway.yaml > defaults, and every mistake with its place.

An environment variable is `GATEWAY_` and the path of the setting, sections separated by `__`; lists
and mappings as JSON. Secrets can be given as the name of a file in the same variable with `_FILE`
behind it. `DATABASE_URL` and `PORT` are honoured because platforms set them; ours win over them.

In gateway.yaml `${NAME}` stands for an environment variable (or the file that NAME_FILE names) and
is a mistake when there is none; `${NAME:-default}` falls back; `$${` is a plain `${`. A key without
a value, or whose references come out empty, counts as not given.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import yaml
from pydantic import BaseModel, SecretStr, TypeAdapter, ValidationError
from typing_extensions import override

from gateway.errors import ConfigError
from gateway.settings.model import Settings
from gateway.settings.sections import PATTERNS, Backend

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

DEFAULT_FILE: Final = "gateway.yaml"
PREFIX = "GATEWAY_"
CONFIG_VARIABLE = PREFIX + "CONFIG"
FILE_SUFFIX = "_FILE"
CUSTOMARY = {"DATABASE_URL": ("database", "url"), "PORT": ("server", "port")}
_NESTING_MAX: Final = 20
_REFERENCE = re.compile(r"\$\$\{|\$\{(?:(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\})?")

KeyPath = tuple[str | int, ...]
"""Keys of sections and indexes of lists."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """Mistake in the settings; `where` is a `file:line` or a variable."""

    where: str
    message: str

    @override
    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


@dataclass(frozen=True, slots=True)
class Layer:
    """Nested values, the place of each, and what could not be read."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, str] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)

    def put(self, path: tuple[str, ...], value: object, place: str) -> None:
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
    def is_json(self) -> bool:
        return any(_mentions(self.field.annotation, kind) for kind in (tuple, dict))


def _mentions(annotation: object, kind: type) -> bool:
    if annotation is kind or getattr(annotation, "__origin__", None) is kind:
        return True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields.values()
        return any(_mentions(one.annotation, kind) for one in fields)
    return any(_mentions(argument, kind) for argument in get_args(annotation))


def variables(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[Variable]:
    """Yield every setting of a model, in the order of declaration."""
    for key, info in model.model_fields.items():
        path = (*above, key)
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from variables(annotation, path)
        else:
            yield Variable(PREFIX + "__".join(path).upper(), path, info)


def _lookup(name: str, environ: Mapping[str, str]) -> str | None:
    """Return a variable, or the content of the file that its `_FILE` twin names.

    An empty variable counts as unset.
    """
    if environ.get(name):
        return environ[name]
    file = environ.get(name + FILE_SUFFIX)
    return Path(file).read_text(encoding="utf-8").rstrip("\r\n") if file else None


def inherited(**changes: str) -> dict[str, str]:
    # For a program that replaces this process.
    return {**os.environ, **changes}


def _read_environment(model: type[BaseModel], environ: Mapping[str, str]) -> Layer:
    layer = Layer()
    by_name = {variable.name: variable for variable in variables(model)}
    by_path = {variable.path: variable for variable in by_name.values()}
    for name, path in CUSTOMARY.items():
        _read(layer, name, by_path[path], environ)
    for name, variable in by_name.items():
        _read(layer, name, variable, environ)
    legitimate = {CONFIG_VARIABLE, *by_name}
    legitimate.update(name + FILE_SUFFIX for name in by_name if by_name[name].is_secret)
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in legitimate:
            hint = _did_you_mean(name, legitimate)
            layer.mistakes.append(Mistake(name, f"there is no such setting{hint}"))
    return layer


def _read(layer: Layer, name: str, variable: Variable, environ: Mapping[str, str]) -> None:
    place = name + FILE_SUFFIX if variable.is_secret and not environ.get(name) else name
    try:
        text = _lookup(name, environ) if variable.is_secret else environ.get(name)
        value: Any = json.loads(text) if text and variable.is_json else text
    except (OSError, UnicodeDecodeError) as error:
        layer.mistakes.append(Mistake(place, f"cannot read the file: {_reason(error)}"))
    except (ValueError, RecursionError) as error:  # the latter of a thousand brackets
        layer.mistakes.append(Mistake(place, f"expected JSON: {error}"))
    else:
        if text:
            layer.put(variable.path, value, place)


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or "unreadable" if isinstance(error, OSError) else "it is not UTF-8 text"


def _read_document(path: Path, environ: Mapping[str, str]) -> Layer:
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
    """Reader of YAML nodes that keeps their lines."""

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
        if len(path) > _NESTING_MAX:
            self.mistake(node, f"nested deeper than {_NESTING_MAX} levels")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            values = (self.value(item, (*path, i)) for i, item in enumerate(node.value))
            return list(values)
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
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
                values[key] = value
        return values

    def _scalar(self, node: yaml.Node) -> Any:
        if not (isinstance(node, yaml.ScalarNode) and "${" in node.value):
            try:
                return self._scalars.construct_object(node, deep=True)
            except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
                # PyYAML raises various errors for a text that does not fit its tag.
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
            value = _lookup(name, self._environ)
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


_WHOLE: Final = "expected a whole number"
_NUMBER: Final = "expected a number"
_TRUTH: Final = "expected true or false"
_LIST: Final = "expected a list, each entry on a line that begins with a dash"
_TEXT: Final = "expected text; put it into quotes"
_TEXTS: Final = {
    "missing": "it is required, but not given",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": _NUMBER,
    "bool_type": _TRUTH,
    "bool_parsing": _TRUTH,
    "tuple_type": _LIST,
    "string_type": _TEXT,
    "path_type": "expected the path of a folder",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected {ge} or more",
    "less_than_equal": "expected {le} or less",
    "too_short": "it must not be empty",
    "string_too_short": "it must not be empty",
    "string_too_long": "expected {max_length} characters or fewer",
    "value_error": "{error}",
    "literal_error": "expected {expected}",
    "invalid_key": "expected the name of a setting",
}
"""By pydantic's type of error, formatted with its context."""
_SECTIONS: Final = ("model_type", "model_attributes_type", "dict_type")
_QUOTED: Final = re.compile(r"'([^']*)'")
_UNKNOWN: Final = "extra_forbidden"


def _explanation(detail: ErrorDetails, value: object) -> str:
    """Explain what is expected, without repeating `value`."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _SECTIONS:
        return _section_expected(detail["loc"])
    text = _TEXTS.get(kind, "expected another value").format_map(context)
    if kind == "string_pattern_mismatch":
        return PATTERNS[context["pattern"]]
    if kind == "literal_error" and isinstance(value, str):
        return text + _did_you_mean(value, _QUOTED.findall(context["expected"]))
    return text


def _unknown(path: Sequence[str | int]) -> str:
    section = _model_at(path[:-1])
    name = str(path[-1])
    hint = _did_you_mean(name, section.model_fields) if section is not None else ""
    if not hint:
        elsewhere = [place for place in _paths(Settings) if place.endswith(f".{name}")]
        hint = _did_you_mean_one_of(elsewhere)
    return f"there is no setting {_spelled(path)}{hint}"


def _did_you_mean(word: str, candidates: Iterable[str]) -> str:
    by_lower = {one.lower(): one for one in candidates}
    close = get_close_matches(word.lower(), by_lower, n=3, cutoff=0.7)
    return _did_you_mean_one_of([by_lower[one] for one in close])


def _did_you_mean_one_of(words: Sequence[str]) -> str:
    return f"; did you mean {' or '.join(words)}?" if words else ""


def _spelled(path: Sequence[str | int]) -> str:
    # Return the path as in `backends[0].url`.
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


def _value_at(values: Mapping[str, Any], path: Sequence[str | int]) -> object:
    value: Any = values
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _section_expected(path: Sequence[str | int]) -> str:
    section = _model_at(path)
    names = list(section.model_fields)[:2] if section is not None else ["NAME"]
    shown = " and ".join(f"`{name}: …`" for name in names)
    return f"expected settings on lines of their own below it, such as {shown}"


def _model_at(path: Sequence[str | int]) -> type[BaseModel] | None:
    # Indexes of lists are skipped; None if no section is there.
    model: type[BaseModel] | None = Settings
    for part in path:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if model is not None else None
        model = _model_in(field.annotation) if field is not None else None
    return model


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    models = (_model_in(argument) for argument in get_args(annotation))
    return next((model for model in models if model is not None), None)


def _paths(model: type[BaseModel], above: str = "") -> Iterator[str]:
    for name, info in model.model_fields.items():
        yield f"{above}{name}"
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _paths(inner, f"{above}{name}.")


def load_settings(
    config: Path | None = None,
    arguments: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Load the settings of this process.

    `arguments` are nested values that win over all else. Raises one `ConfigError` that lists every
    mistake.
    """
    environ = os.environ if environ is None else environ
    layers = [
        Layer(dict(arguments or {})),
        _read_environment(Settings, environ),
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


def sources(config: Path | None = None, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return where settings were set, by path: `file:line`, or a variable."""
    environ = os.environ if environ is None else environ
    layers = (_read_file(config, environ), _read_environment(Settings, environ))
    paths = {variable.path for variable in variables(Settings)}
    return {
        ".".join(map(str, path)): place
        for layer in layers
        for path, place in layer.places.items()
        if path in paths
    }


def variable_names() -> list[str]:
    # Names of the gateway's variables that are set, also of those that no setting has.
    return sorted(name for name in os.environ if name.startswith(PREFIX) or name in CUSTOMARY)


def _over(
    lower: Mapping[str, Any], upper: Mapping[str, Any], above: tuple[str, ...] = ()
) -> dict[str, Any]:
    # Sections are merged; a setting that is a mapping is taken as a whole.
    both = {**lower, **upper}
    for key in lower.keys() & upper.keys():
        if (
            isinstance(lower[key], dict)
            and isinstance(upper[key], dict)
            and _model_at((*above, key))
        ):
            both[key] = _over(lower[key], upper[key], (*above, key))
    return both


def _read_file(config: Path | None, environ: Mapping[str, str]) -> Layer:
    named = config or environ.get(CONFIG_VARIABLE)
    if named is None and not Path(DEFAULT_FILE).is_file():
        return Layer()
    return _read_document(Path(named or DEFAULT_FILE), environ)


def _located(detail: ErrorDetails, layers: Sequence[Layer], values: Mapping[str, Any]) -> Mistake:
    # At the nearest section around the value. A default may be wrong only beside another value of
    # its section: then that value has a place.
    path, message = detail["loc"], _message(detail, values)
    if (place := _place_of(path, layers)) is not None:
        return Mistake(place, message)
    places = (
        place for layer in layers for spot, place in layer.places.items() if spot[:1] == path[:1]
    )
    return Mistake(next(places, _spelled(path) or "settings"), message)


def _place_of(path: KeyPath, layers: Sequence[Layer]) -> str | None:
    for length in range(len(path), 0, -1):
        for layer in layers:
            if path[:length] in layer.places:
                return layer.places[path[:length]]
    return None


def _message(detail: ErrorDetails, values: Mapping[str, Any]) -> str:
    path = detail["loc"]
    if detail["type"] == _UNKNOWN:
        return _unknown(path)
    reason = _explanation(detail, _value_at(values, path))
    return f"{_spelled(path)}: {reason}" if path else reason


def _as_error(mistakes: Sequence[Mistake]) -> ConfigError:
    first, *others = mistakes
    return ConfigError(
        "\n".join([first.message, *map(str, others)]),
        where=first.where,
        remedy=f"`harmony-gateway config env` lists every setting; in {DEFAULT_FILE} "
        f"{PREFIX}SERVER__PORT is `port` under `server`.",
    )


FILE_BYTES_MAX: Final = 1024 * 1024
_BACKENDS: Final = TypeAdapter(tuple[Backend, ...])


def read_backends(path: Path) -> tuple[Backend, ...]:
    """Read a file with the list `backends` of gateway.yaml and nothing else.

    An empty file is a mistake, because one that is being written may look so. An empty list means
    that there are no backends.
    """
    layer = _layer(path)
    if layer.mistakes:
        first = layer.mistakes[0]
        raise _unusable(first.where, first.message)
    listed = layer.values.get("backends")
    if not isinstance(listed, list) or len(layer.values) != 1:
        raise _unusable(str(path), "expected `backends:` with a list below it, and nothing else")
    try:
        entries = _BACKENDS.validate_python(listed)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        spot = ("backends", *detail["loc"])
        place = _place_of(spot, [layer]) or str(path)
        is_unknown = detail["type"] == _UNKNOWN
        what = "there is no such setting" if is_unknown else _explanation(detail, None)
        raise _unusable(place, f"{_spelled(spot)}: {what}") from None
    names = [one.name for one in entries]
    if len(set(names)) < len(names):
        raise _unusable(str(path), "names of backends must differ")
    return entries


def _layer(path: Path) -> Layer:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise _unusable(str(path), f"cannot read it: {error.strerror or error}") from None
    if size > FILE_BYTES_MAX:
        raise _unusable(str(path), f"it has more than {FILE_BYTES_MAX} bytes")
    return _read_document(path, os.environ)


def _unusable(where: str, message: str) -> ConfigError:
    return ConfigError(
        message, where=where, remedy="What was read before counts until it is mended."
    )
