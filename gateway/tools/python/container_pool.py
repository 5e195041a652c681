"""A container is a row (`store.tools.containers`), files (`store.tools.files`) and, while somebody
runs code in it, an interpreter in some process. If that is lost, another is opened, the files are
put into it, and the model reads that its variables are gone.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import orjson

from gateway import ids
from gateway.errors import RequestError, StoreError
from gateway.store.tools import containers as rows
from gateway.store.tools import files
from gateway.store.tools.containers import ContainerRow, TooManyContainers
from gateway.store.tools.files import CHUNK_BYTES, FileBounds, FileRow
from gateway.telemetry.logs import EventLog
from gateway.tools.python.container_engine import (
    DATA,
    ContainerLimits,
    EngineBroken,
    FileRefused,
    RunResult,
    data_path,
)
from gateway.tools.python.self_test import Chosen, choose

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from uuid import UUID

    from gateway.protocol.grants import PythonGrant
    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics
    from gateway.tenancy import ProjectId, TenantId
    from gateway.tools.python.container_engine import (
        Container,
        ContainerCapabilities,
        ContainerEngine,
    )

    Key = tuple[TenantId, UUID]

SWEEP_INTERVAL_S: Final = 15.0
IMAGES_MAX: Final = 16
IMAGE_BYTES_MAX: Final = 4 * 1024 * 1024
IMAGE_KINDS: Final = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}
_WARM_UP: Final = (
    "for name in ('numpy', 'pandas', 'matplotlib.pyplot'):\n"
    "    try: __import__(name)\n"
    "    except ImportError: pass\n"
    "del name"
)
_WARM_UP_TIMEOUT_S: Final = 60.0
_NO_FILE: Final = f"{DATA}/.none"

FILE_BOUNDS: Final = FileBounds(tenant_bytes_max=8 * 1024**3)
CONTAINER_LIMITS: Final = ContainerLimits()

_log = EventLog(__name__)


class ContainerExpired(Exception):
    """Container that is too old, or was not used for too long."""


class ContainersBusy(Exception):
    """No container was idle within `busy_wait_s`."""


def utc_now() -> datetime:
    # The store takes aware times.
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class ContainerPolicy:
    """Bounds and lifetime of containers, and of one call in them.

    For one more than `open_max` the pool closes the one that was idle for longest. `warm_max` are
    started ahead. More than `image_bytes_inline_max` of images are kept as files.
    """

    idle_s: int = 1200
    life_s: int = 28_800
    open_max: int = 32
    tenant_open_max: int = 4
    busy_wait_s: float = 5.0
    warm_max: int = 0
    file_bytes_max: int = 64 * 1024**2
    image_bytes_inline_max: int = 128 * 1024
    files: FileBounds = FILE_BOUNDS
    limits: ContainerLimits = CONTAINER_LIMITS
    timeout_s: float = 60.0
    code_bytes_max: int = 65_536
    result_ids_max: int = 4096
    logs_chars_max: int = 65_536


@dataclass(frozen=True, slots=True)
class Image:
    """Image that code showed; `file_id` if it is too large to be inline."""

    path: str
    media_type: str
    content: bytes
    file_id: str | None = None


@dataclass(frozen=True, slots=True)
class Execution:
    """Result of running code. `is_restarted`: earlier variables were gone. `notes` say what could
    not be kept. `is_lost`: because the sandbox or the database failed, not for a bound that the
    code broke.
    """

    ran: RunResult
    is_restarted: bool = False
    images: tuple[Image, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    is_lost: bool = False


class LiveContainer:
    def __init__(self, key: Key) -> None:
        self.tenant_id, self.uuid = key
        self.lock = asyncio.Lock()
        self.container: Container | None = None
        self.epoch = 0
        self.used_at = utc_now()
        self.held: dict[str, FileRow] = {}
        """By path."""
        self.copied: set[UUID] = set()
        """Uploads: code may have deleted them since."""
        self.is_restarted = False

    @property
    def key(self) -> Key:
        return self.tenant_id, self.uuid

    @property
    def interpreter(self) -> Container:
        # Raises `EngineBroken` if the container was deleted meanwhile.
        if self.container is None:
            raise EngineBroken("the container was deleted")
        return self.container

    async def end(self) -> None:
        if (container := self._detached()) is not None:
            await container.close()

    async def leave(self) -> None:
        # Another process may go on with the container.
        if (container := self._detached()) is not None:
            await container.leave()

    def _detached(self) -> Container | None:
        container, self.container, self.held = self.container, None, {}
        return container


class ContainerPool:
    """Interpreters of this process. Failures are `EngineBroken` and `StoreError`."""

    def __init__(
        self,
        database: Database,
        engines: Sequence[ContainerEngine],
        policy: ContainerPolicy,
        *,
        owner: str,
        metrics: Metrics,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        # `engines` are tried in this order, and not used before `check`. `owner` names this process
        # in rows.
        self._database = database
        self._engines = engines
        self.policy = policy
        self._owner = owner
        self._metrics = metrics
        self.now = now
        self._chosen = Chosen(None, None)
        self._live: dict[Key, LiveContainer] = {}
        self._warm: deque[Container] = deque()
        self._freed = asyncio.Event()

    @property
    def engine(self) -> str | None:
        # None: python is off.
        return None if self._chosen.engine is None else self._chosen.engine.name

    @property
    def capabilities(self) -> ContainerCapabilities | None:
        return self._chosen.capabilities

    async def check(self) -> str:
        """Choose the engine; return a log line."""
        self._chosen = await choose(self._engines)
        if self._chosen.engine is not None:
            self._metrics.watch_containers(self._chosen.engine.name, self._count)
        return str(self._chosen)

    def _count(self) -> int:
        # Warm containers included.
        live = sum(one.container is not None for one in self._live.values())
        return live + len(self._warm)

    async def run(self) -> None:
        # Until cancelled: keeps warm containers ready and closes idle ones.
        while True:
            try:
                await self._refill()
                await self.sweep()
            except Exception as error:  # noqa: BLE001 - a gateway that cannot do so still serves
                _log.warning("containers are not looked after", error=error)
            await asyncio.sleep(SWEEP_INTERVAL_S)

    async def sweep(self) -> None:
        oldest = self.now() - timedelta(seconds=self.policy.idle_s)
        for live in list(self._live.values()):
            if live.used_at < oldest and not live.lock.locked():
                await self._drop(live)

    async def close(self) -> None:
        for live in list(self._live.values()):
            await live.leave()
        self._live.clear()
        while self._warm:
            await self._warm.pop().close()
        if self._chosen.engine is not None:
            await self._chosen.engine.close()

    async def forget(self, tenant_id: TenantId, uuid: UUID) -> None:
        # The container was deleted.
        if (live := self._live.get((tenant_id, uuid))) is not None:
            await self._drop(live)

    async def execute(
        self,
        tenant_id: TenantId,
        grant: PythonGrant,
        code: str,
        *,
        key: str,
        on_handle: Callable[[bytes], None],
        project_id: ProjectId | None = None,
    ) -> Execution:
        """Run code and keep the files that it wrote. `key` names the run for `resume`.

        Raises `ContainerExpired`, `ContainersBusy`, `TooManyContainers`, `EngineBroken` and
        `StoreError`. Where the effects of the code are unknown, the interpreter has been ended.
        """
        async with self._ready(tenant_id, grant, project_id=project_id) as live:
            interpreter = live.interpreter
            on_handle(orjson.dumps({"owner": self._owner, "key": key}))
            try:
                ran = await interpreter.run(code, timeout_s=self.policy.timeout_s, key=key)
            except EngineBroken:
                await live.end()
                raise
            if ran.status == "killed":
                await live.end()
                return Execution(ran, live.is_restarted)
            return await self._keep_files(live, ran)

    async def resume(
        self, tenant_id: TenantId, grant: PythonGrant, handle: bytes
    ) -> Execution | None:
        """Return the result of a run by a handle of `execute`; None: it is lost."""
        run = orjson.loads(handle)
        uuid = ids.parse_container_id(grant.container_id)
        engine = self._chosen.engine
        is_mine = run["owner"] == self._owner and (tenant_id, uuid) in self._live
        movable = self.capabilities is not None and self.capabilities.is_movable
        if engine is None or uuid is None or not (is_mine or movable):
            return None
        try:
            async with self._ready(tenant_id, grant, opens=False) as live:
                if live.container is None:
                    return None
                ran = await live.container.result_of(run["key"], timeout_s=self.policy.timeout_s)
                return None if ran is None else await self._keep_files(live, ran)
        except (EngineBroken, ContainerExpired, ContainersBusy, TooManyContainers, StoreError):
            return None

    @asynccontextmanager
    async def _ready(
        self,
        tenant_id: TenantId,
        grant: PythonGrant,
        *,
        opens: bool = True,
        project_id: ProjectId | None = None,
    ) -> AsyncIterator[LiveContainer]:
        # Locked, with its files in it. With `opens` False it may have no interpreter.
        uuid = ids.parse_container_id(grant.container_id)
        if uuid is None or self._chosen.engine is None:
            raise EngineBroken("python is off here")
        async with self._lock(tenant_id, uuid) as live:
            try:
                live.used_at = self.now()
                if live.container is not None and not live.container.is_alive:
                    await live.end()
                row = await self._take(live, grant, project_id)
                if live.container is None:
                    await self._begin(live, row, opens=opens)
                if live.container is not None and opens:
                    await self._restore(live, grant)
                yield live
            finally:
                live.used_at = self.now()
                live.is_restarted = False
                if self._live.get(live.key) is not live:
                    await live.end()  # it was deleted meanwhile
                elif live.container is None:
                    del self._live[live.key]
                self._freed.set()

    @asynccontextmanager
    async def _lock(self, tenant_id: TenantId, uuid: UUID) -> AsyncIterator[LiveContainer]:
        while True:
            live = await self._place(tenant_id, uuid)
            async with live.lock:
                # The holder of the lock before may have closed the container.
                if self._live.get(live.key) is live:
                    yield live
                    return

    async def _place(self, tenant_id: TenantId, uuid: UUID) -> LiveContainer:
        # Waits until there is room.
        try:
            async with asyncio.timeout(self.policy.busy_wait_s):
                while True:
                    if (live := self._live.get((tenant_id, uuid))) is not None:
                        return live
                    if (crowd := self._crowd(tenant_id)) is None:
                        live = self._live[tenant_id, uuid] = LiveContainer((tenant_id, uuid))
                        return live
                    idle = [one for one in crowd if not one.lock.locked()]
                    if idle:
                        await self._drop(min(idle, key=lambda one: one.used_at))
                    else:
                        self._freed.clear()
                        await self._freed.wait()
        except TimeoutError:
            raise ContainersBusy from None

    def _crowd(self, tenant_id: TenantId) -> list[LiveContainer] | None:
        # The candidates to be closed before another container can open; None: there is room.
        own = [live for live in self._live.values() if live.tenant_id == tenant_id]
        if len(own) >= self.policy.tenant_open_max:
            return own
        if len(self._live) >= self.policy.open_max:
            return list(self._live.values())
        return None

    async def _drop(self, live: LiveContainer) -> None:
        if self._live.get(live.key) is live:
            del self._live[live.key]
        await live.end()

    async def _take(
        self, live: LiveContainer, grant: PythonGrant, project_id: ProjectId | None
    ) -> ContainerRow:
        # Claims the row for this process. Raises `ContainerExpired`, and `TooManyContainers` for
        # one more than the tenant may have.
        now, policy = self.now(), self.policy
        had = live.epoch if live.container is not None else 0
        wanted = ContainerRow(
            uuid=live.uuid,
            name="auto",
            created_at=now,
            last_active_at=now,
            expires_at=now + timedelta(seconds=min(policy.idle_s, policy.life_s)),
            idle_s=policy.idle_s,
            memory_bytes=grant.memory_bytes,
            owner=self._owner,
            epoch=had,
            project_id=project_id,
        )
        row = await rows.take(
            self._database,
            live.tenant_id,
            wanted,
            life_s=policy.life_s,
            containers_max=grant.containers_max,
        )
        if row is None:
            await live.end()
            raise ContainerExpired
        if live.container is not None and row.epoch != had:
            # Another process took it over: its variables are there, or are lost.
            await live.leave()
        live.epoch = row.epoch
        return row

    async def _begin(self, live: LiveContainer, row: ContainerRow, *, opens: bool) -> None:
        # Attaches to the interpreter that the row names, or opens another one.
        engine = self._chosen.engine
        assert engine is not None, "it was looked at"
        if row.engine == engine.name and row.handle is not None:
            live.container = await engine.attach(row.handle)
            if live.container is not None:
                await self._assume(live)
        live.is_restarted = live.container is None and row.epoch > 1
        if live.container is None and opens:
            live.container = await self._open(row.memory_bytes)
        if live.container is not None:
            handle = live.container.handle
            await rows.opened(
                self._database, live.tenant_id, row, engine=engine.name, handle=handle
            )

    async def _assume(self, live: LiveContainer) -> None:
        # A container that was taken over has its code's files in it, or newer ones; files from
        # users may have been stored since its last use.
        count = self.policy.files.container_files_max
        stored = await files.of_container(
            self._database, live.tenant_id, live.uuid, files_max=count
        )
        live.held = {row.name: row for row in stored if row.source == "assistant"}

    async def _open(self, memory_bytes: int) -> Container:
        engine, limits = self._chosen.engine, self.policy.limits
        assert engine is not None, "it was looked at"
        if memory_bytes != limits.memory_bytes:
            return await engine.open(replace(limits, memory_bytes=memory_bytes))
        while self._warm:
            container = self._warm.popleft()
            try:
                await container.remove(_NO_FILE)
            except EngineBroken:  # it ended while it waited
                await container.close()
            except BaseException:
                await container.close()
                raise
            else:
                return container
        return await engine.open(limits)

    async def _refill(self) -> None:
        engine = self._chosen.engine
        while engine is not None and len(self._warm) < self.policy.warm_max:
            container = await engine.open(self.policy.limits)
            try:
                await container.run(_WARM_UP, timeout_s=_WARM_UP_TIMEOUT_S)
            except BaseException:
                await container.close()
                raise
            self._warm.append(container)

    async def _restore(self, live: LiveContainer, grant: PythonGrant) -> None:
        container = live.interpreter
        stored = await self._stored_files(live, grant)
        for path in live.held.keys() - stored.keys():
            # Code may have put a folder there, or let nothing be deleted.
            with suppress(FileRefused):
                await container.remove(path)
            del live.held[path]
        for path, row in stored.items():
            held = live.held.get(path)
            if held is not None and held.digest == row.digest:
                continue
            content = await read(self._database, live.tenant_id, row)
            if content is not None:
                with suppress(FileRefused):
                    await container.put(path, content)
                    live.held[path] = row

    async def _stored_files(self, live: LiveContainer, grant: PythonGrant) -> dict[str, FileRow]:
        # By path. Files that the grant names are copied into the container once.
        tenant_id, bounds = live.tenant_id, self.policy.files
        count = bounds.container_files_max
        stored = await files.of_container(self._database, tenant_id, live.uuid, files_max=count)
        by_path = {row.name: row for row in stored}
        wanted = set(filter(None, map(ids.parse_file_id, grant.file_ids))) - live.copied
        for uuid in wanted:
            source = await files.load(self._database, tenant_id, uuid, now=self.now())
            path = None if source is None else path_of_upload(source.name)
            if source is not None and path is not None and path not in by_path:
                row = container_file(live.uuid, path, source.size_bytes, source.digest, self.now())
                with suppress(RequestError):
                    kept = await files.copy(
                        self._database, tenant_id, row, copied=uuid, bounds=bounds
                    )
                    if kept is not None:
                        by_path[path] = kept
            live.copied.add(uuid)  # not if the database is away
        return by_path

    async def _keep_files(self, live: LiveContainer, ran: RunResult) -> Execution:
        kept: dict[str, str] = {}
        notes: list[str] = []
        images: tuple[Image, ...] = ()
        is_lost = True
        try:
            images = await self._images(live, ran.images, notes)
            # A container may report any number of names. Only files that it holds count.
            for name in live.held.keys() & set(ran.gone):
                gone = live.held.pop(name)
                await files.delete(
                    self._database, live.tenant_id, gone.uuid, container=live.uuid, by_code=True
                )
            count = self.policy.files.container_files_max
            paths = list(map(_own_path, ran.files[:count]))
            for path in filter(None, paths):
                await self._keep(live, path, kept, notes)
            if None in paths:
                notes.append("Files whose names are not of printable characters are not kept.")
            if len(ran.files) > count:
                notes.append(f"{len(ran.files) - count} more files are not kept: that is too many.")
            is_lost = False
        except EngineBroken:
            await live.end()
            notes.append(
                "The container ended behind the code: variables are gone, and files that it wrote "
                "may be lost."
            )
        except StoreError as error:
            _log.warning("files of a container could not be kept", error=error)
            notes.append("Files could not be stored: they are there only while the container is.")
        return Execution(ran, live.is_restarted, images, kept, tuple(notes), is_lost)

    async def _keep(
        self, live: LiveContainer, path: str, kept: dict[str, str], notes: list[str]
    ) -> None:
        try:
            content = await live.interpreter.get(path, bytes_max=self.policy.file_bytes_max)
            # A tenth of a second for the longest file.
            digest = (await asyncio.to_thread(hashlib.sha256, content)).digest()
            row = container_file(live.uuid, path, len(content), digest, self.now(), "assistant")
            chunks = (content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES))
            stored = await files.put(
                self._database, live.tenant_id, row, chunks, bounds=self.policy.files
            )
        except (FileRefused, RequestError) as error:
            notes.append(f"{path} is not kept: {error}")
            return
        if stored is not None:
            live.held[path] = stored
            kept[path] = ids.container_file_id(stored.uuid)

    async def _images(
        self, live: LiveContainer, paths: Sequence[str], notes: list[str]
    ) -> tuple[Image, ...]:
        # Paths that are no images are left out.
        images: list[Image] = []
        room = self.policy.image_bytes_inline_max
        for path in filter(None, map(_own_path, paths[:IMAGES_MAX])):
            image = await _image(live, path)
            if image is not None and len(image.content) > room:
                kept: dict[str, str] = {}
                await self._keep(live, path, kept, notes)
                image = replace(image, file_id=kept[path]) if kept else None
            elif image is not None:
                room -= len(image.content)
            if image is not None:
                images.append(image)
        return tuple(images)


async def _image(live: LiveContainer, path: str) -> Image | None:
    try:
        content = await live.interpreter.get(path, bytes_max=IMAGE_BYTES_MAX)
    except FileRefused:
        return None
    kinds = [kind for magic, kind in IMAGE_KINDS.items() if content.startswith(magic)]
    return Image(path, kinds[0], content) if kinds else None


async def read(database: Database, tenant_id: TenantId, row: FileRow) -> bytes | None:
    """Read a file; None: it was replaced or deleted meanwhile."""
    content = bytearray()
    for number in range(files.chunk_count(row.size_bytes)):
        part = await files.chunk(database, tenant_id, row, number)
        if part is None:
            return None
        content += part
    return bytes(content)


def container_file(
    container: UUID,
    path: str,
    size_bytes: int,
    digest: bytes,
    now: datetime,
    source: files.Source = "user",
) -> FileRow:
    return FileRow(
        uuid=ids.new_uuid(),
        container=container,
        name=path,
        purpose=None,
        source=source,
        size_bytes=size_bytes,
        digest=digest,
        created_at=now,
    )


def path_of_upload(name: str) -> str | None:
    return _own_path(name.replace("\\", "/").rpartition("/")[2])


def _own_path(path: str) -> str | None:
    try:
        return data_path(path)
    except ValueError:
        return None
