"""A server that has not said which engine it is, or is none that is known here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from gateway.upstreams.engines.engine import Capabilities, Unusable
from gateway.upstreams.engines.vllm import Vllm

if TYPE_CHECKING:
    from gateway.generation import TokenRequest
    from gateway.upstreams.engines.engine import Fields
    from gateway.upstreams.naming import Served


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
    def request_fields(self, request: TokenRequest, served: Served) -> Fields:
        fields: Fields = {"request_id": request.request_id, "include_stop_str_in_output": True}
        return fields if served.parent is None else fields | {"lora_path": served.name}
