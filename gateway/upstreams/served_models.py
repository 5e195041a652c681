"""Match the names of the configuration to the models that backends list. No I/O here.

A server that is started without a name lists what it was started with: `vllm serve
openai/gpt-oss-120b` serves `openai/gpt-oss-120b`, which many configurations call `gpt-oss-120b`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from typing_extensions import override

from gateway.upstreams.backend import ServedModel

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from gateway.upstreams.backend import Backend, Listed
    from gateway.upstreams.engines import Unusable


def offers(
    wanted: Mapping[str, str],
    listed: Mapping[str, Listed],
    names_listed: Collection[str],
    *,
    adapters_of: Collection[str] = (),
) -> dict[str, ServedModel]:
    """Return what a backend that lists `listed` serves, by public id.

    `wanted` maps public ids to names at the backends; empty: all that is listed.
    """
    names = {model: meanings(name, names_listed) for model, name in wanted.items()}
    if not wanted:
        names = {name: [name] for name in listed}
    served = {
        model: ServedModel(present[0], listed[present[0]].parent, listed[present[0]].context_length)
        for model, meant in names.items()
        if (present := [name for name in meant if name in listed])
    }
    bases = {served[model].name for model in adapters_of if model in served}
    adapters = {
        name: ServedModel(name, row.parent, row.context_length)
        for name, row in listed.items()
        if row.parent in bases and name not in wanted
    }
    return served | adapters


def parents(served: Mapping[str, ServedModel]) -> dict[str, str]:
    """Return the base model of each adapter at one backend, both by public id."""
    bases = {one.name: model for model, one in served.items() if one.parent is None}
    return {model: bases[one.parent] for model, one in served.items() if one.parent in bases}


def meanings(name: str, names_listed: Collection[str]) -> list[str]:
    """Return the listed names of the model that `name` means, itself first.

    They differ at most in the maker before the last part. `a/m` and `b/m` are two models: if both
    are known, `m` stands for one only if no other name can.
    """
    part = _last_part(name)
    alike = {other for other in names_listed if is_alike(name, other)}
    makers = {other for other in {name, *alike} if other != part}
    if len(makers) <= 1:
        return sorted(alike, key=lambda other: (other != name, other))
    if name in names_listed:
        return [name]
    without_maker = [other for other in alike if part in {name, other}]
    return without_maker if len(without_maker) == 1 else []


def is_alike(name: str, other: str) -> bool:
    return _last_part(name) == _last_part(other)


def _last_part(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1]


REMEDY: Final = "Set served_as of this model to its name at the backend."
NAMES_MAX: Final = 8
"""Names of one backend in a message; it may serve hundreds of adapters."""


class DescribedBackend(Protocol):
    @property
    def backend(self) -> Backend: ...

    @property
    def listed(self) -> Collection[str] | None: ...

    @property
    def models(self) -> Mapping[str, int | None]: ...

    @property
    def unusable(self) -> Unusable | None: ...


@dataclass(frozen=True, slots=True)
class Unserved:
    """Configured model that no backend serves; `silent` ones that may have not answered yet."""

    model: str
    served_as: str
    serving: tuple[tuple[str, tuple[str, ...]], ...]
    silent: tuple[str, ...] = ()

    @override
    def __str__(self) -> str:
        parts = [f"{backend} serves {_quoted(names)}" for backend, names in self.serving]
        parts += [f"{backend} has not answered yet" for backend in self.silent]
        alias = "" if self.served_as == self.model else f" (served_as '{self.served_as}')"
        return f"no backend serves the model '{self.model}'{alias}: {'; '.join(parts)}"


def unserved(sources: Iterable[DescribedBackend]) -> list[Unserved]:
    """Return configured models that no backend serves, once one that may has answered."""
    sources = [source for source in sources if source.unusable is None]
    wanted = {model: name for source in sources for model, name in source.backend.models.items()}
    missing = []
    for model, name in wanted.items():
        configured = [source for source in sources if model in source.backend.models]
        described = [source for source in configured if source.listed is not None]
        if described and not any(model in source.models for source in described):
            silent = tuple(one.backend.name for one in configured if one.listed is None)
            missing.append(Unserved(model, name, tuple(map(_serving, described)), silent))
    return missing


def overlooked(source: DescribedBackend) -> str:
    if source.unusable is not None or not source.listed:
        return ""
    wanted = {
        model: name for model, name in source.backend.models.items() if model not in source.models
    }
    for model, name in wanted.items():
        if alike := [one for one in source.listed if is_alike(name, one)]:
            return (
                f"it serves {_quoted(alike)}, which is not used for the model '{model}': other "
                "backends list it under other names"
            )
    if wanted and not source.models:
        return f"it serves {_quoted(source.listed)}, of which nothing is asked"
    return ""


def _serving(source: DescribedBackend) -> tuple[str, tuple[str, ...]]:
    return source.backend.name, tuple(source.listed or ())


def _quoted(names: Collection[str]) -> str:
    if not names:
        return "nothing"
    shown = [f"'{name}'" for name in list(names)[:NAMES_MAX]]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")
