"""How long the way of a request is: functions, files and switches between packages, for any commit.

`python -m tests.load.path [COMMIT ...]` runs the gateway of each commit (default: of the working
tree) in front of a simulated backend and counts, with `sys.setprofile`, the functions below
`gateway/` that one request calls. What an idle gateway calls as well is left out, and so is the
work that tasks repeat at intervals. Every request is made twice before it is counted, so that
nothing is done for the first time; nor is its key looked up again meanwhile, which a task of its
own does every few seconds. A switch is a call of a function of another package than that of the
call before it; a single module of `gateway/` is a package of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx2

from gateway.devdb.embedded import EmbeddedPostgres
from tests.fakes.gateway import PEPPER
from tests.fakes.simulator import simulator_process
from tests.load import processes
from tests.load.peers import free_port
from tests.load.profiled import SENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.load.processes import Child

MODEL: Final = "gpt-oss-120b"
TOKENS_PER_S: Final = 50.0
"""Slow enough that each token is a network read of its own."""
IDLE_S: Final = 3.0
SETTLED_S: Final = 0.5
"""After the last byte of an answer something may still be written: this long is waited for it."""
WARM_UPS: Final = 2
KEY_CACHE_TTL_S: Final = 600.0
_ASKED: Final = {"model": MODEL, "input": "Say hello to the reader of this code.", "stream": True}
_RESEARCH: Final = "lamp [[sim steps=search lamp; cite]]"
_PROFILED: Final = Path(__file__).with_name("profiled.py")


@dataclass(frozen=True, slots=True)
class Noted:
    """What was called: each function as file, line and name, and the calls in their order."""

    calls: list[tuple[str, int, str]]
    order: list[int]

    def functions(self) -> set[tuple[str, int, str]]:
        return {self.calls[number] for number in self.order if number != SENT}

    def without(self, idle: set[tuple[str, int, str]]) -> Noted:
        kept = [one for one in self.order if one == SENT or self.calls[one] not in idle]
        return Noted(self.calls, kept)

    def until_sent(self) -> Noted:
        """Up to the first bytes that go to the backend."""
        return Noted(self.calls, self.order[: self.order.index(SENT)])

    def figures(self) -> tuple[int, int, int]:
        """Functions, files, switches between packages."""
        files = {file for file, _, _ in self.functions()}
        packages = [_package(self.calls[one][0]) for one in self.order if one != SENT]
        pairs = itertools.pairwise(packages)
        return len(self.functions()), len(files), sum(one != other for one, other in pairs)


class Profiled:
    """A gateway whose calls are noted, a key for it, and one for its admin API at `admin_port`."""

    def __init__(
        self, child: Child, key: str, noted: Path, *, admin_port: int, admin_key: str
    ) -> None:
        self._child = child
        self._noted = noted
        self._client = _client(child.port, key)
        self._admin = _client(admin_port, admin_key)

    def idle(self) -> set[tuple[str, int, str]]:
        """The functions that are called while nobody asks anything."""
        return self._note(lambda: time.sleep(IDLE_S)).functions()

    def create(self, **fields: Any) -> Noted:
        """A streamed create, read to its end."""
        return self._warm(lambda: self._read("POST", "/v1/responses", json={**_ASKED, **fields}))

    def resume(self) -> Noted:
        """The events of a stored stream behind its third."""
        begun = self._read("POST", "/v1/responses", json={**_ASKED, "background": True})
        created = next(line for line in begun.splitlines() if line.startswith("data: "))
        path = f"/v1/responses/{json.loads(created[6:])['response']['id']}"
        params = {"stream": "true", "starting_after": 2}
        return self._warm(lambda: self._read("GET", path, params=params))

    def search(self) -> Noted:
        """A streamed create with a search of the local index between its two turns."""
        return self.create(input=_RESEARCH, tools=[{"type": "web_search"}])

    def create_project(self) -> Noted:
        return self._warm(self._create_project)

    def _create_project(self) -> None:
        path = "/v1/organization/projects"
        self._admin.post(path, json={"name": "of the path"}).raise_for_status()

    def close(self) -> None:
        self._client.close()
        self._admin.close()

    def _warm(self, ask: Callable[[], object]) -> Noted:
        for _ in range(WARM_UPS):
            ask()
        time.sleep(SETTLED_S)
        return self._note(ask)

    def _note(self, ask: Callable[[], object]) -> Noted:
        self._noted.unlink(missing_ok=True)
        os.kill(self._child.pid, signal.SIGUSR1)
        ask()
        time.sleep(SETTLED_S)
        os.kill(self._child.pid, signal.SIGUSR2)
        deadline = time.monotonic() + processes.STOP_TIMEOUT_S
        while not self._noted.exists():
            if time.monotonic() > deadline:
                raise processes.RunVoid("the gateway did not say what it called")
            time.sleep(processes.POLL_INTERVAL_S)
        noted = json.loads(self._noted.read_text())
        return Noted([tuple(one) for one in noted["calls"]], noted["order"])

    def _read(self, method: str, path: str, **fields: Any) -> str:
        answer = self._client.request(method, path, **fields)
        answer.raise_for_status()
        return answer.text


def measure(tree: Path) -> dict[str, Noted]:
    """The ways of the requests through the gateway of a checkout. Raises `RunVoid`."""
    with profiled(tree) as gateway:
        gateway.create()
        idle = gateway.idle()
        create = gateway.create().without(idle)
        return {
            "POST stream, stored": create,
            "... until the backend is asked": create.until_sent(),
            "POST background + stream": gateway.create(background=True).without(idle),
            "GET with starting_after": gateway.resume().without(idle),
            "POST stream with a web search": gateway.search().without(idle),
            "POST /v1/organization/projects": gateway.create_project().without(idle),
        }


@contextmanager
def profiled(tree: Path) -> Iterator[Profiled]:
    """The gateway of a checkout, with PostgreSQL and a backend of the working tree."""
    with (
        processes.passable_folder() as folder,
        EmbeddedPostgres(folder / "data") as postgres,
        simulator_process(models=(MODEL,), tokens_per_s=TOKENS_PER_S) as backend,
    ):
        config = folder / "gateway.yaml"
        admin_port = free_port()
        settings = {
            "backends": [{"name": "b", "url": backend.url}],
            "admin": {"port": admin_port},
            "tools": {"web": {"enabled": True}},
        }
        config.write_text(json.dumps(settings))
        page = folder / "lamp.txt"
        page.write_text("A lamp gives light.")
        environ = {
            **{name: value for name, value in os.environ.items() if "GATEWAY_" not in name},
            "GATEWAY_CONFIG": str(config),
            "GATEWAY_AUTH__KEY_PEPPER": PEPPER,
            "GATEWAY_AUTH__KEY_CACHE_TTL_S": str(KEY_CACHE_TTL_S),
            "DATABASE_URL": postgres.url,
        }
        for command in (
            ["db", "upgrade"],
            ["tenants", "create", "path"],
            ["tenants", "set", "path", "--web-search", "allowed"],
            ["pages", "add", str(page)],
        ):
            _told(tree, environ, *command)
        key, admin_key = (
            json.loads(_told(tree, environ, "keys", "create", "path", "--json", *more))["key"]
            for more in ([], ["--admin"])
        )
        noted = folder / "noted.json"
        arguments = [sys.executable, str(_PROFILED), str(noted), str(backend.port)]
        arguments += ["serve", "--port", "0"]
        log = folder / "gateway.log"
        with processes.server(arguments, log, environ, folder=tree) as child:
            gateway = Profiled(child, key, noted, admin_port=admin_port, admin_key=admin_key)
            try:
                yield gateway
            finally:
                gateway.close()


def _client(port: int, key: str) -> httpx2.Client:
    headers = {"authorization": f"Bearer {key}"}
    return httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60)


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A commit's files in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="gateway-path-") as name:
        tree = Path(name) / "tree"
        tree.mkdir()
        archive = subprocess.Popen(
            ["git", "archive", commit], cwd=processes.ROOT, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "-x", "-C", str(tree)], stdin=archive.stdout, check=True)
        if archive.wait():
            raise processes.RunVoid(f"git archive {commit} failed")
        yield tree


def main(arguments: list[str] | None = None) -> int:
    """Print the table. Exit code 1: something did not start."""
    parser = argparse.ArgumentParser(prog="python -m tests.load.path", description=__doc__)
    parser.add_argument("commits", nargs="*", help="default: the working tree")
    parser.add_argument("--list", action="store_true", help="print the functions of each way too")
    options = parser.parse_args(arguments)
    try:
        for commit in options.commits:
            with checkout(commit) as tree:
                _show(commit, measure(tree), with_functions=options.list)
        if not options.commits:
            _show("working tree", measure(processes.ROOT), with_functions=options.list)
    except processes.RunVoid as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _show(title: str, ways: dict[str, Noted], *, with_functions: bool) -> None:
    print(f"{title}: functions / files / switches between packages")
    for name, noted in ways.items():
        functions, files, switches = noted.figures()
        print(f"  {name:<32} {functions:>5} / {files:>4} / {switches:>5}", flush=True)
        if with_functions:
            for file, line, function in sorted(noted.functions()):
                print(f"    {file}:{line} {function}")


def _told(tree: Path, environ: dict[str, str], *arguments: str) -> str:
    """What a command of the checkout prints."""
    command = [sys.executable, "-m", "gateway", *arguments]
    done = subprocess.run(
        command, cwd=tree, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise processes.RunVoid(f"{' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def _package(file: str) -> str:
    return file.split(os.sep, 1)[0]


if __name__ == "__main__":
    sys.exit(main())
