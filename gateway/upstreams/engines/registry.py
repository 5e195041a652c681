"""The engines that are known. To add one: a module with its class, and a line here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from typing_extensions import override

from gateway.upstreams.engines.chat_servers import CHAT_SERVERS
from gateway.upstreams.engines.engine import Capabilities, Unusable
from gateway.upstreams.engines.lmdeploy import LmDeploy
from gateway.upstreams.engines.sglang import SGLang
from gateway.upstreams.engines.tensorrt_llm import TensorRtLlm
from gateway.upstreams.engines.vllm import Vllm

if TYPE_CHECKING:
    from gateway.generation import TokenRequest
    from gateway.upstreams.backend import ServedModel
    from gateway.upstreams.engines.engine import Fields, InferenceEngine

ENGINES: Final[tuple[type[InferenceEngine], ...]] = (
    TensorRtLlm,
    LmDeploy,
    Vllm,
    SGLang,
)
"""In the order in which a server is asked whether it is one of them. TensorRT-LLM has the path that
vLLM is known by, too."""
KINDS: Final[tuple[type[InferenceEngine], ...]] = (*ENGINES, *CHAT_SERVERS)
"""Those that take no token ids, too."""


@dataclass(frozen=True, slots=True)
class UnknownEngine(Vllm):
    """Spoken to as vLLM, and asked for nothing that is optional. It may be an SGLang that has not
    said so yet, so it is told of adapters as that one is, and its health is asked as that one's.
    """

    questions: ClassVar[tuple[str, ...]] = ()
    flag: ClassVar[str] = "/ready"
    working_check: ClassVar[str | None] = "/health"

    @override
    def __str__(self) -> str:
        return "unknown engine"

    @override
    def capabilities(self, *, grammars: bool = True, priorities: bool = False) -> Capabilities:
        return Capabilities()

    @property
    @override
    def unusable(self) -> Unusable | None:
        return None

    @override
    def chat_fields(self, request: TokenRequest) -> Fields:
        return {}  # hosted APIs refuse what they do not know

    @override
    def request_fields(self, request: TokenRequest, served: ServedModel) -> Fields:
        fields: Fields = {"request_id": request.request_id, "include_stop_str_in_output": True}
        return fields if served.parent is None else fields | {"lora_path": served.name}
