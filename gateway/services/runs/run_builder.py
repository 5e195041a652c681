from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from gateway import ids
from gateway.context.assembly import UnreadOriginal
from gateway.errors import ContextLengthExceeded, PermissionDenied
from gateway.models.format import IMAGE_QUESTION, SEES, Unrendered
from gateway.protocol.brought_tools import BRINGING, brought_before
from gateway.protocol.items import Message
from gateway.protocol.responses.create_request import check_choice
from gateway.protocol.responses.request_checks import check_images
from gateway.services.runs.compaction import CompactedContext, SummaryPlan, is_triggered
from gateway.services.runs.history_source import History
from gateway.services.runs.spec_builder import CreateCommand, RunInput, SpecBuilder
from gateway.services.runs.tool_grants import NOTHING_GRANTED
from gateway.store.packing import has_kinds, items_of_kinds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from gateway.engine.run_spec import RunSpec
    from gateway.models.format import Rendering
    from gateway.protocol.brought_tools import BroughtTools
    from gateway.protocol.responses.create_request import CreateResponse
    from gateway.services.executor import ThreadExecutor
    from gateway.services.models import Model, Models
    from gateway.services.runs.compaction import Compactor
    from gateway.services.runs.history_source import HistorySource
    from gateway.services.runs.images import ImageFetcher
    from gateway.services.runs.tool_grants import ToolGrants
    from gateway.tenancy import Principal

    Echo = dict[str, Any]


T = TypeVar("T")

RENDERINGS_MAX: Final = 8
"""Renderings for one request: to learn the template, for the prompt, for a summary, and again with
fewer and fewer turns.
"""


class Tokenizers(Protocol):
    """Client of servers that render conversations (`upstreams.tokenization`)."""

    async def render(self, model: str, questions: Sequence[bytes]) -> Mapping[bytes, Rendering]:
        """Answer each question (`Unrendered`)."""


class PromptExecutor:
    """Executor of prompt-building work, which does no I/O: it raises `Unrendered` for what it
    lacks, and runs again with the answers.
    """

    def __init__(
        self,
        executor: ThreadExecutor,
        work_bytes: Callable[[RunInput], int],
        tokenizers: Tokenizers,
        images: ImageFetcher | None = None,
    ) -> None:
        self._executor = executor
        self._work_bytes = work_bytes
        self._tokenizers = tokenizers
        self._images = images

    async def run(self, work: Callable[[RunInput], T], run_input: RunInput) -> T:
        """Run work, fetching renderings and images for it. Raises as `ThreadExecutor.run` does, and
        `NoUpstreamAvailable` if no server of the model renders.
        """
        size_bytes = self._work_bytes(run_input)
        for _ in range(RENDERINGS_MAX):
            try:
                return await self._executor.run(work, run_input, size_bytes=size_bytes)
            except Unrendered as lacking:
                questions = lacking.questions
            images = [one for one in questions if one.startswith(IMAGE_QUESTION)]
            if images and self._images is not None:
                fetched, hold = await self._images.answers(images, run_input.tenant_id)
                run_input = run_input.with_renderings(fetched, hold)
                size_bytes += sum(map(len, fetched.values()))
            else:
                answers = await self._tokenizers.render(run_input.model.id, questions)
                run_input = run_input.with_renderings(answers)
        raise ContextLengthExceeded(
            "Your input exceeds the context window of this model, and did not come to fit when its "
            "older turns were left out one after the other. Please send less of it."
        )


class DueSummary(NamedTuple):
    """Run whose context must be summarised before it starts."""

    run_input: RunInput
    plan: SummaryPlan


class RunBuilder:
    """Reader of what a request continues and may use; `specs` computes its run from that."""

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

    async def build(self, command: CreateCommand, model: Model) -> RunSpec | DueSummary:
        """Return the spec of a new response, or the summary that has to be made before.

        Raises `StoreUnavailable`, and `RequestError` for what the caller has to fix.
        """
        run_input = await self._look_up(command, model)
        request = command.request
        is_compacted = request.context_management or (
            not run_input.is_opening and is_triggered(request)
        )
        work = self._plan if is_compacted and command.generate else self._specs.spec
        run_input, planned = await self._run(work, run_input)
        return DueSummary(run_input, planned) if isinstance(planned, SummaryPlan) else planned

    @asynccontextmanager
    async def summarised(self, due: DueSummary) -> AsyncIterator[RunSpec]:
        """Make the summary and yield the spec of the run that begins with it.

        If the block raises, the summary is booked by itself. Raises `UpstreamError`,
        `SummaryFailed`, and as `build` does.
        """
        summary = await self._compactor.make(due.plan.spec)
        run_input = replace(due.run_input, compacted=summary.compacted)
        try:
            yield await self._executor.run(self._specs.spec, run_input)
        except BaseException:
            self._compactor.book(summary)
            raise

    async def compact(
        self,
        command: CreateCommand,
        model: Model,
        *,
        admit: Callable[[RunSpec], Awaitable[RunSpec]],
    ) -> CompactedContext:
        """Summarise what the request continues and contains.

        `admit` charges the run that makes the summary before a token is spent.
        """
        run_input = await self._look_up(command, model, with_json=True)
        _, plan = await self._run(self._plan_summary, run_input)
        summary = await self._compactor.make(await admit(plan.spec))
        self._compactor.book(summary)
        return CompactedContext(plan, summary)

    async def count(self, command: CreateCommand, model: Model) -> int:
        """Count the prompt, also if it is too long to run."""
        _, tokens = await self._run(self._specs.count, await self._look_up(command, model))
        return tokens

    async def _run(self, work: Callable[[RunInput], T], run_input: RunInput) -> tuple[RunInput, T]:
        # Returns the input that was enough, too.
        try:
            return run_input, await self._executor.run(work, run_input)
        except UnreadOriginal:
            command = run_input.command
        history = await self._read_history(
            command, run_input.model, run_input.created_at, with_json=True
        )
        run_input = replace(run_input, history=history)
        return run_input, await self._executor.run(work, run_input)

    async def _look_up(
        self, command: CreateCommand, model: Model, *, with_json: bool = False
    ) -> RunInput:
        # `with_json`: the items of the history are shown, not only continued.
        principal, request = command.principal, command.request
        self._check_abilities(principal, request, model)
        uuid, created_at = ids.new_uuid(), int(time.time())
        if opens(request):
            history = History(None, (), created_at)
            run_input = RunInput(command, model, history, {}, uuid, created_at, is_opening=True)
            if not request.tools:
                return run_input  # messages neither bring tools nor approve calls
        else:
            history = await self._read_history(command, model, created_at, with_json=with_json)
            stored = await self._history_source.named_items(principal, request)
            run_input = RunInput(command, model, history, stored, uuid, created_at)
            request = await self._with_tools_before(run_input)
            if request is not command.request:
                run_input = replace(run_input, command=replace(command, request=request))
        granted = await self._tool_grants.decide(
            principal, request, history, run_input.stored, uuid
        )
        if not command.generate:
            granted = granted.without_approvals()
        return replace(run_input, granted=granted)

    def _check_abilities(self, principal: Principal, request: CreateResponse, model: Model) -> None:
        if request.wants_logprobs:
            self._models.require_logprobs(model)
        if request.wants_messages:
            _require_messages(principal)
        if request.rejects_images and SEES not in model.format.abilities:
            check_images(request.input)

    async def _read_history(
        self, command: CreateCommand, model: Model, created_at: int, *, with_json: bool
    ) -> History:
        # Formats that do not store ids need the JSON of a history to continue it; storing a
        # continuation later stores the conversation's items, too.
        request = command.request
        is_unstored = command.remembered and not request.store
        return await self._history_source.of(
            command.principal,
            request,
            created_at=created_at,
            local=command.local,
            with_json=with_json
            or (is_unstored and request.conversation is not None)
            or not model.format.framing.stores_ids,
        )

    async def _with_tools_before(self, run_input: RunInput) -> CreateResponse:
        request, history = run_input.command.request, run_input.history.items
        if items_of_kinds(tuple(run_input.stored.values()), BRINGING) or has_kinds(
            history, BRINGING
        ):
            before = await self._executor.run(_tools_before, run_input)
            request = request.model_copy(update={"brought": (*before, *request.brought)})
        if request.looks_back:
            check_choice(request)
        return request

    def _plan(self, run_input: RunInput) -> RunSpec | SummaryPlan:
        # A summary is made first if the request asks for one or its context is too long.
        request, grants = run_input.command.request, run_input.granted.grants
        if is_triggered(request):
            return self._plan_summary(run_input)
        written = self._specs.write(run_input)
        if grants is not None and grants.approved is not None:
            # The model has to see its call, followed by the result.
            return self._specs.spec(run_input, written)
        is_due = self._compactor.is_due(
            request, written.items, written.prompt, context_length=run_input.model.context_length
        )
        return self._plan_summary(run_input) if is_due else self._specs.spec(run_input, written)

    def _plan_summary(self, run_input: RunInput) -> SummaryPlan:
        request = self._compactor.request_for(run_input.command.request)
        command = replace(run_input.command, request=request, remembered=False)
        asking = replace(
            run_input,
            command=command,
            uuid=ids.new_uuid(),
            is_opening=False,
            granted=NOTHING_GRANTED,
        )
        written = self._specs.write(asking, item_by_item=True)
        # The last item is the one that asks.
        plan = SummaryPlan(self._specs.spec(asking, written), written.items[:-1])
        self._compactor.check(plan, context_length=run_input.model.context_length)
        return plan


def _tools_before(run_input: RunInput) -> tuple[BroughtTools, ...]:
    stored = items_of_kinds(tuple(run_input.stored.values()), BRINGING)
    return brought_before((*items_of_kinds(run_input.history.items, BRINGING), *stored))


def opens(request: CreateResponse) -> bool:
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
