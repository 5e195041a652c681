"""Namespaces of the test's own: what containers do to mounts and the network ends with them."""

from __future__ import annotations

import ctypes
import os
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLONE_NEWNET: Final = 0x40000000
# Version 1 of control groups beside an empty version 2 is what the container runtime refuses. The
# folders are where the programs keep their own books; afterwards they are as they were.
_HOLD: Final = """
if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
ip link set lo up
folders="/run/containers /run/crun /run/libpod /run/netns /var/lib/containers"
mkdir -p $folders
for folder in $folders /dev/shm; do mount -t tmpfs tmpfs "$folder"; done
echo ready
cat
umount --lazy $folders /dev/shm
rmdir $folders 2>/dev/null || :
"""


@dataclass(frozen=True, slots=True)
class Namespaces:
    """`begin` is what a command has to begin with to see the mounts, and `begin_outside` what one
    has to that installs packages: it sees them too, and has the network of the machine.
    """

    begin: list[str]
    begin_outside: list[str]
    pid: int

    @contextmanager
    def network(self) -> Iterator[None]:
        """The calling thread, and what it starts, is in the network while this is entered."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _enter_network(os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY))
            yield
        finally:
            _enter_network(before)


@contextmanager
def namespaces() -> Iterator[Namespaces]:
    """A network and mounts that nobody else has; needs root. Raises `OSError`."""
    command = ["unshare", "--mount", "--net", "--propagation", "slave", "sh", "-ec", _HOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ready\n":
            raise OSError("no namespaces can be made here")
        outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            enter = ["nsenter", f"--mount=/proc/{holder.pid}/ns/mnt"]
            network = f"--net=/proc/{os.getpid()}/fd/{outside}"
            yield Namespaces([*enter, "--"], [*enter, network, "--"], holder.pid)
        finally:
            os.close(outside)
            holder.stdin.close()


def _enter_network(descriptor: int) -> None:
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "cannot enter the network")
    finally:
        os.close(descriptor)
