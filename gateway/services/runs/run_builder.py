"""Turn a create command into its run spec, with a summary where one is due.

`RunBuilder` looks up what the request continues, and decides in which thread the rest is done
(`spec_builder`).
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway import ids
from gateway.errors import PermissionDenied
from gateway.models.format import SEES
from gateway.protocol.brought_tools import BRINGING, brought_before
from gateway.protocol.items import Message
from gateway.protocol.responses.create_request import check_choice
from gateway.protocol.responses.request_checks import check_images
from gateway.services.runs.compaction import CompactedContext, SummaryPlan, is_triggered
from gateway.services.runs.history_source import History
from gateway.services.runs.spec_builder import CreateCommand, RunInput, SpecBuilder
from gateway.services.runs.tool_grants import (
    NOTHING_GRANTED,
)
from gateway.store.packing import PackedItems, has_kinds, items_of_kinds

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Mapping,
    )

    from gateway.engine.run_spec import RunSpec
    from gateway.protocol.brought_tools import BroughtTools
    from gateway.protocol.context_item import ContextItem, ConversationPlace
    from gateway.protocol.responses.create_request import CreateResponse
    from gateway.services.executor import PromptExecutor
    from gateway.services.models import Models
    from gateway.services.runs.compaction import Compactor, MadeSummary
    from gateway.services.runs.history_source import HistorySource
    from gateway.services.runs.tool_grants import ToolGrants
    from gateway.tenancy import Principal

    Echo = dict[str, Any]
    """Fields of a request that its response repeats."""


class DueSummary(NamedTuple):
    """A run whose context is to be made short before it starts, and the plan of the summary."""

    given: RunInput
    plan: SummaryPlan

    @property
    def conversation(self) -> ConversationPlace | None:
        return self.given.history.conversation


class RunBuilder:
    """Turns create commands into run specs: looks up what they continue, and has the rest done in a
    thread where it is long.
    """

    def __init__(
        self,
        *,
        history_source: HistorySource,
        models: Models,
        specs: SpecBuilder,
        compactor: Compactor,
        tool_grants: ToolGrants,
        executor: PromptExecutor,
    ) -> None:
        self._tool_grants = tool_grants
        self._history_source = history_source
        self._models = models
        self._specs = specs
        self._compactor = compactor
        self._executor = executor

    async def build(self, command: CreateCommand) -> RunSpec | DueSummary:
        """Return the run spec of a new response, or the summary that has to be made before.

        Raises `StoreUnavailable`, and `RequestError` for what the caller has to fix: unknown model,
        unavailable logprobs, broken chain, unpaired calls, an invalid schema or grammar, reasoning
        sealed elsewhere, a prompt that is too long.
        """
        given = await self._look_up(command)
        request = command.request
        is_compacted = request.context_management or (
            not given.is_opening and is_triggered(request)
        )
        work = self._plan if is_compacted and command.generate else self._specs.spec
        planned: RunSpec | SummaryPlan = await self._executor.run(
            work, given, size_bytes=self._specs.work_bytes(given)
        )
        return DueSummary(given, planned) if isinstance(planned, SummaryPlan) else planned

    @asynccontextmanager
    async def summarised(self, due: DueSummary) -> AsyncIterator[RunSpec]:
        """Make the summary and yield the spec of the run that begins with it.

        If the block raises there is no run, and the summary is booked by itself. Raises what
        `build` raises, `UpstreamError` and `SummaryFailed`.
        """
        made = await self._compactor.make(due.plan.spec)
        given = replace(due.given, compacted=made.compacted)
        try:
            yield await self._executor.run(
                self._specs.spec, given, size_bytes=self._specs.work_bytes(given)
            )
        except BaseException:
            self._compactor.book(made)
            raise

    async def compact(
        self,
        principal: Principal,
        request: CreateResponse,
        *,
        body_bytes: int,
        admit: Callable[[RunSpec], Awaitable[RunSpec]],
    ) -> CompactedContext:
        """Summarise what the request continues and contains.

        `admit` gets the run that makes the summary before a token is spent, and returns it with its
        charge. The caller books the result (`book`). Raises what `summarised` and `admit` raise.
        """
        command = CreateCommand(principal, request, None, body_bytes, 0.0)
        given = await self._look_up(command, with_json=True)
        plan = await self._executor.run(
            self._plan_summary, given, size_bytes=self._specs.work_bytes(given)
        )
        return CompactedContext(plan, await self._compactor.make(await admit(plan.spec)))

    async def use_approvals(self, spec: RunSpec) -> None:
        # To be called right before the run begins. Raises `InvalidRequest` for an approval that
        # does not count, and `StoreUnavailable`.
        await self._tool_grants.use_approvals(spec)

    def book(self, made: MadeSummary) -> None:
        # The caller of the summary pays for it.
        self._compactor.book(made)

    async def count(self, principal: Principal, request: CreateResponse, *, body_bytes: int) -> int:
        """Return the number of tokens of the request's prompt, also if it is too long to run.

        Raises `RequestError` and `StoreUnavailable` as `build` does.
        """
        command = CreateCommand(principal, request, None, body_bytes, 0.0)
        given = await self._look_up(command)
        return await self._executor.run(
            self._specs.count, given, size_bytes=self._specs.work_bytes(given)
        )

    async def _look_up(self, command: CreateCommand, *, with_json: bool = False) -> RunInput:
        # `with_json`: the items of the history are shown, not only continued.
        principal, request = command.principal, command.request
        model = self._models.get(request.model, principal.policy, task="generate")
        if request.wants_logprobs:
            self._models.require_logprobs(model)
        if request.wants_messages:
            _require_messages(principal)
        if request.rejects_images and SEES not in model.abilities:
            check_images(request.input)
        created_at, is_opening = int(time.time()), opens(request)
        stored: Mapping[str, ContextItem] = {}
        if is_opening:
            history = History(None, (), created_at)
        else:
            # Whoever stores what continues it stores the items of a conversation, too.
            is_stored_later = command.is_remembered and request.conversation is not None
            history = await self._history_source.of(
                principal,
                request,
                created_at=created_at,
                local=command.local,
                with_json=with_json or is_stored_later or not self._specs.knows_stored_ids(model),
            )
            stored = await self._history_source.named_items(principal, request)
        uuid = ids.new_uuid()
        if not is_opening:
            command = await self._with_tools_before(
                RunInput(command, model, history, stored, uuid, created_at)
            )
            request = command.request
        granted = await self._tool_grants.decide(principal, request, history, stored, uuid)
        if not command.generate:
            granted = granted.without_approvals()
        return RunInput(
            command, model, history, stored, uuid, created_at, is_opening, granted=granted
        )

    async def _with_tools_before(self, given: RunInput) -> CreateCommand:
        command, history = given.command, given.history.items
        request = command.request
        if items_of_kinds(tuple(given.stored.values()), BRINGING) or has_kinds(history, BRINGING):
            size = history.json_bytes if isinstance(history, PackedItems) else 0
            before = await self._executor.run(_tools_before, given, size_bytes=size)
            request = request.model_copy(update={"brought": (*before, *request.brought)})
            command = replace(command, request=request)
        if request.looks_back:
            check_choice(request)
        return command

    def _plan(self, given: RunInput) -> RunSpec | SummaryPlan:
        # A summary is made first if the request asks for one or its context is too long.
        request, grants = given.command.request, given.granted.grants
        if is_triggered(request):
            return self._plan_summary(given)
        written = self._specs.write(given)
        if grants is not None and grants.approved is not None:
            # The model has to see the call that it asked for, with its result behind it.
            return self._specs.spec(given, written)
        is_due = self._compactor.is_due(
            request, written.items, written.prompt, context_length=given.model.context_length
        )
        return self._plan_summary(given) if is_due else self._specs.spec(given, written)

    def _plan_summary(self, given: RunInput) -> SummaryPlan:
        request = self._compactor.request_for(given.command.request)
        command = replace(given.command, request=request, remembered=False)
        asking = replace(
            given,
            command=command,
            uuid=ids.new_uuid(),
            is_opening=False,
            granted=NOTHING_GRANTED,
        )
        written = self._specs.write(asking, item_by_item=True)
        # The last item is the one that asks.
        plan = SummaryPlan(self._specs.spec(asking, written), written.items[:-1])
        self._compactor.check(plan, context_length=given.model.context_length)
        return plan


def _tools_before(given: RunInput) -> tuple[BroughtTools, ...]:
    stored = items_of_kinds(tuple(given.stored.values()), BRINGING)
    return brought_before((*items_of_kinds(given.history.items, BRINGING), *stored))


def opens(request: CreateResponse) -> bool:
    """Return True if the request continues nothing and has only messages without ids."""
    if request.previous_response_id is not None or request.conversation is not None:
        return False
    for item in request.input:
        if item.id is not None or not isinstance(item, Message):
            return False
    return bool(request.input)


def _require_messages(principal: Principal) -> None:
    if principal.policy.response_messages != "allowed":
        raise PermissionDenied(
            "The Harmony messages and token ids of a response are not shown to this API key. Leave "
            "'enable_response_messages' and the token ids in 'include' out, or ask the operator to "
            f"run: harmony-gateway tenants set {principal.tenant_name} --response-messages allowed",
            code="response_messages_not_allowed",
            param="enable_response_messages",
        )
