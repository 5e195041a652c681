from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import asyncpg
import psutil
import pytest

from gateway.devdb import embedded as embedded_module
from gateway.devdb.embedded import PID_FILE, EmbeddedPostgres, Postmaster, _looks_like_postgres
from gateway.errors import DatabaseInUse, StartupError
from tests.fakes.postgres import FAST, embedded, reachable_folder, server_programs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLD = """
import sys
from pathlib import Path
from tests.fakes.postgres import embedded
server = embedded(Path(sys.argv[1]))
server.start()
print(server.url, flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.fixture(scope="module")
def data_dir() -> Iterator[Path]:
    """A data folder that was started before; every test leaves it so."""
    with reachable_folder() as folder:
        with embedded(folder / "data"):
            pass
        yield folder / "data"


@pytest.fixture
def copied_data_dir(data_dir: Path) -> Iterator[Path]:
    """The same, to be damaged."""
    with reachable_folder() as folder:
        copy = folder / "data"
        subprocess.run(["/bin/cp", "-a", str(data_dir), str(copy)], check=True)
        yield copy


async def answer(url: str, query: str = "SELECT 1") -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


def postmaster(data_dir: Path) -> Postmaster:
    found = Postmaster.read(data_dir / "cluster")
    assert found is not None
    return found


@pytest.mark.slow
async def test_a_first_start_makes_a_cluster_and_later_ones_find_it() -> None:
    with reachable_folder() as folder:
        with embedded(folder / "deep" / "data") as server:
            await answer(server.url, "CREATE TABLE kept AS SELECT 42 AS value")
            assert server.is_owner
        with embedded(folder / "deep" / "data") as server:
            assert await answer(server.url, "SELECT value FROM kept") == 42


@pytest.mark.slow
async def test_a_stop_leaves_no_process_socket_or_lock(data_dir: Path) -> None:
    server = embedded(data_dir)
    server.start()
    running = postmaster(data_dir)
    assert running.socket_folder is not None
    assert running.is_running()
    assert _looks_like_postgres(running.pid)
    server.stop()
    server.stop()
    assert not psutil.pid_exists(running.pid)
    assert not running.is_running()
    assert not running.holds_pid()
    assert not _looks_like_postgres(running.pid)
    assert not running.socket_folder.exists()
    assert not (data_dir / "cluster" / PID_FILE).exists()
    with pytest.raises(StartupError, match="not running"):
        _ = server.url


@pytest.mark.slow
async def test_nobody_else_gets_in(data_dir: Path) -> None:
    with embedded(data_dir) as server:
        running = postmaster(data_dir)
        assert running.socket_folder is not None
        assert stat.S_IMODE(running.socket_folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((data_dir / "password").stat().st_mode) == 0o600
        assert stat.S_IMODE((data_dir / "cluster").stat().st_mode) == 0o700
        process = psutil.Process(running.pid)
        assert not [one for one in process.net_connections() if one.status == "LISTEN"]
        assert process.uids().real != 0
        password = (data_dir / "password").read_text()
        for wrong in (server.url.replace(password, "wrong"), server.url.replace(password, "")):
            with pytest.raises(asyncpg.InvalidPasswordError):
                await answer(wrong)
        assert password not in " ".join(process.cmdline())
        assert "PATH" in process.environ()
        assert not {"HOME", "PYTEST_CURRENT_TEST"} & set(process.environ())


@pytest.mark.slow
async def test_ctrl_c_does_not_reach_the_server(data_dir: Path) -> None:
    with embedded(data_dir):
        assert os.getpgid(postmaster(data_dir).pid) != os.getpgid(0)


@pytest.mark.slow
async def test_a_server_left_by_a_killed_gateway_is_replaced(data_dir: Path) -> None:
    holder = start_holder(data_dir)
    left = postmaster(data_dir)
    holder.kill()
    holder.communicate()
    assert left.is_running()
    with embedded(data_dir) as server:
        assert server.is_owner
        assert await answer(server.url) == 1
        assert postmaster(data_dir).pid != left.pid
        assert not left.is_running()
    assert left.socket_folder is not None
    assert not left.socket_folder.exists()


@pytest.mark.slow
async def test_a_killed_server_is_recovered(data_dir: Path) -> None:
    durable = EmbeddedPostgres(data_dir, bin_dir=server_programs())
    with durable:
        await answer(durable.url, "CREATE TABLE kept AS SELECT 42 AS value")
        os.kill(postmaster(data_dir).pid, signal.SIGKILL)
    with embedded(data_dir) as server:
        assert await answer(server.url, "SELECT value FROM kept") == 42


@pytest.mark.slow
async def test_a_backend_that_outlives_its_server_is_waited_for(data_dir: Path) -> None:
    with embedded(data_dir) as server:
        connection = await asyncpg.connect(server.url)
        backend = connection.get_server_pid()
        os.kill(backend, signal.SIGSTOP)
        os.kill(postmaster(data_dir).pid, signal.SIGKILL)
    hasty = EmbeddedPostgres(
        data_dir, bin_dir=server_programs(), settings=FAST, start_timeout_s=0.5
    )
    with pytest.raises(StartupError, match=r"still in use|too long"):
        hasty.start()
    os.kill(backend, signal.SIGCONT)
    with embedded(data_dir) as server:
        assert await answer(server.url) == 1
    connection.terminate()


@contextmanager
def innocent_process(owner: os.stat_result) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the account that runs the server, but not the server."""
    as_root = os.geteuid() == 0
    with subprocess.Popen(
        ["/bin/sleep", "60"],
        user=owner.st_uid if as_root else None,
        group=owner.st_gid if as_root else None,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("is_reused", [False, True])
async def test_a_stale_pid_file_does_not_matter(data_dir: Path, is_reused: bool) -> None:
    path = data_dir / "cluster" / PID_FILE
    with embedded(data_dir):
        rest = path.read_text().partition("\n")[2]
    owner = (data_dir / "cluster").stat()
    with innocent_process(owner) as innocent:
        if not is_reused:
            innocent.kill()
            innocent.wait()
        path.write_text(f"{innocent.pid}\n{rest}")
        os.chown(path, owner.st_uid, owner.st_gid)
        with embedded(data_dir) as server:
            assert await answer(server.url) == 1
        assert (innocent.poll() is None) == is_reused


@pytest.mark.slow
async def test_a_second_process_uses_the_server_of_the_first(data_dir: Path) -> None:
    holder = start_holder(data_dir)
    second = embedded(data_dir)
    second.start()
    assert not second.is_owner
    assert await answer(second.url) == 1
    url = second.url
    second.stop()
    assert await answer(url) == 1
    holder.communicate(b"")
    assert holder.returncode == 0
    with embedded(data_dir) as third:
        assert third.is_owner


@pytest.mark.slow
def test_one_that_lasts_waits_for_a_command_and_is_refused_beside_its_like(data_dir: Path) -> None:
    command = EmbeddedPostgres(data_dir)
    assert command._take_lock(0)
    with ThreadPoolExecutor(1) as beside:
        first = embedded(data_dir, is_lasting=True)
        starting = beside.submit(first.start)
        command.stop()
        starting.result()
    assert first.is_owner
    second = embedded(data_dir, is_lasting=True)
    with pytest.raises(DatabaseInUse, match=rf"\(process {os.getpid()}\)"):
        second.start()
    with embedded(data_dir) as other_command:
        assert not other_command.is_owner
    first.stop()
    with second:
        assert second.is_owner
    assert (data_dir / "lock").read_bytes() == b""


def until_says(path: Path, content: bytes) -> None:
    while path.read_bytes() != content:
        time.sleep(0.01)


@pytest.mark.slow
async def test_the_owner_of_a_server_stops_it_when_nobody_else_uses_it(data_dir: Path) -> None:
    first, second, third = embedded(data_dir), embedded(data_dir), embedded(data_dir)
    first.start()
    second.start()
    with ThreadPoolExecutor(2) as beside:
        stopping = beside.submit(first.stop)
        await asyncio.to_thread(until_says, data_dir / "lock", b"stopping")
        starting = beside.submit(third.start)
        assert await answer(second.url) == 1
        assert not stopping.done()
        assert not starting.done()
        second.stop()
        starting.result()
    assert third.is_owner
    assert await answer(third.url) == 1
    third.stop()


@pytest.mark.slow
def test_a_user_of_a_server_that_does_not_end_is_not_waited_for_for_good(data_dir: Path) -> None:
    owner = EmbeddedPostgres(data_dir, bin_dir=server_programs(), settings=FAST, stop_timeout_s=0.1)
    owner.start()
    user = embedded(data_dir)
    user.start()
    owner.stop()
    assert Postmaster.read(data_dir / "cluster") is None
    user.stop()


@pytest.mark.slow
def test_a_server_is_stopped_although_its_folder_is_gone(copied_data_dir: Path) -> None:
    owner = embedded(copied_data_dir)
    owner.start()
    server = Postmaster.read(copied_data_dir / "cluster")
    assert server is not None
    shutil.rmtree(copied_data_dir)
    owner.stop()
    assert not psutil.pid_exists(server.pid)


@pytest.mark.slow
def test_one_that_lasts_waits_for_its_like_to_stop(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, is_over = embedded_module._end, threading.Event()
    first, second = embedded(data_dir, is_lasting=True), embedded(data_dir, is_lasting=True)
    first.start()

    def start_second() -> None:
        second.start()
        is_over.set()

    with ThreadPoolExecutor(1) as beside:

        def end_late(process: subprocess.Popen[bytes], timeout_s: float) -> None:
            """Ends the server only once the second has found that it is being stopped."""
            started = beside.submit(start_second)
            with suppress(TimeoutError):
                started.result(0.5)
            end(process, timeout_s)

        monkeypatch.setattr(embedded_module, "_end", end_late)
        first.stop()
        monkeypatch.setattr(embedded_module, "_end", end)
        assert is_over.wait(60)
    assert second.is_owner
    second.stop()


def start_holder(data_dir: Path) -> subprocess.Popen[bytes]:
    """Another process that owns the server until its standard input ends."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(data_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline().startswith(b"postgresql://")
    return holder


@pytest.mark.slow
async def test_starting_at_once_gives_one_owner(data_dir: Path) -> None:
    servers = [embedded(data_dir) for _ in range(3)]
    threads = [threading.Thread(target=server.start) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(server.is_owner for server in servers) == 1
    assert len({server.url for server in servers}) == 1
    for server in sorted(servers, key=lambda one: one.is_owner):
        assert await answer(server.url) == 1
        server.stop()


def test_a_locked_folder_without_a_server_is_reported(data_dir: Path) -> None:
    lock = EmbeddedPostgres(data_dir)
    assert lock._take_lock(0)
    waiting = EmbeddedPostgres(data_dir, start_timeout_s=0)
    with pytest.raises(StartupError, match="another process holds"):
        waiting.start()
    lock.stop()


@pytest.mark.slow
def test_a_start_that_fails_leaves_nothing_behind(data_dir: Path) -> None:
    broken = EmbeddedPostgres(
        data_dir, bin_dir=server_programs(), settings={**FAST, "no_such_setting": "1"}
    )
    with pytest.raises(StartupError, match="no_such_setting"):
        broken.start()
    assert not broken.is_owner
    with embedded(data_dir) as server:
        assert server.is_owner


@pytest.mark.slow
def test_a_start_that_takes_too_long_is_ended(data_dir: Path) -> None:
    hasty = EmbeddedPostgres(data_dir, bin_dir=server_programs(), settings=FAST, start_timeout_s=0)
    with pytest.raises(StartupError, match="too long"):
        hasty.start()
    assert not hasty.is_owner
    with embedded(data_dir) as server:
        assert server.is_owner


@pytest.mark.slow
def test_an_initialisation_that_broke_off_is_repeated(copied_data_dir: Path) -> None:
    shutil.move(copied_data_dir / "cluster", copied_data_dir / "cluster.partial")
    with embedded(copied_data_dir) as server:
        assert server.is_owner
    assert not (copied_data_dir / "cluster.partial").exists()


@pytest.mark.slow
def test_a_cluster_of_another_version_is_left_alone(copied_data_dir: Path) -> None:
    (copied_data_dir / "cluster" / "PG_VERSION").write_text("9.6\n")
    with pytest.raises(StartupError, match=r"9\.6") as caught:
        embedded(copied_data_dir).start()
    assert "pg_dump" in caught.value.remedy


def test_a_full_path_that_is_no_folder_is_reported(data_dir: Path) -> None:
    with pytest.raises(StartupError, match="cannot start"):
        embedded(data_dir / "password" / "data").start()


def test_missing_programs_are_reported(data_dir: Path) -> None:
    with pytest.raises(StartupError, match="cannot start"):
        EmbeddedPostgres(data_dir, bin_dir=data_dir / "nothing").start()


only_as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root runs it as somebody else")


@pytest.mark.slow
@only_as_root
def test_a_folder_that_the_server_cannot_reach_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(StartupError, match="cannot reach") as caught:
        embedded(tmp_path / "data").start()
    assert "GATEWAY_DATA_DIR" in caught.value.remedy
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


@only_as_root
def test_programs_that_the_server_may_not_execute_are_named(tmp_path: Path) -> None:
    private = tmp_path / "bin"
    private.mkdir(mode=0o700)
    shutil.copy("/bin/true", private / "postgres")
    with pytest.raises(StartupError, match="cannot execute"):
        EmbeddedPostgres(tmp_path / "data", bin_dir=private).start()


@only_as_root
def test_an_account_that_is_not_there_is_named() -> None:
    with reachable_folder() as folder, pytest.raises(StartupError, match="no user 'no-such-user'"):
        EmbeddedPostgres(folder / "data", run_as="no-such-user").start()


@pytest.mark.slow
@only_as_root
async def test_a_cluster_is_run_by_its_owner(copied_data_dir: Path) -> None:
    for path in [
        copied_data_dir / "password",
        *(copied_data_dir / "cluster").rglob("*"),
        copied_data_dir / "cluster",
    ]:
        os.chown(path, 12345, 12345, follow_symlinks=False)
    with embedded(copied_data_dir) as server:
        assert psutil.Process(postmaster(copied_data_dir).pid).uids().real == 12345
        assert await answer(server.url) == 1
