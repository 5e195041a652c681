"""Which models there are, under which names."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.errors import ModelNotFound, NoUpstreamAvailable, shown
from gateway.protocol.parameters import DEFAULT_EFFORT
from gateway.upstreams.pool import SILENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gateway.protocol.parameters import Effort
    from gateway.upstreams.pool import ModelInfo, Pool

VENDOR_PREFIX = "openai/"
"""Some clients keep it in the model's name (clients.md §1.3), some servers list models with it."""
CAPABILITIES = ("reasoning", "tools", "structured_outputs", "streaming", "background")
"""Of every model here: they are all of one family. It reads and writes text only."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model of this gateway. `context_length` is in tokens, prompt and output together."""

    id: str
    created_at: int
    context_length: int
    aliases: tuple[str, ...]
    reasoning_effort: Effort

    def body(self) -> dict[str, Any]:
        """The model object of the API, with what clients need to size their context.

        An output may be as long as the context leaves room for: there is no other bound.
        """
        return {
            "id": self.id,
            "object": "model",
            "created": self.created_at,
            "owned_by": "harmony-gateway",
            "shutdown_date": None,
            "context_length": self.context_length,
            "max_output_tokens": self.context_length,
            "aliases": list(self.aliases),
            "capabilities": list(CAPABILITIES),
            "reasoning_effort": self.reasoning_effort,
        }


class Models:
    """The models whose backends are known, by name and by alias."""

    def __init__(
        self, pool: Pool, *, aliases: Mapping[str, str], efforts: Mapping[str, Effort]
    ) -> None:
        """`aliases` maps further names to ids, `efforts` ids to their default effort."""
        self._pool = pool
        self._aliases = aliases
        self._efforts = efforts
        self._created_at = int(time.time())
        self._made: dict[tuple[str, int], Model] = {}
        self._served: tuple[ModelInfo, ...] = ()
        self._found: dict[str, Model] = {}

    def list(self) -> list[Model]:
        """Every model, in the order of the configuration."""
        return [self._model(known.id, known.context_length) for known in self._pool.models()]

    def get(self, name: str) -> Model:
        """The model of a name or alias, with or without the `openai/` prefix.

        Raises `ModelNotFound`, `ModelNotServed` where it is configured and no backend lists it, or
        `NoUpstreamAvailable` while nobody can know: no backend has said yet what it serves, or this
        model's have not said how long its context is.
        """
        served = self._pool.models()
        if served != self._served:
            self._served, self._found = served, {}
        found = self._found.get(name)
        if found is None:
            # Bounded by what is served: a name that means nothing is refused.
            found = self._found[name] = self._look_up(name, served)
        return found

    def _look_up(self, name: str, served: tuple[ModelInfo, ...]) -> Model:
        lengths = {known.id: known.context_length for known in served}
        candidates = tuple(self._candidates(name))
        for candidate in candidates:
            if candidate in lengths:
                return self._model(candidate, lengths[candidate])
        for candidate in candidates:
            if self._pool.expects(candidate):
                raise self._pool.absence(candidate, shown=shown(name))
        if not lengths:
            raise NoUpstreamAvailable(name, SILENT)
        raise ModelNotFound(shown(name))

    def require_logprobs(self, model: Model) -> None:
        """Make sure that logprobs of this model can be told.

        Raises `InvalidRequest` if no backend of it tells them, `NoUpstreamAvailable` while one that
        might has not said what it is.
        """
        self._pool.require_logprobs(model.id)

    def _candidates(self, name: str) -> Iterable[str]:
        bare = name.removeprefix(VENDOR_PREFIX)
        for spelling in (name, bare, VENDOR_PREFIX + bare):
            yield self._aliases.get(spelling, spelling)

    def _model(self, model_id: str, context_length: int) -> Model:
        """Made once: there are as many as backends serve."""
        made = self._made.get((model_id, context_length))
        if made is None:
            made = self._new_model(model_id, context_length)
            self._made[model_id, context_length] = made
        return made

    def _new_model(self, model_id: str, context_length: int) -> Model:
        aliases = tuple(alias for alias, target in self._aliases.items() if target == model_id)
        effort = self._efforts.get(model_id, DEFAULT_EFFORT)
        return Model(model_id, self._created_at, context_length, aliases, effort)
