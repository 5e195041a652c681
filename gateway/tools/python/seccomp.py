"""The system calls that code in a sandbox may not make, as a filter for the kernel. No I/O here.

It is a second wall behind namespaces: what is refused is what has broken out of them before. Calls
that are not named are allowed, because numerical libraries use hundreds.

Sources: https://docs.kernel.org/userspace-api/seccomp_filter.html; numbers from the kernel's
`arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi/asm-generic/unistd.h`.
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_X86_64: Final[Mapping[str, int]] = {
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "swapon": 167, "swapoff": 168,
    "reboot": 169, "sethostname": 170, "setdomainname": 171, "init_module": 175,
    "delete_module": 176, "finit_module": 313, "kexec_load": 246, "kexec_file_load": 320,
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "bpf": 321,
    "perf_event_open": 298, "keyctl": 250, "add_key": 248, "request_key": 249,
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "userfaultfd": 323,
    "open_by_handle_at": 304, "name_to_handle_at": 303, "unshare": 272, "setns": 308,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432,
    "fspick": 433, "mount_setattr": 442, "pidfd_getfd": 438, "quotactl": 179, "quotactl_fd": 443,
    "acct": 163, "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305, "adjtimex": 159,
    "syslog": 103, "vhangup": 153, "personality": 135, "lookup_dcookie": 212, "nfsservctl": 180,
    "iopl": 172, "ioperm": 173, "clone": 56, "clone3": 435, "socket": 41, "socketpair": 53,
}  # fmt: skip
_AARCH64: Final[Mapping[str, int]] = {
    "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "swapon": 224, "swapoff": 225,
    "reboot": 142, "sethostname": 161, "setdomainname": 162, "init_module": 105,
    "delete_module": 106, "finit_module": 273, "kexec_load": 104, "kexec_file_load": 294,
    "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "bpf": 280,
    "perf_event_open": 241, "keyctl": 219, "add_key": 217, "request_key": 218,
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "userfaultfd": 282,
    "open_by_handle_at": 265, "name_to_handle_at": 264, "unshare": 97, "setns": 268,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432,
    "fspick": 433, "mount_setattr": 442, "pidfd_getfd": 438, "quotactl": 60, "quotactl_fd": 443,
    "acct": 89, "settimeofday": 170, "clock_settime": 112, "clock_adjtime": 266, "adjtimex": 171,
    "syslog": 116, "vhangup": 58, "personality": 92, "lookup_dcookie": 18, "nfsservctl": 42,
    "clone": 220, "clone3": 435, "socket": 198, "socketpair": 199,
}  # fmt: skip
_MACHINES: Final[Mapping[str, tuple[int, Mapping[str, int]]]] = {
    "x86_64": (0xC000003E, _X86_64),
    "aarch64": (0xC00000B7, _AARCH64),
}
"""By the name that `platform.machine` gives: the kernel's number of it, and its calls."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _MACHINE_AT, _ARGUMENT_AT = 0, 4, 16
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_X32_BIT: Final = 0x40000000
"""Calls of a second numbering on x86_64, which the table does not know."""
_LOOKED_AT: Final = frozenset({"clone", "clone3", "socket", "socketpair"})
"""Calls that depend on what they are passed."""
_CLONE_NEWUSER: Final = 0x10000000


def is_known(machine: str) -> bool:
    """Return True if there is a filter for this processor architecture."""
    return machine in _MACHINES


def program(machine: str) -> bytes:
    """Return the filter for `bwrap --seccomp`. Raises `KeyError` for an unknown machine."""
    number_of_machine, calls = _MACHINES[machine]
    refused = [number for name, number in calls.items() if name not in _LOOKED_AT]
    code = [
        _step(_LOAD, _MACHINE_AT),
        _step(_EQUAL, number_of_machine, then=1),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER_AT),
    ]
    if machine == "x86_64":
        code += [_step(_AT_LEAST, _X32_BIT, otherwise=1), _step(_RETURN, _ERROR | errno.ENOSYS)]
    for number in refused:
        code += [_step(_EQUAL, number, otherwise=1), _step(_RETURN, _ERROR | errno.EPERM)]
    # Its flags are behind a pointer, where no filter sees them; without it, clone is used.
    code += [_step(_EQUAL, calls["clone3"], otherwise=1), _step(_RETURN, _ERROR | errno.ENOSYS)]
    code += [
        _step(_EQUAL, calls["clone"], otherwise=3),
        _step(_LOAD, _ARGUMENT_AT),
        _step(_ANY_BIT, _CLONE_NEWUSER, otherwise=5),
        _step(_RETURN, _ERROR | errno.EPERM),
        _step(_EQUAL, calls["socket"], then=1),
        _step(_EQUAL, calls["socketpair"], otherwise=2),
        _step(_LOAD, _ARGUMENT_AT),
        _step(_EQUAL, socket.AF_UNIX, otherwise=1),
        _step(_RETURN, _ALLOW),
        _step(_RETURN, _ERROR | errno.EPERM),
    ]
    return b"".join(code)


def _step(operation: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    # `struct sock_filter` of the kernel. Jumps count the instructions to skip.
    return struct.pack("=HBBI", operation, then, otherwise, value)
