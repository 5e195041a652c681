from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.errors import StartupError
from gateway.models.format import SchemaLimits
from gateway.models.harmony.harmony_format import HarmonyFormat
from gateway.models.harmony.harmony_reference import check_prompt
from tests.fakes.byte_format import ByteFormat

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """openai-harmony is told by a variable where its vocabulary is; that is undone."""
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", "")


@pytest.mark.slow
def test_prompts_of_this_installation_are_those_of_openai_harmony() -> None:
    HarmonyFormat.load(SchemaLimits()).check()


@pytest.mark.slow
def test_other_prompts_than_openai_harmonys_are_reported() -> None:
    with pytest.raises(StartupError, match="prompts differ"):
        check_prompt(ByteFormat())


def test_a_vocabulary_that_openai_harmony_cannot_load_is_reported(tmp_path: Path) -> None:
    (tmp_path / "o200k_base.tiktoken").write_text("damaged")
    with pytest.raises(StartupError, match="cannot load its vocabulary"):
        check_prompt(HarmonyFormat.load(SchemaLimits()), tmp_path)
