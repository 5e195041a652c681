"""What is measured and what that needs: backend, PostgreSQL, the gateway, and proxies of others."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import sys
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gateway.devdb.embedded import EmbeddedPostgres, Postmaster
from gateway.models.harmony.tokenizer import Vocabulary
from gateway.store.migration.migrate import upgrade
from tests.fakes.gateway import PEPPER, gateway_settings, new_key
from tests.load import peers, processes
from tests.load.marks import shared_marks
from tests.load.processes import RunVoid
from tests.load.systems import SYSTEMS
from tests.load.tape import write_tape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.load.marks import Marks
    from tests.load.processes import Child
    from tests.load.programs import Programs
    from tests.load.systems import Program, System

_AT_ONCE: Final = 4096
_ROOM: Final[dict[str, Any]] = {
    "limits": {"responses_in_flight_max": _AT_ONCE},
    "background": {
        "running_max": _AT_ONCE,
        "tenant_running_max": _AT_ONCE,
        "tenant_queued_max": _AT_ONCE,
    },
}
"""A single tenant asks for everything here, so its share is all there is."""
_INFO: Final = re.compile(r'"level": ?"info"')


@dataclass(slots=True)
class Stack:
    """Everything that runs. A program is started when it is first asked for, and then kept.

    `offered` names the systems to compare: those that were asked for and are installed. `key` is
    of the gateway's only tenant.
    """

    folder: Path
    programs: Programs
    tape: Path
    marks: Marks
    backend: Child
    database_url: str
    database_pid: int
    key: str
    offered: Sequence[str]
    _running: dict[Program, Child] = field(default_factory=dict)
    _ending: ExitStack = field(default_factory=ExitStack)
    _logs: dict[Program, Path] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def child(self, system: System) -> Child:
        """The process of a system. Raises `RunVoid` when it does not start."""
        program = system.program
        if program not in self._running:
            child = self._ending.enter_context(self.fresh(program))
            print(f"{program} is process {child.pid}", flush=True)
            self._running[program] = child
        return self._running[program]

    def fresh(
        self,
        program: Program,
        *,
        module: str = "gateway",
        environ: Mapping[str, str] | None = None,
        **config: Any,
    ) -> AbstractContextManager[Child]:
        """A new process of a program, beside any that runs. Of a gateway: `module` is run with
        these variables, and `config` are sections of its settings file. Raises `RunVoid` when it
        does not start."""
        folder = self.new_path(program)
        folder.mkdir()
        if program == "backend":
            return replaying(folder, self.programs, self.tape, self.marks)
        if program == "gateway":
            self._logs[program] = folder / "gateway.log"
            return self._gateway(folder, module, environ or {}, config)
        start = {
            "nginx": peers.nginx,
            "sglang-router": peers.sglang_router,
            "litellm": peers.litellm,
        }[program]
        return start(folder, self.backend, self.key)

    def database_pids(self, system: System) -> list[int]:
        """PostgreSQL's, when it works for this system too."""
        return [self.database_pid] if system.program == "gateway" else []

    def complaints(self, system: System) -> str:
        """What the newest process of the gateway logged, ordinary things left out."""
        log = self._logs.get(system.program)
        if log is None:
            return ""
        lines = log.read_text("utf-8", "replace").splitlines()
        said = "\n".join(line for line in lines if not _INFO.search(line))
        return f"Complaints of {system.program}:\n{said[-processes.LOG_CHARS_SHOWN :] or 'none'}"

    def new_path(self, name: str) -> Path:
        """Where there is nothing yet, in the run's folder."""
        return self.folder / f"{next(self._numbers)}-{name}"

    def close(self) -> None:
        """End what was started on demand."""
        self._ending.close()

    @contextmanager
    def _gateway(
        self, folder: Path, module: str, more: Mapping[str, str], config: dict[str, Any]
    ) -> Iterator[Child]:
        """`serve` with every setting at its default but where things are, and `_ROOM`."""
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("GATEWAY_") and name not in {"DATABASE_URL", "PORT"}
        }
        file = folder / "gateway.yaml"
        backends = [{"name": "backend", "url": f"http://127.0.0.1:{self.backend.port}"}]
        file.write_text(json.dumps({"backends": backends, **_ROOM, **config}))
        environ |= {
            "GATEWAY_CONFIG": str(file),
            "GATEWAY_AUTH__KEY_PEPPER": PEPPER,
            "DATABASE_URL": self.database_url,
            **more,
        }
        arguments = [sys.executable, "-m", module, "serve", "--port", "0"]
        with processes.server(arguments, folder / "gateway.log", environ) as child:
            yield child


@contextmanager
def running_stack(programs: Programs, wanted: Sequence[str]) -> Iterator[Stack]:
    """Start the backend and PostgreSQL, the others on demand; end all of it by process id.

    PostgreSQL has all its durability. Its data is in a temporary folder, TMPDIR says where.
    Raises `RunVoid`.
    """
    with (
        processes.passable_folder() as folder,
        shared_marks() as marks,
        EmbeddedPostgres(folder / "data") as postgres,
    ):
        tape = folder / "tape"
        tape.write_bytes(write_tape(Vocabulary.load()))
        with replaying(folder, programs, tape, marks) as backend:
            asyncio.run(upgrade(postgres.url))
            settings = gateway_settings(postgres.url, [f"http://127.0.0.1:{backend.port}"])
            stack = Stack(
                folder=folder,
                programs=programs,
                tape=tape,
                marks=marks,
                backend=backend,
                database_url=postgres.url,
                database_pid=_postmaster(folder / "data" / "cluster"),
                key=asyncio.run(new_key(settings, "load")),
                offered=[name for name in wanted if is_installed(SYSTEMS[name])],
            )
            stack._running["backend"] = backend
            try:
                yield stack
            finally:
                stack.close()


@contextmanager
def replaying(folder: Path, programs: Programs, tape: Path, marks: Marks) -> Iterator[Child]:
    """A backend that replays the tape."""
    arguments = [str(programs.backend), "--port", "0", "--tape", str(tape), *marks.arguments]
    with processes.server(arguments, folder / "backend.log", os.environ) as child:
        yield child


def is_installed(system: System) -> bool:
    """Whether a system can be measured here; ours always can."""
    return system.program in {"backend", "gateway"} or peers.program(system.program) is not None


def _postmaster(cluster: Path) -> int:
    postmaster = Postmaster.read(cluster)
    if postmaster is None:
        raise RunVoid("the database is gone")
    return postmaster.pid
