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
    names = {model: meanings(name, known) for model, name in wanted.items()}
    if not wanted:
        names = {name: [name] for name in listed}
    return {
        model: Served(found[0], listed[found[0]].parent, listed[found[0]].context_length)
        for model, meant in names.items()
        if (found := [name for name in meant if name in listed])
    }


def meanings(name: str, known: Collection[str]) -> list[str]:
    """The `known` names of the model that `name` means, itself first.

    They have the same last part, and all but that part alone are the same: some servers of a model
    list it with its maker and others without. `a/m` and `b/m` are the models of two makers: where
    both are known, `m` is neither of them, and of either only if there is no other to mean.
    """
    part = _last_part(name)
    alike = {other for other in known if is_alike(name, other)}
    makers = {other for other in {name, *alike} if other != part}
    if len(makers) <= 1:
        return sorted(alike, key=lambda other: (other != name, other))
    if name in known:
        return [name]
    without_maker = [other for other in alike if part in {name, other}]
    return without_maker if len(without_maker) == 1 else []


def is_alike(name: str, other: str) -> bool:
    """They differ at most in what stands before the last part."""
    return _last_part(name) == _last_part(other)


def _last_part(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1]
