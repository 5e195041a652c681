"""A client that goes away: the backend is told to stop, whenever it happens."""

from __future__ import annotations

import json
import socket
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from openai import NotFoundError
from openai.types.responses import ResponseOutputMessage

from tests.fakes.processes import STEP_S

if TYPE_CHECKING:
    from openai import OpenAI

    from tests.fakes.processes import GatewayProcess, SimulatorProcess

WAIT_S = 60.0
LATE = "[[sim first_token_delay_s=60]] go"
SLOW = "[[sim tokens_per_s=50 tokens=5000 think=none]] go"


class RawClient:
    """One request on a socket. `mark` is its max_output_tokens, by which the backend knows it."""

    def __init__(self, url: str, key: str, text: str, mark: int, *, stream: bool) -> None:
        address = urlsplit(url)
        body = json.dumps(
            {"model": "gpt-oss-20b", "input": text, "max_output_tokens": mark, "stream": stream}
        ).encode()
        head = (
            f"POST /v1/responses HTTP/1.1\r\nhost: {address.netloc}\r\n"
            f"authorization: Bearer {key}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self.received = b""
        self._socket = socket.create_connection((address.hostname, address.port), WAIT_S)
        self._socket.sendall(head.encode() + body)

    def read_until(self, mark: bytes) -> None:
        """Read on until it has been received; fails at the end of the stream."""
        while mark not in self.received:
            data = self._socket.recv(65_536)
            assert data, self.received
            self.received += data

    def has_been_answered(self) -> bool:
        """Whether anything at all has come."""
        self._socket.setblocking(False)
        try:
            return self._socket.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return False

    def response_id(self) -> str:
        """From the first event."""
        self.read_until(b"\n\n")
        data = self.received.split(b"\ndata: ", 1)[1].split(b"\n", 1)[0]
        created: dict[str, Any] = json.loads(data)
        return str(created["response"]["id"])

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def test_before_the_headers(
    replicas: tuple[GatewayProcess, GatewayProcess], key: str, simulator: SimulatorProcess
) -> None:
    with closing(RawClient(replicas[1].url, key, LATE, 4001, stream=True)) as client:
        simulator.until_request(lambda row: is_running(row, 4001))
        assert not client.has_been_answered()
    simulator.until_request(lambda row: was_aborted(row, 4001))


def test_before_the_first_token(
    gateway: GatewayProcess, key: str, client: OpenAI, simulator: SimulatorProcess
) -> None:
    with closing(RawClient(gateway.url, key, LATE, 4002, stream=True)) as raw:
        response_id = raw.response_id()
        simulator.until_request(lambda row: is_running(row, 4002))
    simulator.until_request(lambda row: was_aborted(row, 4002))
    until_cancelled(client, response_id)


@pytest.mark.slow
def test_in_the_middle_of_a_stream(
    gateway: GatewayProcess, key: str, client: OpenAI, simulator: SimulatorProcess
) -> None:
    with closing(RawClient(gateway.url, key, SLOW, 4003, stream=True)) as raw:
        response_id = raw.response_id()
        raw.read_until(b"event: response.output_text.delta")
    row = simulator.until_request(lambda row: was_aborted(row, 4003))
    until_cancelled(client, response_id)
    stored = client.responses.retrieve(response_id)
    assert stored.output_text
    (message,) = stored.output
    assert isinstance(message, ResponseOutputMessage)
    assert message.status == "incomplete"
    assert stored.usage is not None
    assert 0 < stored.usage.output_tokens <= row["sent_tokens"]


def test_while_waiting_for_a_body(
    gateway: GatewayProcess, key: str, simulator: SimulatorProcess
) -> None:
    with closing(RawClient(gateway.url, key, SLOW, 4004, stream=False)) as client:
        simulator.until_request(lambda row: is_running(row, 4004) and row["sent_tokens"] > 0)
        assert not client.has_been_answered()
    simulator.until_request(lambda row: was_aborted(row, 4004))


def is_running(row: dict[str, Any], mark: int) -> bool:
    return bool(row["max_tokens"] == mark and row["outcome"] == "running")


def was_aborted(row: dict[str, Any], mark: int) -> bool:
    return bool(row["max_tokens"] == mark and row["aborted"])


def until_cancelled(client: OpenAI, response_id: str) -> None:
    """Retrieve it until it is committed, which is after the backend was told."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        with suppress(NotFoundError):
            assert client.responses.retrieve(response_id).status == "cancelled"
            return
        time.sleep(STEP_S)
    raise TimeoutError(f"{response_id} was never stored")
