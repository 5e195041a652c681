"""What follows from a request but for its texts, its context and its time.

Requests that are alike (`protocol.alike`) have the same of it, which is most of what making a
specification of a short one takes: so it is kept for them. Nothing in it is from a user.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from gateway.checking import Checker
from gateway.protocol.alike import common_of, is_like
from gateway.protocol.callables import declared, named
from gateway.protocol.echo import echo
from gateway.protocol.items import Message
from gateway.protocol.responses import ResponseHead, spelled_echo, with_instructions
from gateway.protocol.rules import rules_of
from gateway.services import terms
from gateway.values import value

if TYPE_CHECKING:
    from typing import Literal
    from uuid import UUID

    from gateway.generation import Sampling
    from gateway.protocol.create import CreateResponse
    from gateway.protocol.rules import OutputRules
    from gateway.protocol.tools import FunctionTool
    from gateway.sealing import Binding
    from gateway.services.models import Model
    from gateway.tenancy import TenantPolicy

_MESSAGES: Final = {Message}
FRAMES_MAX: Final = 512
"""As many as there are kinds of requests, twice: tenants may have policies of their own."""


@value
class Frame:
    """`request` is one of those it is for, and `echo` what its response repeats of it, but for
    instructions; `spelled` is the JSON of that.

    The rest is as in a run's specification and in `RenderOptions`. `sampling` is None where how
    much may be said depends on the prompt alone, `checker` where it is not the same for all.
    """

    request: CreateResponse
    echo: dict[str, Any]
    spelled: bytes
    rules: OutputRules
    tools: tuple[FunctionTool, ...]
    tool_paths: tuple[str, ...]
    effort: Literal["low", "medium", "high"]
    priority: int
    is_sealed: bool
    sampling: Sampling | None = None
    checker: Checker | None = None

    def head(
        self, uuid: UUID, created_at: int, instructions: str | None, binding: Binding | None
    ) -> ResponseHead:
        """The head of a response to such a request that has these instructions."""
        return ResponseHead(
            uuid,
            created_at,
            self.request.background,
            # Nobody changes an echo, so those who gave none can have the same one.
            self.echo if instructions is None else {**self.echo, "instructions": instructions},
            binding,
            spelled=with_instructions(self.spelled, instructions),
        )


class Frames:
    """Frames of requests. Shared by threads."""

    def __init__(self) -> None:
        self._kept = lru_cache(FRAMES_MAX)(_frame_of_kind)

    def kept(self, request: CreateResponse, model: Model, policy: TenantPolicy) -> Frame | None:
        """The frame of requests like this; None for a request that is to be read by itself.

        Such a request is a few messages without ids, without tools and without a schema, and it
        continues nothing.
        """
        if not request.kind or {*map(type, request.input)} != _MESSAGES:
            return None
        frame = self._kept(request.kind, model, policy)
        return frame if is_like(request, frame.request) else None


def frame_of(request: CreateResponse, model: Model, policy: TenantPolicy) -> Frame:
    """A frame that is made for the request alone."""
    tier = terms.service_tier(request, policy)
    repeated = echo(
        request,
        model=model.id,
        default_effort=model.reasoning_effort,
        service_tier=tier,
        summaries=policy.reasoning_summary != "off",
    )
    repeated["instructions"] = None
    tools, bound = request.offered_tools, request.max_output_tokens
    return Frame(
        request=request,
        echo=repeated,
        spelled=spelled_echo(repeated),
        rules=rules_of(repeated),
        tools=declared(tools),
        tool_paths=tuple(f"tools{tool.path}" for tool in named(tools)),
        effort=request.effort_or(model.reasoning_effort),
        priority=terms.PRIORITIES[tier],
        is_sealed=request.wants_encrypted_reasoning,
        sampling=None if bound is None else terms.sampling(request, room=bound),
    )


def _frame_of_kind(kind: bytes, model: Model, policy: TenantPolicy) -> Frame:
    """There is nothing to check for any kind."""
    common = common_of(kind)
    assert common is not None, "a request of this kind was read"
    frame = frame_of(common, model, policy)
    checker = Checker(frame.rules)
    checker.compile()
    return replace(frame, checker=checker)
