from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import orjson

from gateway.errors import (
    InvalidRequest,
    ModelNotFound,
    ModelNotServed,
    NoUpstreamAvailable,
    UpstreamLost,
    UpstreamRecalled,
    UpstreamUnavailable,
)
from gateway.fair_queue import ReadTurns
from gateway.telemetry.logs import EventLog
from gateway.telemetry.trace_context import recorded
from gateway.upstreams.admission.slots import WorkClass, class_of
from gateway.upstreams.backend import StreamLimits, Timeouts
from gateway.upstreams.backend_sources import changes
from gateway.upstreams.ejection import EjectionPolicy, Health
from gateway.upstreams.inference_server import InferenceServer
from gateway.upstreams.member import Member, PlacedRequest
from gateway.upstreams.probe import NO_LOAD, check, describe, read_load
from gateway.upstreams.problems import ModelGone
from gateway.upstreams.request_writer import PromptEncoder
from gateway.upstreams.routing.router import FlightSink
from gateway.upstreams.served_models import REMEDY, overlooked, unserved

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gateway.errors import GatewayError
    from gateway.generation import Constraint, TokenRequest, TokenSink
    from gateway.telemetry.metrics import Metrics
    from gateway.upstreams.admission.admit import Admission
    from gateway.upstreams.backend import Backend
    from gateway.upstreams.backend_sources import Changes
    from gateway.upstreams.http.client import Client
    from gateway.upstreams.probe import Description
    from gateway.upstreams.routing.router import Router


def candidates(
    members: Sequence[Member],
    *,
    tried: Collection[str] = (),
    avoided: Collection[str] = (),
    constraint: Constraint | None = None,
) -> list[Member]:
    """Return the best members that are left.

    Without one that is available, not in doubt and not avoided, these conditions are dropped one by
    one: when every backend looks dead, something else is more likely wrong. Availability goes
    before grammars, because output can still be checked.
    """
    left = [member for member in members if member.name not in tried]
    desired = [member for member in left if member.available and member.name not in avoided]
    equals = (
        [member for member in desired if not member.health.in_doubt]
        or desired
        or [member for member in left if member.available]
        or [member for member in left if member.is_late and member.name not in avoided]
        or [member for member in left if member.name not in avoided]
        or left
    )
    if constraint is None:
        return equals
    ranks = [member.can.rank(constraint) if member.can is not None else 0 for member in equals]
    best = max(ranks, default=0)
    return [member for member, rank in zip(equals, ranks, strict=True) if rank == best]


def _is_new(request: TokenRequest) -> bool:
    return request.route is None or request.route.placement is None


def _after_recall(
    request: TokenRequest, placed: PlacedRequest, error: asyncio.CancelledError
) -> TokenRequest:
    # Raises `error` if it is not a recall, and `UpstreamRecalled` if ids already came: the next
    # request must contain them.
    if not placed.was_recalled():
        raise error
    if placed.has_begun:
        raise UpstreamRecalled("another goes before it", upstream=placed.upstream)
    return replace(request, was_recalled=True)


_log = EventLog(__name__)

SILENT = "no backend has said yet what it serves"
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of one body, such as embeddings of many texts."""
HANG_UP_AGAIN_S: Final = 1.0
"""A request that had not begun at the last attempt may have begun since."""
WARM_S: Final = 2.0
DRAINED = "every backend of it is drained"
AWAITED = "no backend of it is there now, and those of a source are still to come"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Served model; `context_length` (tokens) is the smallest of its backends."""

    id: str
    context_length: int
    parent: str | None = None


HEALTH_TIMEOUT_S: Final = 2.0
DESCRIBE_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ProbeSchedule:
    """Intervals and timeouts; for `working_health` a backend has to generate a token."""

    health_interval_s: float = 2.0
    health_timeout_s: float = HEALTH_TIMEOUT_S
    working_health_timeout_s: float = 60.0
    describe_interval_s: float = 30.0
    describe_timeout_s: float = DESCRIBE_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """Bounds of the pool.

    `attempts_max` backends are tried for one request before its first token, until `losses_max` of
    them have broken down. Generations that are silent for `silent_s` without a connection, or go on
    `leave_s` after their backend has left, are broken off.
    """

    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: StreamLimits = field(default_factory=StreamLimits)
    ejection: EjectionPolicy = field(default_factory=EjectionPolicy)
    schedule: ProbeSchedule = field(default_factory=ProbeSchedule)
    attempts_max: int = 3
    losses_max: int = 2
    silent_s: float = 2.0
    leave_s: float = 600.0


class Pool:
    """Backends of all models; it owns the client."""

    def __init__(  # noqa: PLR0913 - its dependencies
        self,
        backends: Sequence[Backend],
        client: Client,
        *,
        policy: PoolPolicy,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        router: Router | None = None,
        admission: Admission | None = None,
        configured: Collection[str] = (),
    ) -> None:
        # `router` chooses among the backends of a model; without one they take turns. `admission`
        # bounds what is sent to each; without one all is sent at once. `configured` are public ids
        # of models that are to be served, whichever backends there are.
        self.router = router
        self.admission = admission
        self.on_return: Callable[[str], None] = lambda _: None
        """Called with each model of a backend that joined or returned: it may be a new process."""
        self.awaits_backends: Callable[[], bool] = lambda: False
        """Returns True if a source has no backends now: some may be to come."""
        self.client = client
        self._policy = policy
        self._metrics = metrics
        self._clock = clock
        self._turns: dict[str, int] = {}
        self._members: dict[str, Member] = {}
        self._serving: dict[str, list[Member]] = {}
        """Members that list each model, without drained ones."""
        self._listed: dict[str, list[Member]] = {}
        """Members of `_serving` that have listed their models. A backend may answer a request for a
        model that it does not list all the same, with some other model."""
        self.models: tuple[ModelInfo, ...] = ()
        self._parents: dict[str, str] = {}
        self._other_adapters: dict[str, str] = {}
        """By backend, why one of its adapters is not used."""
        self._configured = frozenset(configured)
        self._is_started = False
        self.warnings: tuple[str, ...] = ()
        self._prompts = PromptEncoder()
        self._read_turns = ReadTurns()
        self._left: set[Member] = set()
        """Members that have something to finish, and get nothing new."""
        self._drained: frozenset[str] = frozenset()
        self._group: asyncio.TaskGroup | None = None
        self._applying = asyncio.Lock()
        for backend in backends:
            self._members[backend.name] = self._new_member(backend)
        if admission is not None:
            admission.serves(self._usable)
        self._index_models()

    async def start(self) -> None:
        async with asyncio.TaskGroup() as group:
            for member in self._members.values():
                group.create_task(self._describe(member))
        self._is_started = True
        self._update_warnings()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                for member in (*self._members.values(), *self._left):
                    group.create_task(self._monitor(member))
                await asyncio.Future()
            finally:
                self._group = None

    async def apply(self, backends: Sequence[Backend]) -> None:
        """Replace the backends by these; a changed one is removed and added.

        New ones are described before others are removed, so that no request finds neither.
        """
        async with self._applying:
            desired = {backend.name: backend for backend in backends}
            change = changes({name: one.backend for name, one in self._members.items()}, desired)
            if change.join or change.leave:
                described = await self._describe_new([desired[name] for name in change.join])
                self._replace(desired, change, described)

    async def _describe_new(self, backends: Sequence[Backend]) -> dict[str, Description]:
        described: dict[str, Description] = {}

        async def ask(backend: Backend) -> None:
            with suppress(UpstreamUnavailable):
                described[backend.name] = await describe(self.client, backend, timeout_s=WARM_S)

        with suppress(TimeoutError):
            async with asyncio.timeout(WARM_S), asyncio.TaskGroup() as group:
                for backend in backends:
                    group.create_task(ask(backend))
        return described

    def _replace(
        self, desired: Mapping[str, Backend], change: Changes, described: Mapping[str, Description]
    ) -> None:
        members = {name: one for name, one in self._members.items() if name not in change.leave}
        for name in change.leave:
            self._retire(self._members[name])
        router = self.router
        returning = {name for name in change.join if router is not None and router.knows(name)}
        new = {name: self._new_member(desired[name]) for name in change.join}
        for name, description in described.items():
            new[name].described(description)
        for name, member in new.items():
            member.is_drained = name in self._drained
        self._members = {name: members.get(name) or new[name] for name in desired}
        self._resolve_models()
        for name, member in new.items():
            self._metrics.upstream_joined(name)
            _log.info("a backend joins", upstream=name, url=member.backend.base_url)
            if self._group is not None:
                self._group.create_task(
                    self._monitor(member, is_new=True, is_back=name in returning)
                )

    def drain(self, names: Collection[str]) -> None:
        """Send nothing new to these backends, and to all others again."""
        if self._drained == frozenset(names):
            return
        self._drained = frozenset(names)
        for member in self._members.values():
            if member.is_drained != (member.name in self._drained):
                member.is_drained = not member.is_drained
                event = "a backend is drained" if member.is_drained else "a backend is back in use"
                _log.info(event, upstream=member.name, in_flight=member.in_flight)
        self._index_models()

    def in_flight(self) -> dict[str, int]:
        """Count generations by backend, also at those that have left."""
        counts = dict.fromkeys(self._members, 0)
        for member in (*self._members.values(), *self._left):
            counts[member.name] = counts.get(member.name, 0) + member.in_flight
        return counts

    async def poll(self) -> None:
        async with asyncio.TaskGroup() as group:
            for member in self._members.values():
                group.create_task(self._poll(member))

    async def close(self) -> None:
        # Streams in progress end with an error.
        await self.client.aclose()

    def parent_of(self, model: str) -> str | None:
        return self._parents.get(model)

    def expects(self, model: str) -> bool:
        members = self._members.values()
        return model in self._configured or any(
            model in member.models or model in member.backend.models for member in members
        )

    def absence(self, model: str, *, shown: str | None = None) -> GatewayError:
        """Return the error that says why the model, `shown` to the client, cannot be used."""
        name = shown or model
        members = self._members.values()
        configured = [member for member in members if model in member.backend.models]
        serving = [member for member in members if model in member.models]
        if serving and all(member.is_drained for member in serving):
            return NoUpstreamAvailable(
                name, DRAINED, retry_after_s=self._policy.schedule.describe_interval_s
            )
        if any(model in member.models and member.listed is not None for member in members):
            return NoUpstreamAvailable(
                name,
                "no backend has told its context length yet",
                retry_after_s=self._policy.schedule.describe_interval_s,
            )
        silent = [member for member in configured or members if member.listed is None]
        if silent and (configured or len(silent) == len(members)):
            return NoUpstreamAvailable(
                name, SILENT, retry_after_s=self._policy.schedule.health_interval_s
            )
        are_to_come = self._applying.locked() or self.awaits_backends()
        if (configured or model in self._configured) and are_to_come:
            return NoUpstreamAvailable(
                name, AWAITED, retry_after_s=self._policy.schedule.health_interval_s
            )
        return ModelNotServed(name) if configured else ModelNotFound(name)

    def require_logprobs(self, model: str) -> list[Member]:
        """Return the backends of the model that report logprobs.

        Raises ModelNotFound, InvalidRequest if there is none, or NoUpstreamAvailable while one that
        might has not described itself.
        """
        serving = self._serving.get(model)
        if not serving:
            raise self.absence(model)
        able = [member for member in serving if member.can is not None and member.can.logprobs]
        if able:
            return able
        if any(member.can is None for member in serving):
            raise NoUpstreamAvailable(model, "no backend has said yet whether it tells logprobs")
        raise InvalidRequest(
            f"No backend of the model '{model}' tells log probabilities. Leave "
            "'message.output_text.logprobs' out of include, and top_logprobs out of the request.",
            code="unsupported_parameter",
            param="include",
        )

    def serving(self, model: str) -> list[Member]:
        """Return the backends that list the model, or raise the error of `absence`."""
        if (members := self._listed.get(model)) is None:
            raise self.absence(model)
        return members

    def members(self) -> tuple[Member, ...]:
        return tuple(self._members.values())

    async def generate(
        self,
        request: TokenRequest,
        sink: TokenSink,
        *,
        avoid: Collection[str] = (),
        only: str | None = None,
        attempts_max: int | None = None,
    ) -> None:
        """Generate at one backend after the other until one brings a first chunk.

        Backends in `avoid` are used if no other is left. A request that has begun does not wait for
        a turn, unless it `was_recalled`.

        Raises what `require_logprobs` does; Overloaded if its turn does not come in time;
        UpstreamRejected; UpstreamLost when `losses_max` backends were lost; the last failure when
        no more may be tried; NoUpstreamAvailable when none is left; after the first chunk
        UpstreamFailed, and UpstreamRecalled; and what the sink raises, which must be none of these.
        """
        turn = self._turns.get(request.model, 0)
        self._turns[request.model] = turn + 1
        reasons: dict[str, str] = {}
        retry_after_s: list[float] = []
        losses = 0
        attempts_max = attempts_max or self._policy.attempts_max
        choices_left = partial(self._choices, avoid=avoid, only=only)
        while len(reasons) < attempts_max:
            choices = choices_left(request, tried=reasons)
            if not choices:
                break
            skips_queue = (request.has_begun and not request.was_recalled) or bool(reasons)
            placed = self._place(choices, request, sink, turn, skips_queue=skips_queue)
            if placed is None:
                waits_since = self._clock()
                placed = await self._wait_for_turn(request, sink, turn, choices_left)
                if (span := recorded()) is not None:
                    span.set({"harmony.queue_s": self._clock() - waits_since})
            member = placed.member
            try:
                with placed:
                    await member.generate(placed)
            except asyncio.CancelledError as error:
                request = _after_recall(request, placed, error)
            except UpstreamUnavailable as error:
                self._note_unavailable(error, member, reasons, retry_after_s)
                losses += isinstance(error, UpstreamLost)
                if losses >= self._policy.losses_max or attempts_max == 1:
                    raise
            else:
                return
        raise self._none_left(request.model, reasons, retry_after_s)

    async def post(
        self,
        model: str,
        path: str,
        fields: Mapping[str, object],
        *,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> tuple[str, bytes]:
        """Return the backend's name and the body of its 200, without queueing.

        `fields` get the backend's own name of the model. Raises what `generate` does before a first
        chunk, and `UpstreamFailed` for a longer answer.
        """
        turn = self._turns.get(model, 0)
        self._turns[model] = turn + 1
        losses = 0
        reasons: dict[str, str] = {}
        retry_after_s: list[float] = []
        while len(reasons) < self._policy.attempts_max:
            left = candidates(self.serving(model), tried=reasons)
            if not left:
                break
            member = left[turn % len(left)]
            try:
                body = orjson.dumps({**fields, "model": member.served_as(model)})
                answer = await member.ask(path, model, body, bytes_max=answer_bytes_max)
            except UpstreamUnavailable as error:
                self._note_unavailable(error, member, reasons, retry_after_s)
                losses += isinstance(error, UpstreamLost)
                if losses >= self._policy.losses_max:
                    raise
            else:
                return member.name, answer
        raise self._none_left(model, reasons, retry_after_s)

    def _note_unavailable(
        self,
        error: UpstreamUnavailable,
        member: Member,
        reasons: dict[str, str],
        retry_after_s: list[float],
    ) -> None:
        reasons[member.name] = str(error)
        if error.retry_after_s is not None:
            retry_after_s.append(error.retry_after_s)
        if isinstance(error, ModelGone):
            self._resolve_models()

    def _none_left(
        self, model: str, reasons: Mapping[str, str], retry_after_s: Sequence[float]
    ) -> NoUpstreamAvailable:
        # Unless a backend said when to try again: after the next health check where all backends of
        # the model are unreachable. Else the next request tries the others, even if they are
        # ejected.
        members = [one for one in self._members.values() if model in one.models]
        interval_s = self._policy.schedule.health_interval_s
        default = None if any(one.health.reachable for one in members) else interval_s
        return NoUpstreamAvailable(
            model, "; ".join(reasons.values()), retry_after_s=min(retry_after_s, default=default)
        )

    def _choices(
        self,
        request: TokenRequest,
        *,
        tried: Collection[str],
        avoid: Collection[str],
        only: str | None,
    ) -> list[Member]:
        model = request.model
        members = self._listed.get(model)
        if request.sampling.logprobs is not None:
            able = self.require_logprobs(model)
            members = [member for member in able if member.listed is not None]
        if not members:
            if model not in self._serving:
                raise self.absence(model)
            raise NoUpstreamAvailable(
                model, SILENT, retry_after_s=self._policy.schedule.health_interval_s
            )
        if only is not None:
            members = [member for member in members if member.name == only]
            if not members:
                raise NoUpstreamAvailable(model, f"the backend '{only}' does not serve it now")
        if len(members) == 1 and not tried:
            return members
        return candidates(members, tried=tried, avoided=avoid, constraint=request.constraint)

    def _place(
        self,
        choices: Sequence[Member],
        request: TokenRequest,
        sink: TokenSink,
        turn: int,
        *,
        skips_queue: bool,
        is_next: bool = False,
    ) -> PlacedRequest | None:
        # None if the request has to wait. With `skips_queue` it is always sent, to a backend with a
        # free slot if there is one. `is_next`: it has waited, and its turn has come.
        admission = self.admission
        if admission is None:
            member, flight = self._choose(choices, request, sink, turn)
            return PlacedRequest(member, request, flight or sink, flight)
        shares, tenant = admission.shares, request.tenant
        if not skips_queue:
            # A tenant without requests in flight does not wait behind tenants with many.
            queues = admission.waiting and not (is_next or shares.is_idle(tenant))
            if queues or (len(choices) > 1 and self._is_held_back(choices, request)):
                return None
        work = class_of(request.priority, is_background=request.background)
        roomy, free = [], 0
        for member in choices:
            slots = member.slots
            assert slots is not None, "there is admission"
            if slots.has_room(work):
                roomy.append(member)
                free += slots.bound - slots.in_flight
        is_extra = not (roomy or skips_queue)
        if is_extra:
            roomy = self._with_extra_slots(admission, choices, request, work)
            if not roomy:
                return None
        elif not (skips_queue or shares.has_share(tenant, free)):
            return None
        is_alone = admission.running.tenants and shares.is_idle(tenant)
        member, flight = self._choose(roomy or choices, request, sink, turn)
        slots = member.slots
        assert slots is not None, "there is admission"
        placed = PlacedRequest(
            member,
            request,
            flight or sink,
            flight,
            slot=slots.take(work, request.prompt_tokens, is_extra=is_extra),
            admission=admission,
            service=shares.serve(tenant, request.prompt_tokens, work, request.share),
        )
        if is_alone and (overdue_s := slots.overdue_s(request.prompt_tokens)) is not None:
            placed.expect(overdue_s)
        return placed

    @staticmethod
    def _with_extra_slots(
        admission: Admission, choices: Sequence[Member], request: TokenRequest, work: WorkClass
    ) -> list[Member]:
        # For a tenant that has nothing running, though no slot is free.
        if work is WorkClass.BACKGROUND or not admission.shares.is_idle(request.tenant):
            return []
        if not request.was_recalled:
            names = [member.name for member in choices]
            admission.make_room(request.tenant, names, request.share)
        return [one for one in choices if one.slots is not None and one.slots.has_spare]

    async def _wait_for_turn(
        self,
        request: TokenRequest,
        sink: TokenSink,
        turn: int,
        choices_left: Callable[..., list[Member]],
    ) -> PlacedRequest:
        admission = self.admission
        assert admission is not None, "nothing waits without it"

        def start() -> PlacedRequest | None:
            choices = choices_left(request, tried=())
            return self._place(choices, request, sink, turn, skips_queue=False, is_next=True)

        return await admission.wait(request, start, is_new=_is_new(request))

    def _is_held_back(self, choices: Sequence[Member], request: TokenRequest) -> bool:
        # Sessions in progress go before a request that begins another.
        if self.router is None or len(choices) == 1 or not _is_new(request):
            return False
        return self.router.holds_back([member.name for member in choices], request)

    def require_room(self, model: str, priority: int, tenant: str = "") -> None:
        if self.admission is not None and self.admission.waiting:
            self.admission.require_room(model, priority, tenant)

    def _usable(self) -> list[str]:
        members = [one for one in self._members.values() if one.models and not one.is_drained]
        available = [one for one in members if one.available]
        return [one.name for one in available or members if one.available or one.is_late]

    def _is_last(self, member: Member) -> bool:
        # No other backend would take what this one has begun.
        others = [one for one in self._members.values() if one is not member and not one.is_drained]
        return not any(
            one.available and not one.models.keys().isdisjoint(member.models) for one in others
        )

    def _choose(
        self, choices: Sequence[Member], request: TokenRequest, sink: TokenSink, turn: int
    ) -> tuple[Member, FlightSink | None]:
        # They take turns where there is no router, or nothing for it to choose.
        router = self.router
        if router is None or len(self._serving.get(request.model, ())) == 1:
            return choices[turn % len(choices)], None
        names = [member.name for member in choices]
        decision = router.choose(names, router.prefix(request), request.route)
        flight = router.begin(decision, request.route, surplus_ids=request.surplus_ids)
        return self._members[decision.member.name], FlightSink(flight, sink)

    def _new_member(self, backend: Backend) -> Member:
        policy = self._policy
        server = InferenceServer(
            backend,
            self.client,
            timeouts=policy.timeouts,
            limits=policy.limits,
            prompts=self._prompts,
            read_turns=self._read_turns,
        )
        member = Member(backend, server, Health(policy.ejection), self._metrics, self._clock)
        if self.admission is not None:
            member.slots = self.admission.slots(member.name)
        if self.router is not None:
            member.load = self.router.member(member.name)
        return member

    def _retire(self, member: Member) -> None:
        # Its monitor waits until the streams that it has begun end.
        _log.info("a backend leaves", upstream=member.name, in_flight=member.in_flight)
        self._left.add(member)
        member.has_left.set()

    async def _monitor(
        self, member: Member, *, is_new: bool = False, is_back: bool = False
    ) -> None:
        # A new member is polled at once; `is_back`: a member of the same name was here before.
        async with asyncio.TaskGroup() as group:
            polling = group.create_task(
                self._poll_until_left(member, is_new=is_new, is_back=is_back)
            )
            describing = group.create_task(self._describe_until_left(member))
            await member.has_left.wait()
            describing.cancel()
            await self._wait_until_idle(member)
            polling.cancel()

    async def _wait_until_idle(self, member: Member) -> None:
        # After `leave_s` streams that are left are broken off.
        try:
            async with asyncio.timeout(self._policy.leave_s):
                await member.is_idle.wait()
        except TimeoutError:
            _log.warning("streams are broken off", upstream=member.name, count=member.in_flight)
        while not member.is_idle.is_set():
            member.hang_up()
            with suppress(TimeoutError):
                async with asyncio.timeout(HANG_UP_AGAIN_S):
                    await member.is_idle.wait()
        self._left.discard(member)
        others = [*self._members.values(), *self._left]
        if not any(one.name == member.name for one in others):
            self._metrics.upstream_left(member.name)
            if self.router is not None:
                self.router.forget(member.name)
            if self.admission is not None:
                self.admission.forget(member.name)
        for origin in member.backend.origins.difference(*(one.backend.origins for one in others)):
            await self.client.transport.forget(origin)

    async def _poll_until_left(self, member: Member, *, is_new: bool, is_back: bool) -> None:
        if is_new:
            await self._poll(member, is_new=True, is_back=is_back)
        while True:
            await asyncio.sleep(self._policy.schedule.health_interval_s)
            await self._poll(member)

    async def _describe_until_left(self, member: Member) -> None:
        while True:
            await asyncio.sleep(self._policy.schedule.describe_interval_s)
            await self._describe(member)

    async def _poll(self, member: Member, *, is_new: bool = False, is_back: bool = False) -> None:
        was_reachable = member.health.reachable and not is_back
        had_failed = member.has_failed_check or is_new
        schedule = self._policy.schedule
        began_at = self._clock()
        health_check = await check(
            self.client,
            member.backend,
            member.engine,
            timeout_s=schedule.health_timeout_s,
            working_s=schedule.working_health_timeout_s,
        )
        policy = self._policy
        is_last = not health_check.is_well and self._is_last(member)
        mute_s = policy.timeouts.stall_s if is_last else 0.0
        member.checked(health_check, began_at=began_at, silent_s=policy.silent_s, mute_s=mute_s)
        is_described = member.listed is not None and member.engine is not None
        if health_check.is_well and not (is_described and was_reachable):
            await self._describe(member)  # what came back may serve something else than before
            had_failed = True
        if health_check.is_well and had_failed:
            for model in member.models:
                self.on_return(model)
        is_alone = len(self._members) == 1 or member.has_left.is_set()
        router = None if is_alone else self.router
        if health_check.is_well and (router is not None or self.admission is not None):
            await self._read_load(router, member, was_reachable=was_reachable)
        else:
            member.loaded(NO_LOAD)

    async def _read_load(
        self, router: Router | None, member: Member, *, was_reachable: bool
    ) -> None:
        timeout_s = self._policy.schedule.health_timeout_s
        load = await read_load(self.client, member.backend, timeout_s=timeout_s)
        member.loaded(load)
        if member.slots is not None:
            member.slots.reported(load.waiting, load.running, load.places)
        if router is None:
            return
        if not was_reachable:
            router.returned(member.name, epoch=load.epoch)
        router.probed(member.name, waiting=load.waiting, epoch=load.epoch, kv_tokens=load.kv_tokens)

    async def _describe(self, member: Member) -> None:
        timeout_s = self._policy.schedule.describe_timeout_s
        try:
            description = await describe(self.client, member.backend, timeout_s=timeout_s)
        except UpstreamUnavailable as error:
            member.undescribed(error.reason)
            return
        if member.described(description):
            self._resolve_models()

    def _resolve_models(self) -> None:
        names = {name for member in self._members.values() for name in member.listed or ()}
        for one in self._members.values():
            one.name_models(names)
        self._index_models()
        if self._is_started:
            self._update_warnings()

    def _index_models(self) -> None:
        # If adapters of one name have different base models, the first backend's counts.
        self._serving = {}
        self._other_adapters = {}
        lengths: dict[str, int] = {}
        parents: dict[str, str] = {}
        for member in self._members.values():
            for model, length in member.models.items():
                parent = member.parents.get(model)
                if parent is not None and parents.setdefault(model, parent) != parent:
                    self._other_adapters[member.name] = (
                        f"its {model} is an adapter of {parent}, that of backends before it is one "
                        f"of {parents[model]}. Give one of them another name"
                    )
                    continue
                if not member.is_drained:
                    self._serving.setdefault(model, []).append(member)
                if length is not None:
                    lengths[model] = min(length, lengths.get(model, length))
        self._listed = {
            model: listed
            for model, members in self._serving.items()
            if (listed := [member for member in members if member.listed is not None])
        }
        self._parents = parents
        self.models = tuple(
            ModelInfo(model, length, parents.get(model)) for model, length in lengths.items()
        )

    def _update_warnings(self) -> None:
        members = self._members.values()
        missing = {f"{one}. {REMEDY}": one for one in unserved(members)}
        for text, one in missing.items():
            if text not in self.warnings:
                _log.warning("no backend serves a model", model=one.model, reason=text)
        unused = [f"{one.name} is not used: {one.unusable}" for one in members if one.unusable]
        untold = {one.model for one in missing.values()}
        idle = {
            f"{one.name} is not used as it could be: {why}. {REMEDY}": one.name
            for one in members
            if not untold.intersection(one.backend.models) and (why := overlooked(one))
        }
        idle |= {f"{name}: {why}": name for name, why in self._other_adapters.items()}
        for text, name in idle.items():
            if text not in self.warnings:
                _log.warning("a backend is not used", upstream=name, reason=text)
        self.warnings = (*unused, *missing, *idle)
