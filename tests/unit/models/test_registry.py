"""Which model has which format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.errors import ConfigError
from gateway.models.chat.passthrough import PassThroughFormat
from gateway.models.format import Formats, Unrendered
from tests.fakes.byte_format import ByteFormat
from tests.fakes.chat_format import answer, loaded

if TYPE_CHECKING:
    from gateway.models.format import ModelFormat


def test_a_format_that_is_not_registered_is_a_mistake_in_the_configuration() -> None:
    with pytest.raises(ConfigError, match="no format 'chatml'"):
        Formats.load({"m": "chatml"})


def test_a_model_without_a_format_of_its_own_speaks_harmony() -> None:
    own: ModelFormat = ByteFormat()
    formats = Formats.load({})
    assert formats.for_model("any").name == "harmony"
    assert Formats({"m": own}, formats.default).for_model("m") is own


def test_an_adapter_has_the_format_of_its_base_model() -> None:
    formats = Formats.load({})
    own = Formats.load({}).default
    known = Formats({"base": own}, formats.default).with_parents({"ad": "base", "odd": "x"}.get)
    assert known.for_model("ad") is own
    assert known.for_model("base") is own
    for other in ("odd", "other"):
        assert known.for_model(other) is formats.default


def test_what_is_learned_of_the_servers_of_one_model_is_learned_anew() -> None:
    chat, harmony = loaded(), Formats.load({}).default
    chat.template({one: answer(one) for one in chat.questions})
    known = Formats({"chat": chat, "text": PassThroughFormat()}, harmony)
    for other in ("text", "any"):
        known.relearn(other)
        assert chat.template({}).takes_tools
    known.with_parents({"ad": "chat"}.get).relearn("ad")
    with pytest.raises(Unrendered):
        chat.template({})
