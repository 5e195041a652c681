"""Bounds that are constants of the product, changed for a gateway in this process."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import field, make_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def bounds(place: str, **defaults: Any) -> Iterator[None]:
    """Let `gateway.wiring.MODULE.CLASS`, which has a gateway's bounds, have other defaults."""
    module, _, name = place.rpartition(".")
    kind: type[Any] = getattr(import_module(f"gateway.wiring.{module}"), name)
    changed = [(one, type(value), field(default=value)) for one, value in defaults.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            f"gateway.wiring.{place}", make_dataclass(name, changed, bases=(kind,), frozen=True)
        )
        yield
