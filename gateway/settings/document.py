"""gateway.yaml: nested values, each with its line, and `${VARIABLE}` references resolved.

`${NAME}` stands for an environment variable (or the file that NAME_FILE names) and is a mistake
when there is none; `${NAME:-default}` has something to fall back on; `$${` is a plain `${`.
A key without a value, or whose references come out empty, counts as not given.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from gateway.settings.environment import FILE_SUFFIX, lookup
from gateway.settings.layer import Layer, Mistake

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path as FilePath

    from gateway.settings.layer import Path

NESTING_MAX = 20
_REFERENCE = re.compile(r"\$\$\{|\$\{(?:(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\})?")


def read_document(path: FilePath, environ: Mapping[str, str]) -> Layer:
    """What the file says. A file that is not YAML is one mistake and no values."""
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
    except yaml.YAMLError as error:
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

    def __init__(self, path: FilePath, environ: Mapping[str, str]) -> None:
        self._path = path
        self._environ = environ
        self._scalars = yaml.SafeLoader("")
        self.places: dict[Path, str] = {}
        self.mistakes: list[Mistake] = []

    def mistake(self, node: yaml.Node, message: str) -> None:
        self.mistakes.append(Mistake(self._place(node), message))

    def value(self, node: yaml.Node, path: Path) -> Any:
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

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
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
            except (yaml.YAMLError, ValueError) as error:
                self.mistake(node, f"not a value: {str(error).splitlines()[0]}")
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
