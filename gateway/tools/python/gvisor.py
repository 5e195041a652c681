"""Containers under gVisor: their system calls reach a kernel of their own, not the host's.

Sources: https://gvisor.dev/docs/user_guide/rootless/ and the runtime specification,
https://github.com/opencontainers/runtime-spec/blob/main/config.md.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.tools.python.container_engine import ContainerLimits

OVERHEAD_BYTES: Final = 256 * 1024**2
THREADS: Final = 1024
"""Threads of gVisor itself."""
_REFUSED: Final = (
    *("unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "sethostname", "ptrace"),
    *("keyctl", "add_key", "request_key", "bpf", "perf_event_open", "io_uring_setup"),
)
USER: Final = 1000
"""User of the worker, inside of the container."""


@dataclass(frozen=True, slots=True)
class Bundle:
    folder: Path
    name: str

    @classmethod
    def made(
        cls,
        worker: Sequence[str],
        paths: Sequence[str],
        environment: Mapping[str, str],
        limits: ContainerLimits,
        uid: int | None,
    ) -> Bundle:
        """Create a bundle with read-only `paths`, started by `uid`. Raises `OSError`."""
        bundle = cls(
            Path(tempfile.mkdtemp(prefix="gateway-gvisor-")), f"python-{os.urandom(8).hex()}"
        )
        root, state = bundle.folder / "root", bundle.folder / "state"
        mounts: list[dict[str, Any]] = [{"destination": "/proc", "type": "proc", "source": "proc"}]
        size = f"size={limits.data_bytes}"
        # /sys: nothing is to be seen of its own kernel, either.
        mounts += [
            {
                "destination": place,
                "type": "tmpfs",
                "source": "tmpfs",
                "options": [size, "mode=1777", "nosuid", "nodev"],
            }
            for place in ("/tmp", "/mnt/data", "/sys")  # noqa: S108 - of the sandbox
        ]
        mounts += [
            {
                "destination": path,
                "type": "bind",
                "source": os.path.realpath(path),
                "options": ["ro", "rbind", "nosuid", "nodev"],
            }
            for path in paths
            if os.path.exists(path)
        ]
        for mount in mounts:
            _make_place(root, mount["destination"], is_file=os.path.isfile(mount["source"]))
        state.mkdir()
        described = _described(worker, mounts, environment)
        (bundle.folder / "config.json").write_bytes(orjson.dumps(described))
        bundle.folder.chmod(0o755)
        if uid is not None:
            os.chown(state, uid, uid)
        return bundle

    def command(self, runsc: str) -> list[str]:
        return [
            *(runsc, "--rootless", "--network=none", "--ignore-cgroups", "--oci-seccomp"),
            *(f"--root={self.folder}/state", "run", f"--bundle={self.folder}", self.name),
        ]

    @staticmethod
    def around(limits: ContainerLimits) -> ContainerLimits:
        # The container's limits plus what gVisor itself needs.
        return replace(limits, memory_bytes=limits.memory_bytes + OVERHEAD_BYTES, processes=THREADS)

    def remove(self) -> None:
        # Includes the state of `runsc`.
        shutil.rmtree(self.folder, ignore_errors=True)


def _make_place(root: Path, path: str, *, is_file: bool) -> None:
    # A mount needs an existing file or folder to stand at.
    place = root / path.lstrip("/")
    if is_file:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    else:
        place.mkdir(parents=True, exist_ok=True)


def _described(
    worker: Sequence[str], mounts: Sequence[dict[str, Any]], environment: Mapping[str, str]
) -> dict[str, Any]:
    not_local = {"index": 0, "value": int(socket.AF_UNIX), "op": "SCMP_CMP_NE"}
    return {
        "ociVersion": "1.0.0",
        "process": {
            "user": {"uid": USER, "gid": USER},
            "args": list(worker),
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": "/mnt/data",
            "noNewPrivileges": True,
            "capabilities": {},
        },
        "root": {"path": "root", "readonly": True},
        "hostname": "sandbox",
        "mounts": list(mounts),
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")],
            "seccomp": {
                "defaultAction": "SCMP_ACT_ALLOW",
                "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
                "syscalls": [
                    {"names": _REFUSED, "action": "SCMP_ACT_ERRNO"},
                    {
                        "names": ["socket", "socketpair"],
                        "action": "SCMP_ACT_ERRNO",
                        "args": [not_local],
                    },
                ],
            },
        },
    }
