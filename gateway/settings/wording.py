"""Describe what is wrong with a value, in words for whoever wrote it.

pydantic's own texts speak of its types; a person wants to know what to write instead.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, get_args

from pydantic import BaseModel

from gateway.settings.model import Settings
from gateway.settings.sections import PATTERNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pydantic_core import ErrorDetails

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
"""By pydantic's type of error, with what its context has."""
_SECTIONS: Final = ("model_type", "model_attributes_type", "dict_type")
_QUOTED: Final = re.compile(r"'([^']*)'")
UNKNOWN: Final = "extra_forbidden"


def explanation(detail: ErrorDetails, given: object) -> str:
    """Explain what is expected; the value `given` is not repeated."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _SECTIONS:
        return _section_expected(detail["loc"])
    text = _TEXTS.get(kind, "expected another value").format_map(context)
    if kind == "string_pattern_mismatch":
        return PATTERNS[context["pattern"]]
    if kind == "literal_error" and isinstance(given, str):
        return text + did_you_mean(given, _QUOTED.findall(context["expected"]))
    return text


def unknown(path: Sequence[str | int]) -> str:
    """Explain that there is no setting at this path, with similar ones."""
    section = _model_at(path[:-1])
    name = str(path[-1])
    hint = did_you_mean(name, section.model_fields) if section is not None else ""
    if not hint:
        elsewhere = [place for place in _paths(Settings) if place.endswith(f".{name}")]
        hint = did_you_mean_one_of(elsewhere)
    return f"there is no setting {spelled(path)}{hint}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question to append to a message; empty if nothing is similar."""
    by_lower = {one.lower(): one for one in known}
    close = get_close_matches(word.lower(), by_lower, n=3, cutoff=0.7)
    return did_you_mean_one_of([by_lower[one] for one in close])


def did_you_mean_one_of(words: Sequence[str]) -> str:
    return f"; did you mean {' or '.join(words)}?" if words else ""


def spelled(path: Sequence[str | int]) -> str:
    # As in `backends[0].url`.
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


def value_at(values: Mapping[str, Any], path: Sequence[str | int]) -> object:
    """Return the value at this path, or None."""
    found: Any = values
    for part in path:
        try:
            found = found[part]
        except (KeyError, IndexError, TypeError):
            return None
    return found


def _section_expected(path: Sequence[str | int]) -> str:
    section = _model_at(path)
    names = list(section.model_fields)[:2] if section is not None else []
    shown = " and ".join(f"`{name}: …`" for name in names)
    return f"expected settings on lines of their own below it, such as {shown}"


def _model_at(path: Sequence[str | int]) -> type[BaseModel] | None:
    # Indexes of lists are skipped; None if no section is there.
    found: type[BaseModel] | None = Settings
    for part in path:
        if isinstance(part, int):
            continue
        field = found.model_fields.get(part) if found is not None else None
        found = _model_in(field.annotation) if field is not None else None
    return found


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(argument) for argument in get_args(annotation))
    return next((model for model in found if model is not None), None)


def _paths(model: type[BaseModel], above: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{above}{name}"
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _paths(inner, f"{above}{name}.")
