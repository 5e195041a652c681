"""Which of the models that a backend lists is meant by the name of the configuration. No I/O here.

A server that is started without a name lists what it was started with: `vllm serve
openai/gpt-oss-120b` serves `openai/gpt-oss-120b`, which many configurations call `gpt-oss-120b`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


@dataclass(frozen=True, slots=True)
class Listed:
    """A row of a backend's list of models: context length in tokens, and an adapter's base model.

    Each is None where the backend does not tell it.
    """

    context_length: int | None = None
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """What a public model is at one backend: its name there, and an adapter's `parent`."""

    name: str
    parent: str | None = None
    context_length: int | None = None


def offers(
    wanted: Mapping[str, str], listed: Mapping[str, Listed], known: Collection[str]
) -> dict[str, Served]:
    """What a backend that lists `listed` serves, by public id.

    `wanted` are the configured models, public id → name at the backends; empty: all that is listed,
    under its own name. `known` are the names that any backend lists.
    """
    meant = {model: meaning(name, known) for model, name in wanted.items()}
    names = meant if wanted else {name: name for name in listed}
    return {
        model: Served(name, listed[name].parent, listed[name].context_length)
        for model, name in names.items()
        if name is not None and name in listed
    }


def meaning(name: str, known: Collection[str]) -> str | None:
    """The one of the `known` names that `name` means; None where there is none, or more than one.

    Itself, or else the one with the same last part, if one of the two is nothing but that part:
    `a/m` and `b/m` are the models of two makers.
    """
    if name in known:
        return name
    part = _last_part(name)
    alike = {other for other in known if _last_part(other) == part and part in {name, other}}
    return alike.pop() if len(alike) == 1 else None


def _last_part(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1]
