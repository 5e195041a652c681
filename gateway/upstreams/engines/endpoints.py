"""The endpoints that are asked to generate: with token ids, or with messages. No I/O here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """`path` is asked, with the ids of the prompt under `prompt_key`; `events` tells who reads the
    answer.

    `repeats`: each event may have all ids from the first one on.
    """

    path: str
    prompt_key: str
    events: Literal["completions", "generate", "chat"]
    repeats: bool = False


COMPLETIONS: Final = TokenEndpoint("/v1/completions", "prompt", "completions")
"""OpenAI's, with token ids: vLLM since 0.10.2, SGLang since 0.5.17 behind its Python frontend."""
GENERATE: Final = TokenEndpoint("/generate", "input_ids", "generate", repeats=True)
"""SGLang's own, in all of its releases and frontends, and LMDeploy's."""
CHAT: Final = TokenEndpoint("/v1/chat/completions", "messages", "chat")
"""OpenAI's, with a conversation and text: what every server has."""
