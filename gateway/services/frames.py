"""What follows from a request but for its texts, its context and its time.

Requests that are alike (`protocol.alike`) have the same of it, which is most of what making a
specification of a short one takes: so it is kept for them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.keeping import Kept
from gateway.protocol.alike import KINDS_BYTES_MAX, OWN, is_like
from gateway.protocol.callables import declared, named
from gateway.protocol.echo import echo
from gateway.protocol.responses import (
    ECHO_FIELDS,
    ResponseHead,
    echo_template,
    spelled_echo,
)
from gateway.protocol.rules import rules_of
from gateway.services import terms

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal
    from uuid import UUID

    from gateway.constraints.rules import OutputRules
    from gateway.constraints.validation import Checker
    from gateway.generation import Sampling
    from gateway.protocol.create import CreateResponse, Kind
    from gateway.protocol.tools import FunctionTool
    from gateway.sealing import Binding
    from gateway.services.models import Model
    from gateway.tenancy import TenantPolicy

GRAMMAR_WEIGHT: Final = 50
"""A grammar, compiled, takes so many times as much memory as all else that is as long."""
GRAMMAR_BYTES_MIN: Final = 80 << 10
"""What it takes of memory however short it is, in the same measure: a class of Unicode's letters
takes most of a MiB.
"""

_OWN: Final = tuple(name for name in ECHO_FIELDS if name in OWN)
_own = itemgetter(*_OWN)
_own_of_most: Final = _own({name: {} if name == "metadata" else None for name in _OWN})


@dataclass(frozen=True, slots=True)
class Frame:
    """`request` is one of those it is for, and `echo` what its response repeats of it, but for
    what each has for itself (`protocol.alike.OWN`). `spelled` is the JSON of that, `template` with
    a place for each of these; both are empty in the frame of one request alone. `json_bytes` is
    about how much of the JSON of each request it stands for.

    The rest is as in a run's specification and in `RenderOptions`. `sampling` is None where how
    much may be said depends on the prompt alone, `checker` where it is not the same for all.
    """

    request: CreateResponse
    echo: dict[str, Any]
    rules: OutputRules
    tools: tuple[FunctionTool, ...]
    tool_paths: tuple[str, ...]
    effort: Literal["low", "medium", "high"]
    priority: int
    is_sealed: bool
    sampling: Sampling | None = None
    checker: Checker | None = None
    spelled: bytes = b""
    template: bytes = b""
    json_bytes: int = 0

    @property
    def is_compiled(self) -> bool:
        """There is nothing left that output is checked against and that must be compiled."""
        return self.checker is not None

    def head(
        self, uuid: UUID, created_at: int, request: CreateResponse, binding: Binding | None
    ) -> ResponseHead:
        """The head of a response to such a request."""
        own = _own(request.__dict__)
        if own == _own_of_most:
            # Nobody changes an echo, so those who have nothing for themselves share one.
            repeated, spelled = self.echo, self.spelled
        else:
            repeated = {**self.echo, **dict(zip(_OWN, own, strict=True))}
            spelled = self.template and self.template % tuple(map(orjson.dumps, own))
        return ResponseHead(
            uuid,
            created_at,
            request.background,
            repeated,
            binding,
            spelled=spelled or spelled_echo(repeated),
        )


class Frames:
    """Frames of requests. Shared by threads."""

    def __init__(self, *, bytes_max: int = KINDS_BYTES_MAX) -> None:
        """`bytes_max` bounds the weights of all frames together that are kept."""
        self._kept: Kept[tuple[Kind, Model, TenantPolicy], Frame] = Kept(size_max=bytes_max)

    def kept(self, request: CreateResponse, model: Model, policy: TenantPolicy) -> Frame | None:
        """The frame of requests like this, if there is one."""
        if request.kind is None:
            return None
        frame = self._kept.get((request.kind, model, policy))
        return frame if frame is not None and is_like(request, frame.request) else None

    def made(
        self,
        request: CreateResponse,
        model: Model,
        policy: TenantPolicy,
        check: Callable[[OutputRules], Checker],
    ) -> Frame:
        """A frame for the request, which is kept for those like it.

        `check` makes the checker of these rules. Raises what that does.
        """
        frame = frame_of(request, model, policy)
        checker = check(frame.rules)
        kind = request.kind
        if kind is None or not is_like(request, kind.common):
            return replace(frame, checker=checker)
        frame = replace(
            frame,
            request=kind.common,
            # What it takes of memory cannot be told from the length of the kind.
            checker=None if checker.has_patterns else checker,
            spelled=spelled_echo(frame.echo),
            template=echo_template(frame.echo, _OWN),
            json_bytes=kind.json_bytes,
        )
        self._kept.put((kind, model, policy), frame, size=_weight_bytes(kind, frame))
        return frame if frame.checker is not None else replace(frame, checker=checker)


def _weight_bytes(kind: Kind, frame: Frame) -> int:
    """As it counts for `Frames`. Each tool has its grammar compiled for itself."""
    tools = frame.rules.tools.values()
    every = [tool.grammar.definition for tool in tools if tool.grammar is not None]
    grammars = GRAMMAR_BYTES_MIN * len(every) + GRAMMAR_WEIGHT * sum(map(len, every))
    return kind.weight_bytes + grammars


def frame_of(request: CreateResponse, model: Model, policy: TenantPolicy) -> Frame:
    """A frame that is made for the request alone, without a checker."""
    tier = terms.service_tier(request, policy)
    repeated = echo(
        request,
        model=model.id,
        default_effort=model.reasoning_effort,
        service_tier=tier,
        summaries=policy.reasoning_summary != "off",
    )
    tools, bound = request.offered_tools, request.max_output_tokens
    return Frame(
        request=request,
        echo=repeated | dict(zip(_OWN, _own_of_most, strict=True)),
        rules=rules_of(repeated),
        tools=declared(tools),
        tool_paths=tuple(f"tools{tool.path}" for tool in named(tools)),
        effort=request.effort_or(model.reasoning_effort),
        priority=terms.PRIORITIES[tier],
        is_sealed=request.wants_encrypted_reasoning,
        sampling=None if bound is None else terms.sampling(request, room=bound),
    )
