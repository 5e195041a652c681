"""Which model has which format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.errors import ConfigError
from gateway.models.format import SchemaLimits
from gateway.models.registry import Formats
from tests.fakes.byte_format import ByteFormat

if TYPE_CHECKING:
    from gateway.models.format import ModelFormat


def test_a_format_that_is_not_registered_is_a_mistake_in_the_configuration() -> None:
    with pytest.raises(ConfigError, match="no format 'chatml'"):
        Formats.load({"m": "chatml"}, SchemaLimits())


def test_a_model_without_a_format_of_its_own_speaks_harmony() -> None:
    own: ModelFormat = ByteFormat()
    formats = Formats.load({}, SchemaLimits())
    assert formats.of("any").name == "harmony"
    assert Formats({"m": own}, formats.default).of("m") is own


def test_an_adapter_has_the_format_of_its_base_model() -> None:
    formats = Formats.load({}, SchemaLimits())
    own = Formats.load({}, SchemaLimits()).default
    known = Formats({"base": own}, formats.default).with_parents({"ad": "base", "odd": "x"}.get)
    assert known.of("ad") is own
    assert known.of("base") is own
    for other in ("odd", "other"):
        assert known.of(other) is formats.default
