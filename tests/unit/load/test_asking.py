"""Single requests of the benchmark: when an answer is whole, and what it says."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from tests.fakes.harmony_script import vocabulary
from tests.load import texts
from tests.load.asking import Asking, asking, is_whole, parsed
from tests.load.processes import RunVoid
from tests.load.tape import WORDS, completion_frame, words, write_tape

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WITH_LENGTH = b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}'
IN_CHUNKS = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nevent \r\n3\r\none\r\n0\r\n\r\n"
)


@pytest.mark.parametrize("answer", [WITH_LENGTH, IN_CHUNKS])
def test_an_answer_is_whole_with_its_last_byte_and_not_before(answer: bytes) -> None:
    assert [end for end in range(len(answer) + 1) if is_whole(bytearray(answer[:end]))] == [
        len(answer)
    ]


def test_the_body_of_an_answer_is_put_together() -> None:
    assert parsed(WITH_LENGTH, 1000, 3500).json() == {"a": 1}
    assert parsed(IN_CHUNKS, 1000, 3500).body == b"event one"
    assert parsed(IN_CHUNKS, 1000, 3500).us == 2.5


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def answering(listener: socket.socket, *answers: bytes) -> threading.Thread:
    """Answers that many requests of one connection, then closes it."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            for answer in answers:
                connection.recv(65_536)
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_requests_share_a_connection_and_are_timed(listener: socket.socket) -> None:
    thread = answering(listener, WITH_LENGTH, IN_CHUNKS)
    with asking(listener.getsockname()[1], "key") as client:
        first, second = client.get("/v1/one"), client.post("/v1/two", {"b": 2})
    thread.join()
    assert (first.json(), second.body) == ({"a": 1}, b"event one")
    assert first.asked_ns < first.read_ns <= second.asked_ns < second.read_ns


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 429 Slow Down\r\ncontent-length: 4\r\n\r\nbusy", "429"),
        (WITH_LENGTH[:-1], "closed the connection"),
    ],
)
def test_an_answer_that_is_no_success_voids_the_run(
    listener: socket.socket, answer: bytes, why: str
) -> None:
    thread = answering(listener, answer)
    with asking(listener.getsockname()[1], "key") as client, pytest.raises(RunVoid, match=why):
        client.get("/")
    thread.join()


def test_a_request_says_how_long_its_body_is() -> None:
    with socket.socket() as unused:
        request = Asking(unused, "key").request("POST", "/v1/responses", b"{}")
    assert request.startswith(b"POST /v1/responses HTTP/1.1\r\n")
    assert b"authorization: Bearer key\r\n" in request
    assert request.endswith(b"content-length: 2\r\n\r\n{}")


def test_the_first_two_words_of_a_stream_tell_its_slot(tmp_path: Path) -> None:
    tape = tmp_path / "tape"
    tape.write_bytes(write_tape(vocabulary()))
    known = texts.words_of(tape)
    assert known == [word.encode() for _, word in words(vocabulary())]
    said = b"".join(b'data: {"delta":"%s","type":"x"}\n\n' % known[at] for at in (3, 9, 4))
    assert texts.slot_of(known, said) == 3 * WORDS + 9
    with pytest.raises(ValueError, match="not in list"):
        texts.slot_of(known, completion_frame("nothing of it", 1))


def test_a_text_has_as_many_tokens_as_words(tmp_path: Path) -> None:
    tape = tmp_path / "tape"
    tape.write_bytes(write_tape(vocabulary()))
    known = texts.words_of(tape)
    assert len(vocabulary().encode(texts.text(known, 500, seed=1))) == 500
    assert texts.text(known, 9, seed=1) != texts.text(known, 9, seed=2)
    roles = [texts.message(known, 2, number=number)["role"] for number in range(3)]
    assert roles == ["user", "assistant", "user"]
