"""The table of variables and the annotated example file."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from gateway.settings.loading import CONFIG_VARIABLE, CUSTOMARY, FILE_SUFFIX, variables
from gateway.settings.model import Settings
from gateway.settings.sections import Backend, Discovery, Model

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo

_LINE_WIDTH = 98
_SENTENCE_END = re.compile(r"(?<=\.) (?=[A-Z])")
_NO_STATIC_DEFAULT = {"data_dir": "~/.local/share/harmony-gateway"}
_ITEMS: Mapping[str, tuple[str, type[BaseModel], dict[str, str]]] = {
    "models": ("", Model, {"id": "gpt-oss-120b", "served_as": "openai/gpt-oss-120b"}),
    "backends": ("", Backend, {"name": "gpu-1", "url": "http://gpu-1:8000"}),
    "discovery": ("# ", Discovery, {"name": "more", "kind": "file", "path": "backends.yaml"}),
}
"""Examples, of which those that a gateway works without are commented out."""
_HEADER = """\
# Harmony Gateway. Every setting with its default; what is commented out may stay so.
# `harmony-gateway config env` says of each when to change it.
# Copy to gateway.yaml, or name the file with --config or GATEWAY_CONFIG.
# ${NAME} and ${NAME:-default} stand for environment variables; `$${` is a plain `${`.
# An environment variable wins over this file: GATEWAY_SERVER__PORT over `port` under `server`.
# Written by `harmony-gateway config example`; checked by `harmony-gateway config check`.
"""


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    default: str
    description: str


def rows() -> list[Row]:
    table = [Row(CONFIG_VARIABLE, "gateway.yaml", "Path of the configuration file.")]
    customary = {path: name for name, path in CUSTOMARY.items()}
    for variable in variables(Settings):
        also = []
        if variable.is_json:
            also.append("As JSON.")
        if variable.is_secret:
            also.append(f"Or {variable.name}{FILE_SUFFIX}: a file that holds it.")
        if variable.path in customary:
            also.append(f"{customary[variable.path]} is honoured too.")
        default = _default(variable.path[-1], variable.field)
        description = " ".join([variable.field.description or "", *also])
        table.append(Row(variable.name, default, description))
    return table


def example() -> str:
    # The text of gateway.example.yaml.
    return "\n".join([_HEADER, *_section(Settings, indent=0)])


def _section(model: type[BaseModel], indent: int) -> Iterator[str]:
    for key, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            about = inspect.cleandoc(annotation.__doc__ or "").partition("\n\n")[0]
            yield f"{' ' * indent}{key}:  # {about}"
            yield from _section(annotation, indent + 2)
        else:
            yield from _comment(_summary(field), indent)
            if key in _ITEMS and not indent:
                mark, item, values = _ITEMS[key]
                yield from (f"{mark}{line}" for line in (f"{key}:", *_item(item, values)))
            else:
                yield f"{' ' * indent}# {key}: {_default(key, field)}".rstrip()
        if not indent:
            yield ""


def _item(model: type[BaseModel], values: Mapping[str, str]) -> Iterator[str]:
    # The first line of a list entry begins with a dash. A key without a value has its summary on
    # its own line, where that fits.
    first = True
    for key, field in model.model_fields.items():
        lead = "  - " if first else "    "
        if key in values:
            yield from _comment(_summary(field), 2 if first else 4)
            yield f"{lead}{key}: {values[key]}"
        else:
            line = f"{lead}# {key}: {_default(key, field)}".rstrip()
            both = f"{line}  # {_summary(field)}"
            fits = len(both) <= _LINE_WIDTH
            yield from () if fits else _comment(_summary(field), 2 if first else 4)
            yield both if fits else line
        first = False


def _summary(field: FieldInfo) -> str:
    # The first sentence says what the setting is, the others when to change it.
    return _SENTENCE_END.split(field.description or "", maxsplit=1)[0]


def _comment(text: str, indent: int) -> list[str]:
    prefix = " " * indent + "# "
    return textwrap.wrap(text, _LINE_WIDTH, initial_indent=prefix, subsequent_indent=prefix)


def _default(key: str, field: FieldInfo) -> str:
    # In YAML, which for these values is also how the variable is written.
    if key in _NO_STATIC_DEFAULT:
        return _NO_STATIC_DEFAULT[key]
    if field.default is None or field.default is PydanticUndefined:
        return ""
    if isinstance(field.default, str | Path):
        return str(field.default)
    return json.dumps(field.default)
