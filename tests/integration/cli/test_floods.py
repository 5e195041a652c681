"""A whole gateway whose connections are all taken by clients that have no key and are slow."""

from __future__ import annotations

import http.client
import socket
import threading
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.fakes.gateway import gateway_settings, new_key
from tests.fakes.processes import gateway_process, reserved_port, simulator_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COUNT = 100
WAIT_S = 60.0
BYTE_S = 1.0
BEGINNINGS = (
    b"",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: ",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n",
    b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1;",
    b"POST /healthz HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
)


@contextmanager
def slow_clients(address: tuple[str, int]) -> Iterator[None]:
    """As many as there may be connections, each of which sends a byte a second."""
    over = threading.Event()
    with ExitStack() as stack:
        slow = [
            stack.enter_context(closing(socket.create_connection(address, WAIT_S)))
            for _ in range(COUNT)
        ]
        for number, client in enumerate(slow):
            client.sendall(BEGINNINGS[number % len(BEGINNINGS)])

        def trickle() -> None:
            while not over.wait(BYTE_S):
                for client in slow:
                    with suppress(OSError):
                        client.send(b"a")

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@pytest.mark.slow
async def test_slow_clients_without_a_key_shut_nobody_out(
    tmp_path: Path, database_url: str
) -> None:
    key = await new_key(gateway_settings(database_url, []), "acme")
    with (
        reserved_port() as port,
        simulator_process(port) as simulator,
        gateway_process(
            tmp_path, database_url, [simulator.url], server={"connections_max": COUNT}
        ) as gateway,
    ):
        parts = urlsplit(gateway.url)
        address = (str(parts.hostname), int(parts.port or 0))
        with slow_clients(address):
            for path, headers in [
                ("/healthz", {}),
                ("/readyz", {}),
                ("/v1/models", {"authorization": f"Bearer {key}"}),
            ]:
                with closing(http.client.HTTPConnection(*address, timeout=WAIT_S)) as client:
                    client.request("GET", path, headers=headers)
                    assert client.getresponse().status == 200
