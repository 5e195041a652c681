"""A valid request → all that a run needs, with a summary of what it continues if one is due."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from gateway import ids
from gateway.errors import PermissionDenied
from gateway.services.compactor import SummaryPlan, is_triggered
from gateway.services.parents import Parent, opens
from gateway.services.specifying import Draft

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from gateway.protocol.context import ConversationPlace
    from gateway.protocol.requests import CreateResponse
    from gateway.runs.specification import RunSpecification
    from gateway.services.compactor import Compactor, Made
    from gateway.services.models import Models
    from gateway.services.orders import Order
    from gateway.services.parents import Parents
    from gateway.services.specifying import Specifier
    from gateway.services.threads import Threads
    from gateway.tenancy import Principal

    Check = Callable[[ConversationPlace | None], Awaitable[None]]
    """Raises what would be raised when a response is accepted that continues the conversation."""

T = TypeVar("T")

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Preparation:
    """Turns requests into run specifications."""

    def __init__(
        self,
        *,
        parents: Parents,
        models: Models,
        specifier: Specifier,
        compactor: Compactor,
        threads: Threads,
    ) -> None:
        self._parents = parents
        self._models = models
        self._specifier = specifier
        self._compactor = compactor
        self._threads = threads

    def prepared(self, order: Order, check: Check) -> AbstractAsyncContextManager[RunSpecification]:
        """The specification of a new response, for as long as it takes to have it accepted.

        A summary that was made for it is booked when the block is left by an exception: then
        nothing comes of it. `check` is asked before one is made.

        Raises `RequestError` for whatever the caller has to mend (unknown model, logprobs that
        nobody can tell, broken chain, unpaired calls, a schema or a grammar that is none, reasoning
        that was sealed elsewhere, a prompt that is too long), `StoreUnavailable`, and where the
        context is to be compacted `UpstreamError`, `SummaryFailed` and what `check` raises.
        """
        return _Prepared(self, order, check)

    async def specified(self, order: Order, check: Check) -> tuple[RunSpecification, Made | None]:
        """The same without end; with the summary that was made for it, which is to be booked."""
        draft = await self._draft(order.principal, order.request, order.body_bytes, order=order)
        if draft.is_plain and draft.size_bytes <= self._threads.inline_bytes_max:
            return self._specifier.specify(draft), None
        planned = await self._in_thread(self._planned, draft)
        if not isinstance(planned, SummaryPlan):
            return planned, None
        await check(draft.parent.conversation)
        made = await self._compactor.make(planned.specification)
        compacted = replace(draft, compacted=made.compacted)
        try:
            return await self._in_thread(self._specifier.specify, compacted), made
        except BaseException:
            await self.book(made)
            raise

    async def book(self, made: Made) -> None:
        """Book a summary that nothing came of."""
        await self._compactor.book(made)

    async def summary(
        self, principal: Principal, request: CreateResponse, *, body_bytes: int
    ) -> SummaryPlan:
        """How to summarise what the request continues and brings; raises what `prepared` does."""
        draft = await self._draft(principal, request, body_bytes, with_json=True)
        return await self._in_thread(self._summary, draft)

    async def count(self, principal: Principal, request: CreateResponse, *, body_bytes: int) -> int:
        """How many tokens the prompt of the request has, also of one that is too long to be run.

        Raises `RequestError` and `StoreUnavailable` as `prepared` does.
        """
        draft = await self._draft(principal, request, body_bytes)
        return await self._in_thread(self._specifier.count, draft)

    async def _draft(
        self,
        principal: Principal,
        request: CreateResponse,
        body_bytes: int,
        *,
        order: Order | None = None,
        with_json: bool = False,
    ) -> Draft:
        model = self._models.get(request.model)
        if request.wants_logprobs:
            self._models.require_logprobs(model)
        if request.wants_messages:
            _require_messages(principal)
        created_at = int(time.time())
        is_opening = opens(request)
        if is_opening:
            parent, stored = Parent(None, (), created_at), NOTHING
        else:
            tenant_id = principal.tenant_id
            parent = await self._parents.of(
                tenant_id,
                request,
                created_at=created_at,
                local=NOTHING if order is None else order.local,
                with_json=with_json or not self._specifier.knows_stored_ids(model),
            )
            stored = await self._parents.named_items(tenant_id, request)
        draft = Draft(
            principal=principal,
            request=request,
            body_bytes=body_bytes,
            model=model,
            parent=parent,
            stored=stored,
            uuid=ids.new_uuid(),
            created_at=created_at,
            durable=order is not None and order.is_durable,
            remembered=order is not None and order.is_remembered,
            silent=order is not None and not order.generate,
            frame=self._specifier.kept_frame(request, model, principal.policy),
            is_opening=is_opening,
        )
        if body_bytes > self._threads.inline_bytes_max and self._specifier.is_told(draft):
            return replace(draft, is_told=True)
        return draft

    async def _in_thread(self, work: Callable[[Draft], T], draft: Draft) -> T:
        return await self._threads.run(partial(work, draft), size_bytes=draft.size_bytes)

    def _planned(self, draft: Draft) -> RunSpecification | SummaryPlan:
        """The specification, or the plan of the summary that has to be made before it."""
        if draft.silent:
            return self._specifier.specify(draft)
        if is_triggered(draft.request):
            return self._summary(draft)
        written = self._specifier.write(draft)
        is_due = self._compactor.is_due(
            draft.request,
            written.items,
            written.prompt,
            context_length=draft.model.context_length,
        )
        return self._summary(draft) if is_due else self._specifier.specify(draft, written)

    def _summary(self, draft: Draft) -> SummaryPlan:
        asking = replace(
            draft,
            request=self._compactor.request_for(draft.request),
            uuid=ids.new_uuid(),
            durable=False,
            remembered=False,
            frame=None,
            is_opening=False,
        )
        written = self._specifier.write(asking, item_by_item=True)
        # The last item is the one that asks.
        plan = SummaryPlan(self._specifier.specify(asking, written), written.items[:-1])
        self._compactor.check(plan, context_length=draft.model.context_length)
        return plan


class _Prepared:
    """`Preparation.prepared`, as a context manager that costs a request no generator."""

    __slots__ = ("_check", "_made", "_order", "_preparation")

    def __init__(self, preparation: Preparation, order: Order, check: Check) -> None:
        self._preparation = preparation
        self._order = order
        self._check = check
        self._made: Made | None = None

    async def __aenter__(self) -> RunSpecification:
        specification, self._made = await self._preparation.specified(self._order, self._check)
        return specification

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._made is not None:
            await self._preparation.book(self._made)


def _require_messages(principal: Principal) -> None:
    """Raises `PermissionDenied` for a tenant that may not see the messages of its responses."""
    if principal.policy.response_messages != "allowed":
        raise PermissionDenied(
            "The Harmony messages and token ids of a response are not shown to this API key. Leave "
            "'enable_response_messages' and the token ids in 'include' out, or ask the operator to "
            f"run: harmony-gateway tenants set {principal.tenant_name} --response-messages allowed",
            code="response_messages_not_allowed",
            param="enable_response_messages",
        )
