"""The engines that are known. To add one: a module with its class, and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.upstreams.engines.sglang import SGLang
from gateway.upstreams.engines.vllm import Vllm

if TYPE_CHECKING:
    from gateway.upstreams.engines.engine import InferenceEngine

ENGINES: Final[tuple[type[InferenceEngine], ...]] = (
    Vllm,
    SGLang,
)
"""In the order in which a server is asked whether it is one of them."""
