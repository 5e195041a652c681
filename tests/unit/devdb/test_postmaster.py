from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from gateway.devdb.embedded import (
    PID_FILE,
    Postmaster,
    ServerAccount,
    account_for,
    adopt_pid_file,
    bundled_programs,
    run,
    server_version,
)
from gateway.errors import StartupError

if TYPE_CHECKING:
    from pathlib import Path

COMPLETE = "{pid}\n/data\n1700000000\n5432\n/tmp/socket\n\n 5432001  32768\nready   \n"


def write(cluster: Path, content: str) -> None:
    (cluster / PID_FILE).write_text(content)


def ended_process() -> int:
    with subprocess.Popen(["/bin/true"]) as process:
        process.wait()
    return process.pid


@pytest.mark.parametrize("content", ["", "\n", "no number\n"])
def test_a_file_that_is_being_written_is_none(tmp_path: Path, content: str) -> None:
    assert Postmaster.read(tmp_path) is None
    write(tmp_path, content)
    assert Postmaster.read(tmp_path) is None


def test_a_complete_file_names_the_socket_folder(tmp_path: Path) -> None:
    write(tmp_path, COMPLETE.format(pid=7))
    found = Postmaster.read(tmp_path)
    assert found is not None
    assert (found.pid, str(found.socket_folder), found.is_ready) == (7, "/tmp/socket", True)


@pytest.mark.parametrize("lines", range(1, 8))
def test_a_server_is_not_ready_before_it_says_so(tmp_path: Path, lines: int) -> None:
    write(tmp_path, "\n".join(COMPLETE.format(pid=7).split("\n")[:lines]))
    found = Postmaster.read(tmp_path)
    assert found is not None
    assert not found.is_ready


def test_a_process_that_ended_is_no_server(tmp_path: Path) -> None:
    write(tmp_path, COMPLETE.format(pid=ended_process()))
    found = Postmaster.read(tmp_path)
    assert found is not None
    assert not found.holds_pid()
    assert not found.is_running()
    assert found.stop(0)


def test_a_process_that_works_elsewhere_is_no_server_of_this_folder(tmp_path: Path) -> None:
    write(tmp_path, COMPLETE.format(pid=os.getpid()))
    found = Postmaster.read(tmp_path)
    assert found is not None
    assert found.holds_pid()
    assert not found.is_running()


def test_an_adopted_file_keeps_the_key_of_the_shared_memory(tmp_path: Path) -> None:
    write(tmp_path, COMPLETE.format(pid=7))
    adopt_pid_file(tmp_path)
    assert (tmp_path / PID_FILE).read_text() == COMPLETE.format(pid=os.getpid())


def test_the_newest_server_of_the_wheel_is_found_and_runs(tmp_path: Path) -> None:
    account = account_for(tmp_path / "cluster", "nobody")
    assert account.uid != 0
    assert int(server_version(bundled_programs(), account)) >= 18


def test_a_program_that_does_not_run_says_why(tmp_path: Path) -> None:
    program = tmp_path / "postgres"
    program.write_text("#!/bin/sh\necho libssl.so.3 is missing >&2\nexit 127\n")
    program.chmod(0o755)
    ourselves = ServerAccount("us", os.geteuid(), os.getegid(), switch=False)
    with pytest.raises(StartupError, match=r"libssl\.so\.3 is missing"):
        server_version(tmp_path, ourselves)


def test_programs_get_nothing_of_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_SECRET", "x")
    shown = run(["/usr/bin/env"], account_for(tmp_path / "cluster", "nobody"))
    assert {line.partition(b"=")[0] for line in shown.stdout.splitlines()} == {b"PATH", b"LC_ALL"}


def test_a_missing_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(StartupError) as caught:
        bundled_programs()
    assert "DATABASE_URL" in caught.value.remedy


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
def test_a_cluster_without_a_named_owner_is_run_by_its_number(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster"
    cluster.mkdir()
    os.chown(cluster, 12345, 12345)
    account = account_for(cluster, "nobody")
    assert (account.name, account.uid, account.switch) == ("12345", 12345, True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may run anybody's cluster")
def test_another_users_cluster_is_left_alone() -> None:
    from pathlib import Path

    with pytest.raises(StartupError, match="belongs to root"):
        account_for(Path("/usr"), "nobody")
