"""`HarmonyFormat.check`: an installation that makes other prompts than openai-harmony is found."""

from __future__ import annotations

from array import array
from hashlib import sha256

import pytest

from gateway.errors import StartupError
from gateway.models.harmony import tool_typescript
from gateway.models.harmony.harmony_format import (
    SAMPLE_ITEM,
    SAMPLE_OPTIONS,
    SAMPLE_SHA256,
    HarmonyFormat,
)
from tests.fakes.harmony_oracle import library_prompt
from tests.fakes.harmony_reference import prompt_messages


def test_the_digest_is_that_of_openai_harmonys_prompt() -> None:
    ids = library_prompt(prompt_messages([SAMPLE_ITEM], SAMPLE_OPTIONS))
    assert sha256(array("I", ids)).hexdigest() == SAMPLE_SHA256


def test_prompts_of_this_installation_are_those_of_openai_harmony() -> None:
    HarmonyFormat.load().check()


def test_other_prompts_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tool_typescript._NAMES, "string", "text")
    with pytest.raises(StartupError, match="prompts differ"):
        HarmonyFormat.load().check()
