"""Messages to the service manager, as of systemd's `Type=notify`."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final

READY: Final = b"READY=1"
STOPPING: Final = b"STOPPING=1"


def notify(state: bytes) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # An address in the abstract namespace begins with a null byte.
    address = "\0" + address[1:] if address.startswith("@") else address
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        sending.sendto(state, address)
