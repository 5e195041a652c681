"""What is known of a model by its name."""

from __future__ import annotations

import pytest

from gateway.models.chat.families import CALLS, REASONING, preset_for
from tests.fakes.cases import each


@each(
    ("model", "family", "reasoning", "calls"),
    [
        ("Qwen/Qwen3-8B", "Qwen3", "think", "hermes"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen3 Instruct", "none", "hermes"),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "Qwen3 Thinking", "think", "hermes"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "Qwen3-Coder", "none", "qwen3_coder"),
        ("Qwen/Qwen3.5-35B-A3B", "Qwen3.5", "think", "qwen3_coder"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5", "none", "hermes"),
        ("Qwen/QwQ-32B", "QwQ", "think", "hermes"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "Hermes", "none", "hermes"),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama 3", "none", "llama3_json"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "Llama 3", "none", "llama3_json"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "Mistral before version 11", "none", "mistral_v3"),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "Mistral", "none", "mistral"),
        ("mistralai/Magistral-Small-2509", "Magistral", "mistral", "mistral"),
        ("mistralai/Devstral-Small-2507", "Mistral", "none", "mistral"),
        ("deepseek-ai/DeepSeek-V3-0324", "DeepSeek-V3", "none", "deepseek_v3"),
        ("deepseek-ai/DeepSeek-V3.1", "DeepSeek-V3.1", "think", "deepseek_v31"),
        ("deepseek-ai/DeepSeek-R1-0528", "DeepSeek-R1", "think", "deepseek_v3"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "DeepSeek-R1 distilled", "think", "none"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "DeepSeek-R1 distilled", "think", "none"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "DeepSeek-R1 distilled", "think", "none"),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "DeepSeek-R1", "think", "deepseek_v3"),
        ("mistralai/Ministral-3-8B-Reasoning-2512", "Magistral", "mistral", "mistral"),
        ("mistralai/Ministral-3-8B-Instruct-2512", "Mistral", "none", "mistral"),
        ("mistralai/Mistral-Large-3-675B-Instruct-2512", "Mistral", "none", "mistral"),
        ("mistralai/Mistral-Large-Instruct-2411", "Mistral before version 11", "none",
         "mistral_v3"),
        ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", "Mistral before version 11", "none",
         "mistral_v3"),
        ("mistralai/Mistral-Small-24B-Instruct-2501", "Mistral before version 11", "none",
         "mistral_v3"),
        ("mistralai/Devstral-Small-2505", "Mistral before version 11", "none", "mistral_v3"),
        ("mistralai/Pixtral-12B-2409", "Mistral before version 11", "none", "mistral_v3"),
        ("mistralai/Ministral-8B-Instruct-2410", "Mistral before version 11", "none", "mistral_v3"),
        ("mistralai/Mistral-Small-4-119B", "Mistral", "none", "mistral"),
        ("zai-org/GLM-4.5-Air", "GLM-4.5", "think", "glm"),
        ("zai-org/GLM-4.6", "GLM-4.5", "think", "glm"),
    ],
)  # fmt: skip
def test_a_model_is_known_by_its_name(model: str, family: str, reasoning: str, calls: str) -> None:
    preset = preset_for(model)
    assert preset is not None
    assert (preset.family, preset.reasoning, preset.calls) == (family, reasoning, calls)
    assert (REASONING[reasoning] is None) == (reasoning == "none")
    assert (CALLS[calls] is None) == (calls == "none")


@pytest.mark.parametrize(
    "model", ["acme/unknown-1b", "acme/Wise-Qwen-32B", "acme/Wise-Qwen-3B", "acme/Wise-Qwen-20B"]
)
def test_of_a_model_of_another_name_nothing_is_known(model: str) -> None:
    assert preset_for(model) is None
    assert preset_for("deepseek-ai/DeepSeek-V3.2") is None
