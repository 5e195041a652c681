"""Replicas are replaced by those of the release before, one after the other, under load."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import subprocess
import tarfile
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from typing_extensions import override

from tests.deploy.engines import IMAGE, IMAGE_BEFORE, REPLICAS, ROOT
from tests.fakes.http_client import http_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.deploy.conftest import Deployment
    from tests.deploy.engines import Engine

pytestmark = pytest.mark.deploy

STREAMS = 200
BACKGROUND_EACH = 4
"""One of so many clients has responses in the background, and resumes their streams."""
FIFTEEN_SECONDS = "[[sim tokens_per_s=4 tokens=60 think=none]] go"
PATIENCE_S = 120.0
COMPLAINTS_MAX = 50
Json = dict[str, Any]


@dataclass
class Load:
    """What clients saw, which ask for streams one after the other until `over` is set."""

    client: httpx2.AsyncClient
    over: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    streams: int = 0
    resumed: int = 0
    failures: list[str] = field(default_factory=list)

    async def ask(self, *, background: bool) -> None:
        """Be one client."""
        while not self.over.is_set():
            try:
                events = await self._stream(background=background)
            except (httpx2.TransportError, Refused) as error:
                self.failures.append(repr(error))
                continue
            numbers = [event["sequence_number"] for event in events]
            if numbers != list(range(len(events))):
                self.failures.append(f"numbers of events: {numbers}")
            elif events[-1]["type"] != "response.completed":
                self.failures.append(f"the last event: {events[-1]}")
            self.streams += 1

    async def _stream(self, *, background: bool) -> list[Json]:
        body = {"model": "gpt-oss-120b", "input": FIFTEEN_SECONDS, "background": background}
        events: list[Json] = []
        request = self.client.build_request("POST", "/v1/responses", json=body | {"stream": True})
        async for event in self._events(request):
            if not events:
                self.begun.release()
            events.append(event)
        if not events:
            raise Refused("a stream without an event")
        while background and events[-1]["type"] != "response.completed":
            self.resumed += 1
            path = f"/v1/responses/{events[0]['response']['id']}"
            after = {"stream": "true", "starting_after": str(events[-1]["sequence_number"])}
            request = self.client.build_request("GET", path, params=after)
            events += [event async for event in self._events(request)]
        return events

    async def _events(self, request: httpx2.Request) -> AsyncIterator[Json]:
        answer = await self.client.send(request, stream=True)
        try:
            if answer.status_code != 200:
                raise Refused(f"{answer.status_code} {(await answer.aread()).decode()}")
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))
        finally:
            await answer.aclose()


class Refused(Exception):
    """An answer that is no stream."""


LATEST = "--max-count=20"
"""Of the commits that touch what makes the schema."""
SCHEMA = ("migrations/versions", "gateway/store/tables")


def git(*arguments: str) -> bytes:
    command = ["git", "-C", str(ROOT), *arguments]
    result = subprocess.run(command, capture_output=True, check=False)
    if result.returncode != 0:
        pytest.skip(f"no earlier commit: {result.stderr.decode()}")
    return result.stdout


def release_before() -> str:
    """The newest tag. Before there is one: the first commit with the tables of this one.

    There is no migration between two schemas yet.
    """
    (*_, newest) = ["", *git("tag", "--merged", "HEAD~1", "--sort=version:refname").split()]
    if newest:
        return newest.decode()
    wanted = tables("HEAD")
    touching = git("log", LATEST, "--format=%H", "HEAD", "--", *SCHEMA).decode().split()
    (*_, first) = ["HEAD", *(commit for commit in touching if tables(commit) == wanted)]
    commits = int(git("rev-list", "--count", f"{first}..HEAD"))
    changed = git("diff", "--shortstat", first, "HEAD", "--", "gateway").decode().strip()
    if not changed:
        pytest.skip("the tables have changed with this commit: none before it has the same schema")
    print(f"from {first[:8]}, {commits} commits before: {changed}")
    return first


def tables(commit: str) -> list[str]:
    """What makes the schema at a commit, without what is said of it."""
    paths = git("ls-tree", "-r", "--name-only", commit, "--", *SCHEMA).decode().split()
    trees = [ast.parse(git("show", f"{commit}:{path}")) for path in paths]
    return [ast.dump(WithoutWords().visit(tree)) for tree in trees]


class WithoutWords(ast.NodeTransformer):
    """Leaves docstrings out."""

    @override
    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else node


def unpack(commit: str, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as tree:
        tree.extractall(folder, filter="data")


def replace(engine: Engine, image: str) -> list[str]:
    """Have both replicas run this image; returns what those before it complained of."""
    engine.use(image)
    complained = []
    for replica in REPLICAS:
        complained += complaints(engine, replica)
        engine.replace(replica)
    wanted = engine.command("image", "inspect", "--format", "{{.Id}}", image).strip()
    assert [engine.inspect(replica)["Image"] for replica in REPLICAS] == [wanted, wanted]
    return complained


def complaints(engine: Engine, replica: str) -> list[str]:
    """The last that it logged beside what is usual."""
    lines = engine.logs(replica).splitlines()
    return [line for line in lines if '"info"' not in line][-COMPLAINTS_MAX:]


async def test_replicas_are_replaced_under_load_and_no_stream_fails(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Back to the release before, and on to this one."""
    engine = deployment.engine
    unpack(release_before(), tmp_path)
    await asyncio.to_thread(engine.build, tmp_path, IMAGE_BEFORE)
    limits = httpx2.Limits(max_connections=2 * STREAMS)
    headers = {"authorization": f"Bearer {deployment.key}"}
    async with http_client(
        deployment.url, headers=headers, timeout=PATIENCE_S, limits=limits, trust_env=False
    ) as client:
        load, complained = Load(client), list[str]()
        async with asyncio.TaskGroup() as group:
            for number in range(STREAMS):
                group.create_task(load.ask(background=number % BACKGROUND_EACH == 0))
            for _ in range(STREAMS):
                await load.begun.acquire()
            try:
                for image in (IMAGE_BEFORE, IMAGE):
                    complained += await asyncio.to_thread(replace, engine, image)
            finally:
                engine.use(IMAGE)
                load.over.set()
    print(f"{load.streams} streams, {load.resumed} resumed, {len(load.failures)} failed")
    print(*Counter(load.failures).most_common(5), sep="\n")
    for replica in REPLICAS:
        complained += complaints(engine, replica)
    print(*complained, sep="\n")
    assert load.failures == []
    assert load.resumed > 0
