"""Write into values.schema.json what the settings are: Helm then refuses a setting that is none.

Texts are left out: they would be a second copy of the settings' help.
"""

from __future__ import annotations

import json
from typing import Any, Final

from gateway.settings import Settings

OWNED: Final = (
    ("data_dir",),
    ("server", "host"),
    ("server", "port"),
    ("admin", "host"),
    ("database", "url"),
)
"""Settings that the chart decides, or takes from a Secret only."""
PREFIX: Final = "settings."
"""Definitions that are made here begin with it; all others are written by hand."""
REFERENCE: Final = {"type": "string", "pattern": r"^\$\{[A-Za-z_][A-Za-z0-9_]*(:-)?\}$"}
"""A secret of a file that a ConfigMap holds: the name of a variable, never its value."""
_TEXTS: Final = frozenset({"title", "description", "default", "format"})


def settings_definitions() -> dict[str, Any]:
    """Return the definitions of gateway.yaml in JSON Schema, draft 7."""
    root = Settings.model_json_schema()
    definitions: dict[str, Any] = root.pop("$defs")
    for *sections, name in OWNED:
        owner = root
        for section in sections:
            owner = definitions[_target(owner["properties"][section])]
        del owner["properties"][name]
    plain = {name: _plain(one) for name, one in {**definitions, "Settings": root}.items()}
    plain["Reference"] = REFERENCE
    return {PREFIX + name: plain[name] for name in sorted(plain)}


def _target(node: dict[str, Any]) -> str:
    reference: str = node["$ref"]
    return reference.rpartition("/")[2]


def _plain(node: Any) -> Any:
    if isinstance(node, list):
        return [_plain(one) for one in node]
    if not isinstance(node, dict):
        return node
    if node.get("writeOnly"):
        return _reference("Reference")
    if "$ref" in node:
        return _reference(_target(node))
    kept = {key: value for key, value in node.items() if key not in _TEXTS}
    # Names of settings are no keywords: one may be called `format`.
    names = kept.pop("properties", None)
    plain = {key: _plain(value) for key, value in kept.items()}
    if names is not None:
        plain["properties"] = {name: _plain(one) for name, one in names.items()}
    return plain


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/definitions/{PREFIX}{name}"}


def with_settings(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the chart's values with the definitions of settings made anew."""
    written = {
        name: one for name, one in schema["definitions"].items() if not name.startswith(PREFIX)
    }
    return {**schema, "definitions": {**written, **settings_definitions()}}


def encoded(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2) + "\n"
