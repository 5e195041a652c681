"""Real containers on this machine, where bubblewrap and a system interpreter are there."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import uvloop

from gateway.tools.python import worker_process
from gateway.tools.python.container_engine import (
    ContainerLimits,
    EngineBroken,
    FileRefused,
    data_path,
)
from gateway.tools.python.linux import (
    Cgroups,
    Interpreter,
    LinuxEngine,
    LinuxOptions,
    command,
    seccomp_filter,
)
from gateway.tools.python.self_test import ATTACKS, DENIED, allowed_attacks, choose, script
from gateway.tools.python.worker import FILES_MAX
from tests.fakes.cases import each
from tests.fakes.python_containers import ENGINES, HAS_BUBBLEWRAP, SYSTEM_PYTHON

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from gateway.tools.python.worker_process import WorkerContainer

ROOT = Path(__file__).parents[3]
FORGED = "import os\nfor fd in range(3, 20):\n    try: os.write(fd, {!r})\n    except OSError: pass"
"""Code that speaks for its worker."""
ENDLESS_ERROR = """class Endless(Exception):
    @property
    def __notes__(self):
        while True: pass
raise Endless"""
"""Code whose error takes for ever to print."""
PARTIAL = {"monty"}
"""Engines without all that CPython has on a machine: what they lack raises."""
pytestmark = pytest.mark.skipif(
    not HAS_BUBBLEWRAP, reason="bubblewrap and /usr/bin/python3 are not both here"
)


def engine(**options: Any) -> LinuxEngine:
    return LinuxEngine(LinuxOptions(interpreter=SYSTEM_PYTHON, **options))


@asynccontextmanager
async def container(
    limits: ContainerLimits | None = None, **options: Any
) -> AsyncIterator[WorkerContainer]:
    started = await engine(**options).open(limits or ContainerLimits())
    try:
        yield started
    finally:
        await started.close()


async def test_every_attack_is_denied() -> None:
    async with container() as python:
        for attack in ATTACKS:
            ran = await python.run(script(attack), timeout_s=30)
            assert (attack, ran.output.strip()) == (attack, DENIED)


async def test_names_survive_and_the_last_value_is_shown() -> None:
    async with container() as python:
        assert (
            await python.run("x = 41\nprint('said')\nx + 1", timeout_s=30)
        ).output == "said\n42\n"
        failed = await python.run("x\n1 / 0", timeout_s=30)
        assert failed.status == "error"
        assert 'File "<cell 2>", line 2' in failed.output
        assert "ZeroDivisionError" in failed.output
        assert "worker.py" not in failed.output
        assert (await python.run("x", timeout_s=30)).output == "41\n"


async def test_streams_keep_their_order_whoever_writes() -> None:
    code = (
        "import os, sys\nprint('a'); print('b', file=sys.stderr); os.write(1, b'c\\n')\n"
        "import subprocess; subprocess.run(['/proc/self/exe', '-c', 'print(\"d\")'])\nprint('e')"
    )
    async with container() as python:
        assert (await python.run(code, timeout_s=30)).output == "a\nb\nc\nd\ne\n"


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("import sys; sys.stderr.close()\n1 / 0", "ZeroDivisionError: division by zero"),
        ("import sys; sys.stderr = 1\n1 / 0", "ZeroDivisionError: division by zero"),
        ("class Odd(Exception):\n    __notes__ = property(lambda _: 1 / 0)\nraise Odd", "abc Odd"),
    ],
)
async def test_an_error_that_cannot_be_printed_does_not_end_the_container(
    code: str, shown: str
) -> None:
    async with container() as python:
        await python.run("x = 1", timeout_s=30)
        ran = await python.run(f"print('abc', end=' ')\n{code}", timeout_s=30)
        assert ran.status == "error"
        assert ran.output.startswith("abc ")
        assert ran.output.splitlines()[-1] == shown
        assert (await python.run("x", timeout_s=30)).output == "1\n"


async def test_output_is_bounded_and_counted() -> None:
    async with container() as python:
        ran = await python.run("print('x' * (3 << 20))", timeout_s=30)
        assert len(ran.output) == 1 << 20
        assert ran.dropped == (2 << 20) + 1


async def test_files_that_changed_are_told() -> None:
    async with container() as python:
        ran = await python.run("open('a.csv', 'w').write('1')\nopen('.hidden', 'w')", timeout_s=30)
        assert ran.files == ("/mnt/data/a.csv",)
        assert (await python.run("1", timeout_s=30)).files == ()


async def test_a_file_is_gone_only_if_it_does_not_exist() -> None:
    many = f"for n in range({FILES_MAX + 100}): open(str(n), 'w').close()"
    async with container() as python:
        for name in (".env", "data.csv"):
            await python.put(f"/mnt/data/{name}", b"1")
        ran = await python.run(many, timeout_s=30)
        assert (len(ran.files), ran.gone) == (FILES_MAX, ())
        ran = await python.run("import os\nos.remove('.env')\nopen('data.csv', 'w')", timeout_s=30)
        assert "/mnt/data/data.csv" in ran.files
        assert ran.gone == ("/mnt/data/.env",)


async def test_a_file_whose_name_is_no_text_does_not_end_the_container() -> None:
    async with container() as python:
        ran = await python.run("open(b'caf\\xe9', 'w').close()", timeout_s=30)
        assert ran.files == ("/mnt/data/caf?",)
        with pytest.raises(FileRefused):
            await python.get("/mnt/data/caf?", bytes_max=1)


async def test_code_that_takes_too_long_is_interrupted() -> None:
    async with container() as python:
        for endless in ("while True: pass", "import time; time.sleep(3600)", ENDLESS_ERROR):
            assert (await python.run(f"y = 5\n{endless}", timeout_s=0.2)).status == "interrupted"
        assert (await python.run("y", timeout_s=30)).output == "5\n"


async def test_code_that_does_not_end_is_killed_with_its_container() -> None:
    stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    async with container() as python:
        assert (await python.run(stubborn, timeout_s=0.2)).status == "killed"
        with pytest.raises(EngineBroken, match="gone"):
            await python.run("1", timeout_s=30)


@pytest.mark.parametrize(
    "code",
    [
        "import os; os._exit(1)",
        FORGED.format(b"\xff" * 64),
        FORGED.format(b"\0\0\0\2[]"),
        # Frames without end would take all time of the process that reads them.
        "while True:\n " + FORGED.format(b'\0\0\0\x0e{"printed": 1}').replace("\n", "\n "),
    ],
)
async def test_worker_that_lies_or_ends_is_no_longer_used(code: str) -> None:
    async with container() as python:
        with pytest.raises(EngineBroken):
            await python.run(code, timeout_s=30)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_worker_that_does_not_listen_is_ended(
    monkeypatch: pytest.MonkeyPatch, *, is_cancelled: bool
) -> None:
    deaf = "import __main__, threading\n__main__.Frames.read = lambda _: threading.Event().wait()"
    async with container() as python:
        for code in (deaf, "1"):
            await python.run(code, timeout_s=30)
        monkeypatch.setattr(worker_process, "FILE_TIMEOUT_S", 30 if is_cancelled else 0.1)
        putting = asyncio.create_task(python.put("/mnt/data/a", bytes(1 << 20)))
        if is_cancelled:
            await asyncio.wait([putting], timeout=0.1)
            putting.cancel()
        with pytest.raises(asyncio.CancelledError if is_cancelled else EngineBroken):
            await putting
        assert not python.is_alive


async def test_container_whose_close_is_cancelled_leaves_nothing_open() -> None:
    python = await engine().open(ContainerLimits())
    closed: list[str] = []
    python.on_closed.append(lambda: closed.append("user id, control group"))
    closing = asyncio.create_task(python.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert closed


@pytest.mark.slow
async def test_files_go_in_and_out() -> None:
    async with container() as python:
        content = os.urandom(7 << 20)
        await python.put("/mnt/data/in/it.bin", content)
        code = "open('out', 'wb').write(open('in/it.bin', 'rb').read()[::-1])"
        assert (await python.run(code, timeout_s=30)).files == ("/mnt/data/out",)
        assert await python.get("/mnt/data/out", bytes_max=7 << 20) == content[::-1]
        with pytest.raises(FileRefused, match="longer"):
            await python.get("/mnt/data/out", bytes_max=(7 << 20) - 1)
        await python.put("/mnt/data/in/it.bin", b"")
        assert await python.get("/mnt/data/in/it.bin", bytes_max=1) == b""
        for path in ("/mnt/data/missing", "/mnt/data/in"):
            with pytest.raises(FileRefused):
                await python.get(path, bytes_max=10)
        await python.run(
            "import os; os.symlink('/proc/self/environ', 'link'); os.mkfifo('f')", timeout_s=30
        )
        with pytest.raises(FileRefused):
            await python.get("/mnt/data/link", bytes_max=10_000)
        # A pipe without a writer must not keep anybody waiting.
        with pytest.raises(FileRefused):
            await python.get("/mnt/data/f", bytes_max=10_000)
        await python.remove("/mnt/data/out")
        await python.remove("/mnt/data/out")
        ran = await python.run("import os; os.remove('in/it.bin'); os.listdir('.')", timeout_s=30)
        assert "out" not in ran.output
        assert ran.gone == ("/mnt/data/in/it.bin",)


async def test_a_full_container_refuses_files() -> None:
    async with container(ContainerLimits(data_bytes=1 << 20)) as python:
        with pytest.raises(FileRefused):
            await python.put("/mnt/data/large", bytes(2 << 20))
        assert (await python.run("1", timeout_s=30)).output == "1\n"


async def test_a_run_whose_caller_is_gone_is_interrupted() -> None:
    async with container() as python:
        loop = asyncio.get_running_loop()
        run = loop.create_task(python.run("x = 1\nwhile True: pass", timeout_s=60, key="k"))
        asked = loop.create_task(python.result_of("k", timeout_s=60))
        await asyncio.wait({asked}, timeout=0.3)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert await asked is None
        assert (await python.run("x", timeout_s=30)).output == "1\n"


async def test_results_of_runs_with_keys_are_kept() -> None:
    async with container() as python:
        ran = await python.run("print('once')", timeout_s=30, key="a")
        assert await python.result_of("a", timeout_s=0) == ran
        assert await python.result_of("b", timeout_s=0) is None
        for number in range(8):
            await python.run("1", timeout_s=30, key=str(number))
        assert await python.result_of("a", timeout_s=0) is None


async def test_containers_have_users_of_their_own() -> None:
    if os.getuid() != 0:
        pytest.skip("only root gives containers users of their own")
    few = engine(uids=range(61_000, 61_002))
    one, two = await few.open(ContainerLimits()), await few.open(ContainerLimits())
    users = {os.stat(f"/proc/{each.pid}").st_uid for each in (one, two)}
    assert users == {61_000, 61_001}
    with pytest.raises(EngineBroken, match="in use"):
        await few.open(ContainerLimits())
    await one.close()
    await (await few.open(ContainerLimits())).close()
    await two.close()
    with pytest.raises(EngineBroken, match="in use"):
        await engine(uids=range(1)).open(ContainerLimits())


async def test_an_interpreter_that_is_missing_is_told() -> None:
    for options in (
        LinuxOptions(interpreter=Path("/no/such/python")),
        LinuxOptions(interpreter=Path("/bin/false")),
        LinuxOptions(interpreter=SYSTEM_PYTHON, bwrap="/no/such/bwrap"),
        LinuxOptions(interpreter=SYSTEM_PYTHON, bwrap="/bin/false"),
    ):
        with pytest.raises(EngineBroken):
            await LinuxEngine(options).open(ContainerLimits())


@pytest.mark.slow
async def test_an_engine_with_a_missing_wall_is_refused(tmp_path: Path) -> None:
    """A bubblewrap that leaves the network and the filter out, as a policy might."""
    leaky = tmp_path / "bwrap"
    leaky.write_text(
        "#!/bin/bash\nargs=()\nwhile (( $# )); do case $1 in\n"
        "--seccomp) shift;; --disable-userns) ;;\n"
        "--unshare-all) args+=(--unshare-pid --unshare-uts);;\n"
        '*) args+=("$1");; esac; shift; done\nexec bwrap "${args[@]}"\n'
    )
    leaky.chmod(0o755)
    for folder in (
        tmp_path,
        *takewhile(lambda one: one != Path(tempfile.gettempdir()), tmp_path.parents),
    ):
        folder.chmod(0o755)
    chosen = await choose([engine(bwrap=str(leaky)), ENGINES["linux"](), ENGINES["monty"]()])
    assert chosen.engine is not None
    assert chosen.engine.name == "linux"
    assert "open a network socket" in chosen.refused[0]
    assert "python runs in the engine linux: CPython 3" in str(chosen)
    none = await choose([engine(bwrap=str(leaky))])
    assert none.engine is None
    assert "python is off" in str(none)


ABANDONED = """
import asyncio, os, sys
from pathlib import Path
from gateway.tools.python.container_engine import ContainerLimits
from gateway.tools.python.linux import LinuxEngine, LinuxOptions

async def main():
    options = LinuxOptions(interpreter=Path(sys.argv[1]), runsc=sys.argv[2] or None)
    container = await LinuxEngine(options).open(ContainerLimits())
    loop = asyncio.get_running_loop()
    endless = loop.create_task(container.run("while True: pass", timeout_s=100))
    await asyncio.wait({endless}, timeout=0.2)
    print(container.pid, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ENGINES if name not in PARTIAL])
def test_nothing_outlives_a_process_that_is_killed(name: str) -> None:
    runsc = shutil.which("runsc") or "" if name == "gvisor" else ""
    words = [sys.executable, "-c", ABANDONED, str(SYSTEM_PYTHON), runsc]
    # It returns when nobody has the pipe any more.
    told = subprocess.run(words, stdout=subprocess.PIPE, timeout=60, check=False)
    assert told.returncode == -9
    first = psutil.Process(int(told.stdout)) if psutil.pid_exists(int(told.stdout)) else None
    if first is not None:
        first.wait(timeout=30)


@pytest.mark.parametrize("name", ENGINES)
def test_engines_work_on_the_loop_of_the_server(name: str) -> None:
    async def begin() -> str:
        engine = ENGINES[name]()
        container = await engine.open(ContainerLimits())
        ran = await container.run("print(6 * 7)", timeout_s=30)
        late = await container.run("while True: pass", timeout_s=0.2)
        assert late.status in {"interrupted", "killed"}
        await container.close()
        await engine.close()
        return ran.output

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(begin()) == "42\n"


async def test_no_attack_succeeds_in_any_engine() -> None:
    for name, make in ENGINES.items():
        one = make()
        assert await allowed_attacks(one, is_whole=name not in PARTIAL) == []
        await one.close()


def test_cgroups_of_version_2_are_written(tmp_path: Path) -> None:
    assert Cgroups.find(tmp_path) is None
    (tmp_path / "cgroup.controllers").write_text("memory pids cpu")
    groups = Cgroups.find(tmp_path)
    assert groups is not None
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        group = groups.enter("x", process.pid, ContainerLimits())
        (folder,) = group.folders
        assert (folder / "cgroup.procs").read_text() == str(process.pid)


async def test_memory_of_all_processes_is_bounded() -> None:
    groups = Cgroups.find()
    if groups is None:
        pytest.skip("no control group can be made here")
    code = (
        "import os, time\nfor _ in range(8):\n"
        "    if not os.fork():\n        b = b'x' * (60 << 20)\n        time.sleep(5)\n"
        "        os._exit(0)\n"
        "ends = [os.wait()[1] for _ in range(8)]\nany(ends)"
    )
    limits = ContainerLimits(memory_bytes=200 << 20)
    async with container(limits, cgroups=groups) as python:
        try:
            assert (await python.run(code, timeout_s=60)).output == "True\n"
        except EngineBroken:
            assert not python.is_alive, "the kernel chose the interpreter itself"


@each(
    ("name", "path"),
    [
        ("a.csv", "/mnt/data/a.csv"),
        ("/mnt/data/x/../y", "/mnt/data/y"),
        ("x/./y", "/mnt/data/x/y"),
        ("é" * 127, f"/mnt/data/{'é' * 127}"),
        *((bad, None) for bad in ("", "..", "../x", "/etc/passwd", "a\0b", "a\nb", "/mnt/data")),
        *((bad, None) for bad in ("/mnt/database", "a\\b", "x" * 513, "\u202ex")),
        *((bad, None) for bad in ("x" * 256, "é" * 128)),
    ],
)
def test_paths_stay_in_the_data_folder(name: str, path: str | None) -> None:
    if path is None:
        with pytest.raises(ValueError, match="expected"):
            data_path(name)
    else:
        assert data_path(name) == path


def test_walls_are_asked_for() -> None:
    python = Interpreter("/usr/bin/python3", ("/usr/bin/python3",))
    walls = command(python, ContainerLimits(), filter_fd=7)
    for wall in (
        "--unshare-user",
        "--unshare-all",
        "--disable-userns",
        "--clearenv",
        "--new-session",
    ):
        assert wall in walls
    assert walls[walls.index("--cap-drop") + 1] == "ALL"
    assert walls[walls.index("--seccomp") + 1] == "7"
    assert "--share-net" not in walls
    assert not any(word == "--bind" for word in walls)


GOLDEN = {
    "x86_64": "c6d5abd009a11e3d2f0bbe2808494259eb9c6617821a20c81be3d061050db49d",
    "aarch64": "0ad351a4e2d5cacfcc34f1a980bc6c03b194d95fd7bc567d76b15947a8f69195",
}
"""SHA-256 of the filters: whoever changes one has looked at what it lets through."""


@pytest.mark.parametrize("machine", GOLDEN)
def test_filters_are_the_ones_that_were_tried(machine: str) -> None:
    assert sha256(seccomp_filter(machine)).hexdigest() == GOLDEN[machine]
    assert len(seccomp_filter(machine)) % 8 == 0


def test_no_filter_is_made_for_an_unknown_machine() -> None:
    with pytest.raises(KeyError):
        seccomp_filter("riscv64")


_OPENING = """
import asyncio, sys
from pathlib import Path
from gateway.tools.python.container_engine import ContainerLimits
from gateway.tools.python.linux import LinuxEngine, LinuxOptions

async def main():
    engine = LinuxEngine(LinuxOptions(interpreter=Path(sys.argv[1])))
    await asyncio.gather(*(engine.open(ContainerLimits()) for _ in range(6)))
    print("all are open")
    await asyncio.sleep(60)

asyncio.run(main())
"""
_STEP_S = 0.01


def _named(name: str) -> list[psutil.Process]:
    """The processes in whose command this stands."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if name in process.cmdline():
                found.append(process)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("round_number", range(4))
async def test_nothing_is_left_of_containers_that_were_being_opened(
    tmp_path: Path, round_number: int
) -> None:
    """Its process is killed when the first of them begins, and others are anywhere on the way. What
    bubblewrap leaves when it is killed before it is ready to is ended by the next engine.
    """
    interpreter = tmp_path / "python3"
    interpreter.symlink_to(SYSTEM_PYTHON)
    name = str(interpreter)
    opening = await asyncio.create_subprocess_exec(sys.executable, "-c", _OPENING, name, cwd=ROOT)
    await _until_begun(opening)
    await asyncio.sleep(_STEP_S * round_number)
    opening.kill()
    await opening.wait()
    await LinuxEngine(LinuxOptions(interpreter=SYSTEM_PYTHON)).describe()
    await _until_gone(name)


async def test_the_next_engine_ends_what_bubblewrap_left_when_it_was_killed(tmp_path: Path) -> None:
    """A first process of a namespace waits for its bubblewrap until that has said how to go on:
    here that is stopped before it does, as if it were slow, and killed.
    """
    interpreter = tmp_path / "python3"
    interpreter.symlink_to(SYSTEM_PYTHON)
    found = await Interpreter.inspect(interpreter)
    bwrap = shutil.which("bwrap") or "bwrap"
    blocked, unblock = os.pipe()
    words = command(found, ContainerLimits(), filter_fd=0, bwrap=bwrap)
    words[1:1] = ["--block-fd", str(blocked)]
    opening = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.PIPE, pass_fds=[blocked]
    )
    await _until_begun(opening)
    living = LinuxEngine(LinuxOptions(interpreter=SYSTEM_PYTHON))
    container = await living.open(ContainerLimits())
    opening.kill()
    await opening.wait()
    await living.describe()
    await _until_gone(str(interpreter))
    assert (await container.run("1 + 1", timeout_s=30)).status == "ok"
    await container.close()
    os.close(blocked)
    os.close(unblock)


async def _until_begun(opening: asyncio.subprocess.Process) -> None:
    deadline = time.monotonic() + 30
    while "bwrap" not in _names_of_children(opening.pid):
        assert time.monotonic() < deadline, "no container was begun"
        await asyncio.sleep(0)


async def _until_gone(name: str) -> None:
    deadline = time.monotonic() + 10
    while left := _named(name):
        assert time.monotonic() < deadline, f"left over: {left}"
        await asyncio.sleep(_STEP_S)


def _names_of_children(pid: int) -> set[str]:
    names = set()
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            names.add(child.name())
    return names


async def test_a_machine_without_a_filter_costs_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opener = engine()
    await (await opener.open(ContainerLimits())).close()
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(EngineBroken, match="riscv64"):
        await opener.open(ContainerLimits())
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("left", range(6))
async def test_a_process_that_runs_out_of_descriptors_keeps_none(left: int) -> None:
    opener = engine()
    await (await opener.open(ContainerLimits())).close()
    before = os.listdir("/proc/self/fd")
    bounds = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_free = os.dup(0)
    os.close(next_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_free + left, bounds[1]))
    try:
        with pytest.raises(EngineBroken):
            await opener.open(ContainerLimits())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, bounds)
    assert os.listdir("/proc/self/fd") == before


def test_a_bundle_whose_opening_is_cancelled_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancel() -> None:
        opener = engine(runsc="/bin/cat")
        await opener._find_interpreter()
        opening = asyncio.create_task(opener.open(ContainerLimits()))
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    asyncio.run(cancel())  # it waits for threads
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_pipes_whose_opening_is_cancelled_leave_nothing_open(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def cancel_after(steps: int) -> bool:
        opening = asyncio.create_task(worker_process.Pipes.opened())
        for _ in range(steps):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        if opening.cancelled():
            return True
        pipes, theirs = opening.result()
        pipes.close()
        for descriptor in theirs:
            os.close(descriptor)
        return False

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(cancel_after(1))  # libuv opens a descriptor of its own
        before = os.listdir("/proc/self/fd")
        steps = count()
        while runner.run(cancel_after(next(steps))):
            pass
        for _ in range(4):
            runner.run(asyncio.sleep(0))
        gc.collect()
        assert os.listdir("/proc/self/fd") == before
    assert next(steps) > 3


@pytest.mark.slow
async def test_nothing_is_left_of_containers_whose_opening_is_cancelled(tmp_path: Path) -> None:
    interpreter = tmp_path / "python3"
    interpreter.symlink_to(SYSTEM_PYTHON)
    opener = LinuxEngine(LinuxOptions(interpreter=interpreter))
    loop = asyncio.get_running_loop()
    for number in range(4):
        opening = [loop.create_task(opener.open(ContainerLimits())) for _ in range(4)]
        while "bwrap" not in _names_of_children(os.getpid()):
            await asyncio.wait(opening, timeout=_STEP_S)
        await asyncio.wait(opening, timeout=_STEP_S * number)
        for task in opening:
            task.cancel()
        for opened in await asyncio.gather(*opening, return_exceptions=True):
            if not isinstance(opened, BaseException):
                await opened.close()
    await _until_gone(str(interpreter))
