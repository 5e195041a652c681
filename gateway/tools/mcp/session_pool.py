"""Connections to MCP servers: one for each tenant, server and set of credentials.

A free slot goes to the tenant that holds the fewest, so tenants with many calls wait behind the
others.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

from gateway.cache import LruCache
from gateway.telemetry.metrics import Metrics
from gateway.tools.egress import transport
from gateway.tools.egress.transport import EgressLimits
from gateway.tools.mcp.failures import REQUEST_TIMEOUT, McpError
from gateway.tools.mcp.session import McpSession, ToolPages
from gateway.tools.tool_contract import note_reached, note_unreached

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from typing import Any
    from uuid import UUID

    from gateway.tenancy import TenantId
    from gateway.tools.egress.network_policy import NetworkPolicy
    from gateway.tools.egress.transport import EgressClient, Resolver
    from gateway.tools.mcp.session import CallResult, McpLimits, Transport


class NoSlot(Exception):
    """No slot within the wait."""


class SessionSlots:
    """Counts of the slots that tenants hold."""

    def __init__(
        self,
        sessions_max: int,
        tenant_sessions_max: int,
        give_up: Callable[[TenantId | None], bool],
    ) -> None:
        # `give_up` ends an idle session of a tenant or (None) of any, which frees its slot. False:
        # there is none.
        self._sessions_max = sessions_max
        self._tenant_sessions_max = tenant_sessions_max
        self._give_up = give_up
        self._held: Counter[TenantId] = Counter()
        self._waiting: dict[asyncio.Future[None], TenantId] = {}

    def held(self, tenant_id: TenantId) -> int:
        return self._held[tenant_id]

    async def take(self, tenant_id: TenantId, *, wait_s: float) -> None:
        if self._try(tenant_id):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = tenant_id
        try:
            async with asyncio.timeout(wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                # It was given one at the same moment.
                self.leave(tenant_id)
                self.offer()
            if isinstance(error, TimeoutError):
                raise NoSlot from error
            raise
        finally:
            self._waiting.pop(turn, None)

    def leave(self, tenant_id: TenantId) -> None:
        """Free a slot. Call `offer` to pass it on."""
        self._held[tenant_id] -= 1
        if not self._held[tenant_id]:
            del self._held[tenant_id]

    def offer(self) -> None:
        """Give free slots, and those of idle sessions, to those who wait."""
        waiting = [turn for turn in self._waiting if not turn.done()]
        while waiting:
            turn = min(waiting, key=lambda one: self._held[self._waiting[one]])
            waiting.remove(turn)
            if self._try(self._waiting[turn]):
                turn.set_result(None)

    def _try(self, tenant_id: TenantId) -> bool:
        if self._held[tenant_id] >= self._tenant_sessions_max and not self._give_up(tenant_id):
            return False
        if self._held.total() >= self._sessions_max and not self._give_up(None):
            return False
        self._held[tenant_id] += 1
        return True


T = TypeVar("T")

BUSY: Final = -32000
STOPPING: Final = "the gateway is stopping"
USER_AGENT: Final = "harmony-gateway"
TRANSPORT_TTL_S: Final = 3600.0
"""Until the transport of a server is detected again."""
TRANSPORTS_MAX: Final = 4096
KEEP_ALIVE_S: Final = 4.0
"""Most servers keep connections for 5 s or more: on one that is just closing it would be unknown
whether a request was executed."""
ANSWERS_BY_SSE: Final = 64
"""Longest answers, after which an SSE connection is made anew."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Server as one tenant uses it. `credential` is a digest of the headers. `is_registered`: an
    operator named its URL. `response` is set for a server that gets the response's id.
    """

    tenant_id: TenantId
    server: str
    url: str
    credential: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False, repr=False)
    is_registered: bool = False
    response: UUID | None = None
    name: str = field(default="", compare=False)
    """Label in metrics."""


@dataclass(frozen=True, slots=True)
class Networks:
    registered: NetworkPolicy
    named: NetworkPolicy


class _Shared:
    def __init__(self, session: McpSession, owner: asyncio.Task[None], calls_max: int) -> None:
        self.session = session
        self.owner = owner
        self.slots = asyncio.Semaphore(calls_max)
        self.asking = 0


class SessionPool:
    """Sessions of a process, which `run` holds."""

    def __init__(
        self,
        networks: Networks,
        limits: McpLimits,
        *,
        resolver: Resolver = transport.resolve,
        metrics: Metrics | None = None,
    ) -> None:
        self._networks = networks
        self._limits = limits
        self._resolver = resolver
        self._metrics = metrics or Metrics()
        self._shared: dict[Peer, _Shared] = {}
        self._idle: OrderedDict[Peer, None] = OrderedDict()
        """The least recently used first."""
        self._slots = SessionSlots(limits.sessions_max, limits.tenant_sessions_max, self._end_idle)
        self._sse_until: LruCache[str, float] = LruCache(size_max=TRANSPORTS_MAX)
        self._tasks: asyncio.TaskGroup | None = None
        self._began = asyncio.Event()
        self.on_list_changed: Callable[[Peer], None] = lambda _: None

    @property
    def count(self) -> int:
        # Open or being opened.
        return sum(not one.session.is_over for one in self._shared.values())

    async def run(self) -> None:
        # Holds all connections until cancelled, and closes them then.
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._began.set()
                await asyncio.Event().wait()
        finally:
            self._tasks = None
            self._began.clear()
            for peer, shared in list(self._shared.items()):
                self._remove(peer, shared)

    async def list_tools(self, peer: Peer) -> ToolPages:
        timeout_s = self._limits.list_timeout_s + self._limits.connect_timeout_s
        clock, outcome = asyncio.get_running_loop().time, "cancelled"
        began = clock()
        try:
            pages = await self._ask(peer, lambda session, _: session.list_tools(), timeout_s)
            outcome = "ok"
        except McpError as error:
            outcome = _outcome_of_listing(error)
            raise
        else:
            return pages
        finally:
            self._metrics.mcp_listed(peer.name, outcome, clock() - began)

    async def call(
        self,
        peer: Peer,
        name: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        meta: Mapping[str, Any],
    ) -> CallResult:
        """Run a tool; what was certainly not sent is sent once more. Raises `McpError`."""

        def ask(session: McpSession, left_s: float) -> Awaitable[CallResult]:
            return session.call(name, arguments, timeout_s=left_s, meta=meta)

        # The task of the session makes the requests, so the host is noted for this caller here, and
        # before: whoever cancels the call does not wait for it.
        host = urlsplit(peer.url).hostname or ""
        note_reached(host)
        try:
            return await self._ask(peer, ask, timeout_s)
        except McpError as error:
            if not error.sent:
                note_unreached(host)
            raise

    async def _ask(
        self, peer: Peer, question: Callable[[McpSession, float], Awaitable[T]], timeout_s: float
    ) -> T:
        clock = asyncio.get_running_loop().time
        until = clock() + timeout_s
        try:
            async with self._session(peer) as session:
                return await question(session, max(0.0, until - clock()))
        except McpError as error:
            # Any other code is of a failure that a second attempt would meet again.
            if error.sent or error.code or clock() >= until:
                raise
        self.retire(peer)
        async with self._session(peer) as session:
            return await question(session, max(0.0, until - clock()))

    @asynccontextmanager
    async def _session(self, peer: Peer) -> AsyncIterator[McpSession]:
        # A session that is open, or being opened, with room for a call. Raises `McpError`.
        shared = self._shared.get(peer)
        if shared is None or shared.session.is_over:
            shared = await self._open(peer)
        shared.asking += 1
        self._idle.pop(peer, None)
        try:
            await self._wait_for_slot(shared)
            try:
                yield shared.session
            finally:
                shared.slots.release()
        finally:
            shared.asking -= 1
            if not shared.asking and self._shared.get(peer) is shared:
                self._idle[peer] = None
                self._slots.offer()
            if shared.session.transport == "sse":
                self._remember_sse(peer.url)

    async def _wait_for_slot(self, shared: _Shared) -> None:
        try:
            async with asyncio.timeout(self._limits.busy_wait_s):
                await shared.slots.acquire()
        except TimeoutError:
            message = "too many calls of this server are running; try again later"
            raise McpError("http_error", BUSY, message, sent=False) from None

    async def _open(self, peer: Peer) -> _Shared:
        try:
            async with asyncio.timeout(self._limits.busy_wait_s):
                await self._began.wait()
        except TimeoutError:
            raise McpError("http_error", BUSY, STOPPING, sent=False) from None
        over = self._shared.get(peer)
        if over is not None:
            self._remove(peer, over)
        await self._take_slot(peer.tenant_id)
        if self._tasks is None:
            self._slots.leave(peer.tenant_id)
            raise McpError("http_error", BUSY, STOPPING, sent=False)
        if (shared := self._shared.get(peer)) is not None:
            # Somebody else waited for the same one, and had a slot before.
            self._slots.leave(peer.tenant_id)
            self._slots.offer()
            return shared
        session = McpSession(
            peer.url,
            lambda transport: self._client(peer, transport),
            self._limits,
            transport=self._kept_transport(peer.url),
            on_list_changed=lambda: self.on_list_changed(peer),
        )
        # In a context of its own: it outlives the request that it is opened for.
        owner = self._tasks.create_task(session.run(), context=Context())
        shared = self._shared[peer] = _Shared(session, owner, self._limits.calls_max)
        self._metrics.mcp_sessions(peer.name, 1)
        owner.add_done_callback(lambda _: self._on_session_end(peer, shared))
        return shared

    async def _take_slot(self, tenant_id: TenantId) -> None:
        # Raises `McpError`.
        try:
            await self._slots.take(tenant_id, wait_s=self._limits.busy_wait_s)
        except NoSlot:
            message = "too many MCP servers are in use; try again later"
            raise McpError("http_error", BUSY, message, sent=False) from None

    def _client(self, peer: Peer, kind: Transport) -> EgressClient:
        # By the older transport all answers come in one, whose events are bounded one by one.
        answers = ANSWERS_BY_SSE if kind == "sse" else 1
        limits = EgressLimits(
            body_bytes_max=self._limits.result_bytes_max * answers,
            values_max=self._limits.result_values_max,
            connections_max=self._limits.calls_max + 4,
            connect_timeout_s=self._limits.connect_timeout_s,
            read_timeout_s=self._limits.read_timeout_s,
            idle_s=KEEP_ALIVE_S,
        )
        networks = self._networks
        policy = networks.registered if peer.is_registered else networks.named
        client = transport.client(policy, limits, resolver=self._resolver)
        client.headers.update({"user-agent": USER_AGENT, **peer.headers})
        return client

    def _end_idle(self, tenant_id: TenantId | None) -> bool:
        # Ends the least recently used idle session of a tenant, or (None) of the tenant that has
        # the most. False: none is idle.
        idle = [one for one in self._idle if tenant_id is None or one.tenant_id == tenant_id]
        if not idle:
            return False
        peer = max(idle, key=lambda one: self._slots.held(one.tenant_id))
        shared = self._shared[peer]
        self._remove(peer, shared)
        shared.owner.cancel()
        return True

    def _on_session_end(self, peer: Peer, shared: _Shared) -> None:
        self._metrics.mcp_sessions(peer.name, -1)
        self._remove(peer, shared)
        self._slots.offer()

    def _remove(self, peer: Peer, shared: _Shared) -> None:
        # May be called twice: the slot is left only once.
        if self._shared.get(peer) is shared:
            del self._shared[peer]
            self._idle.pop(peer, None)
            self._slots.leave(peer.tenant_id)

    def retire(self, peer: Peer) -> None:
        # The next call opens a new session; this one goes on for those who wait.
        self._sse_until.drop(peer.url)
        shared = self._shared.get(peer)
        if shared is not None:
            self._remove(peer, shared)
            shared.session.retire()
            self._slots.offer()

    def _remember_sse(self, url: str) -> None:
        # Later sessions need not try the other transport first.
        if self._kept_transport(url) is None:
            until = asyncio.get_running_loop().time() + TRANSPORT_TTL_S
            self._sse_until.put(url, until, size=1)

    def _kept_transport(self, url: str) -> Transport | None:
        until = self._sse_until.get(url) or 0.0
        return "sse" if until > asyncio.get_running_loop().time() else None


def _outcome_of_listing(error: McpError) -> str:
    # A label of the metrics.
    if error.code == BUSY and not error.sent:
        return "busy"
    return "timeout" if error.code == REQUEST_TIMEOUT else "error"
