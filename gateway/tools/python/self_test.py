"""Choose the first engine that passes its self-test.

An engine that allows one attack is refused, whatever the settings say: nothing else shows that a
kernel, a container runtime or a policy took a wall away. An attack that succeeds puts back what it
changed: it may run in a server of others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from gateway.tools.python.container_engine import ContainerLimits, EngineBroken, RunResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.tools.python.container_engine import (
        Container,
        ContainerCapabilities,
        ContainerEngine,
    )


DENIED: Final = "denied"
"""Any other output is a success of the attack, unless the run was killed."""

_SOCKET: Final = (
    "import os, socket, stat\n"
    "opened = socket.socket({})\n"
    "assert stat.S_ISSOCK(os.fstat(opened.fileno()).st_mode)"
)
"""An object that the kernel does not know is no socket."""
_LIBC: Final = "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True)\n"

ATTACKS: Final[Mapping[str, str]] = {
    "read the host's users": "open('/etc/passwd').read()",
    "read the host's secrets": "open('/etc/shadow').read()",
    "read the home of root": "import os; os.listdir('/root')",
    "see the gateway's environment": (
        "import os; assert any('GATEWAY' in n or 'DATABASE' in n or 'KEY' in n for n in os.environ)"
    ),
    "see the host's processes": (
        "import os; assert sum(name.isdigit() for name in os.listdir('/proc')) > 4"
    ),
    "see devices of the kernel": "import os; os.listdir('/sys/kernel')",
    "write to the root": "import os; open('/written', 'w'); os.remove('/written')",
    "write to the interpreter": "import sys; open(sys.executable, 'r+b')",
    "write to libraries": "import os; open(os.__file__, 'a')",
    "change the kernel's core pattern": (
        "path = '/proc/sys/kernel/core_pattern'\n"
        "was = open(path).read()\n"
        "with open(path, 'w') as file: file.write(was)"
    ),
    "change the host's name": _LIBC
    + "name = os.uname().nodename.encode()\nassert libc.sethostname(name, len(name)) == 0",
    "open a network socket": _SOCKET.format("socket.AF_INET"),
    "open an IPv6 socket": _SOCKET.format("socket.AF_INET6"),
    "open a netlink socket": _SOCKET.format("socket.AF_NETLINK, socket.SOCK_RAW"),
    "open a packet socket": _SOCKET.format("socket.AF_PACKET, socket.SOCK_RAW"),
    "open a socket to the hypervisor": _SOCKET.format("40, socket.SOCK_STREAM"),
    "use the kernel's ciphers": _SOCKET.format("38, socket.SOCK_SEQPACKET"),
    "see the host's connections": "assert len(open('/proc/net/tcp').readlines()) > 1",
    "read the kernel's messages": "open('/dev/kmsg').read(1)",
    "read the machine's memory": "open('/dev/mem', 'rb').read(1)",
    "see disks": "import os; assert {'sda', 'vda', 'nvme0n1', 'loop0'} & {*os.listdir('/dev')}",
    "raise its limits": (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 62, 1 << 62))"
    ),
    "end the first process": "import os; os.kill(1, 9); assert not os.path.exists('/proc/1')",
    "resolve a name": (
        "import socket; assert socket.getaddrinfo('example.com', 80)[0][4][0] != 'example.com'"
    ),
    "reach the machine's network": (
        "import socket\n"
        "try: socket.create_connection(('127.0.0.1', 9), 2)\n"
        "except OSError as error: assert 'refused' in str(error).lower()  # by a machine"
    ),
    "mount": _LIBC
    + "assert libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0\nlibc.umount2(b'/tmp', 2)",
    "make a user namespace": _LIBC + "assert libc.unshare(0x10000000) == 0",
    "make a mount namespace": _LIBC + "assert libc.unshare(0x00020000) == 0",
    "trace a process": _LIBC + "parent = os.getppid()\n"
    "assert libc.ptrace(16, parent, None, None) == 0\n"
    # A traced process is stopped, and it may be the server of all containers: let it go on.
    "os.waitpid(parent, 0x40000000)\n"
    "assert libc.ptrace(17, parent, None, None) == 0",
    "use io_uring": _LIBC + "assert libc.syscall(425, 8, ctypes.create_string_buffer(512)) >= 0",
    "use the kernel's keys": _LIBC
    + "assert libc.syscall({'aarch64': 219}.get(os.uname().machine, 250), 0, -3, 1) >= 0",
    "load a program into the kernel": _LIBC
    + "assert libc.syscall({'aarch64': 280}.get(os.uname().machine, 321), 5, 0, 0) >= 0",
    "become root": "import os; os.setuid(0); assert os.getuid() == 0",
    "keep a capability": (
        "lines = open('/proc/self/status').read().splitlines()\n"
        "assert any(int(l.split()[1], 16) for l in lines if l.startswith(('CapEff', 'CapPrm')))"
    ),
    "gain rights by a program": _LIBC + "assert libc.prctl(39, 0, 0, 0, 0) == 0",
    "inherit a descriptor": (
        "import os\n"
        "kinds = [os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')"
        " if os.path.exists(f'/proc/self/fd/{n}')]\n"
        "assert any(k.startswith('socket:') for k in kinds)"
    ),
    "use more memory than there is": "b = bytearray(64 * 1024**3)",
    "fill the disk": (
        "with open('/mnt/data/full', 'wb') as f:\n"
        "    try:\n"
        "        for _ in range(1 << 14): f.write(bytes(1 << 20))\n"
        "    finally:\n"
        "        import os; os.remove('/mnt/data/full')"
    ),
    "start processes without end": (
        "import subprocess, sys\n"
        "children = []\n"
        "try:\n"
        "    for _ in range(1000):\n"
        "        children.append(subprocess.Popen(['/proc/self/exe', '-c', 'input()'],"
        " stdin=subprocess.PIPE))\n"
        "finally:\n"
        "    for child in children: child.kill(); child.wait(); child.stdin.close()"
    ),
}


def script(attack: str) -> str:
    """Wrap an attack, so that it prints `DENIED` if it raises."""
    body = "\n".join(f"    {line}" for line in ATTACKS[attack].splitlines())
    return (
        f"try:\n{body}\n"
        "except (OSError, ValueError, AssertionError, MemoryError, ImportError):"
        f" print({DENIED!r})\n"
        "else: print('allowed')"
    )


ATTACK_TIMEOUT_S: Final = 30.0
_WORKS: Final = "print(6 * 7)"


@dataclass(frozen=True, slots=True)
class Chosen:
    engine: ContainerEngine | None
    capabilities: ContainerCapabilities | None
    refused: tuple[str, ...] = ()

    @override
    def __str__(self) -> str:
        # A line for the log.
        why = f" ({'; '.join(self.refused)})" if self.refused else ""
        if self.engine is None or self.capabilities is None:
            return f"python is off: no engine is safe here{why}"
        packages = ", ".join(self.capabilities.packages) or "no packages"
        return (
            f"python runs in the engine {self.engine.name}: {self.capabilities.language}, "
            f"{packages}{why}"
        )


async def choose(engines: Sequence[ContainerEngine]) -> Chosen:
    """Return the first engine that passes; all others are closed."""
    refused: list[str] = []
    chosen: ContainerEngine | None = None
    capabilities: ContainerCapabilities | None = None
    for engine in engines:
        if chosen is not None:
            await engine.close()
            continue
        try:
            capabilities = await engine.describe()
            allowed = await allowed_attacks(engine, is_whole=capabilities.is_whole)
        except EngineBroken as error:
            refused.append(f"{engine.name}: {error}")
            await engine.close()
            continue
        if allowed:
            refused.append(f"{engine.name}: code may {', '.join(allowed)}")
            await engine.close()
        else:
            chosen = engine
    return Chosen(chosen, capabilities if chosen else None, tuple(refused))


async def allowed_attacks(engine: ContainerEngine, *, is_whole: bool = True) -> list[str]:
    """Return the attacks that succeed. Raises `EngineBroken`.

    Without `is_whole` any failure counts as denied: the interpreter may lack what the attack needs.
    """
    container = await engine.open(ContainerLimits())
    try:
        works = await container.run(_WORKS, timeout_s=ATTACK_TIMEOUT_S)
        if works.output.strip() != "42":
            raise EngineBroken("it does not run a simple program")
        allowed: list[str] = []
        for attack in ATTACKS:
            ran, container = await _tried(engine, container, attack)
            is_denied = ran.output.strip() == DENIED or ran.status == "killed"
            if not is_denied and (is_whole or ran.status != "error"):
                allowed.append(attack)
        return allowed
    finally:
        await container.close()


async def _tried(
    engine: ContainerEngine, container: Container, attack: str
) -> tuple[RunResult, Container]:
    # The container is the one for the next attack.
    try:
        ran = await container.run(script(attack), timeout_s=ATTACK_TIMEOUT_S)
    except EngineBroken:  # its own bounds, or the kernel's, have ended it
        ran = RunResult(status="killed")
    if ran.status == "killed":
        await container.close()
        container = await engine.open(ContainerLimits())
    return ran, container
