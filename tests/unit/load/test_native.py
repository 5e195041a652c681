"""The native programs: a short exchange passes, and a stream that is wrong is noticed."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, ClassVar
from urllib.request import Request, urlopen

import pytest
from typing_extensions import override

from tests.fakes.harmony_script import vocabulary
from tests.load import accounting, loading, programs
from tests.load.loading import Load
from tests.load.marks import shared_marks
from tests.load.processes import RowFailed, RunVoid
from tests.load.stack import Stack, replaying
from tests.load.systems import System
from tests.load.tape import words, write_tape

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.load.figures import Figures
    from tests.load.systems import Kind

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
LOAD = Load(streams=4, requests=12, tokens=40)
KINDS: list[Kind] = ["completions", "chat", "responses"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> programs.Programs:
    return programs.build(tmp_path_factory.mktemp("programs"))


@cache
def tape() -> bytes:
    return write_tape(vocabulary())


@contextmanager
def exchanging(folder: Path, built: programs.Programs, replayed: bytes) -> Iterator[Stack]:
    """A backend that replays this, for clients that expect the tape."""
    expected, said = folder / "tape", folder / "replayed"
    expected.write_bytes(tape())
    said.write_bytes(replayed)
    with shared_marks() as marks, replaying(folder, built, said, marks) as backend:
        yield Stack(
            folder=folder,
            programs=built,
            tape=expected,
            marks=marks,
            backend=backend,
            database_url="",
            database_pid=0,
            key="none",
            offered=["backend"],
        )


def run(stack: Stack, kind: Kind, load: Load, *, is_peer: bool = False) -> Figures:
    system = System("backend", "backend", kind, is_peer=is_peer)
    return loading.run(stack, system, load, [stack.backend])


@pytest.mark.slow
@pytest.mark.parametrize("rate_per_s", [0, 400])
@pytest.mark.parametrize("kind", KINDS)
def test_every_word_of_a_stream_arrives_in_an_event_of_its_own(
    tmp_path: Path, built: programs.Programs, kind: Kind, rate_per_s: float
) -> None:
    load = Load(streams=4, requests=12, tokens=40, rate_per_s=rate_per_s)
    with exchanging(tmp_path, built, tape()) as stack:
        seen = run(stack, kind, load)
        assert stack.marks.sent_ns(1, 0) > 0
    assert seen["requests"] == load.requests
    assert seen["words"] == seen["events"] == load.requests * load.words
    assert seen["first_p50_us"] > 0
    assert seen["latency_p50_us"] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_may_come_in_one_piece(
    tmp_path: Path, built: programs.Programs, kind: Kind
) -> None:
    load = Load(streams=4, requests=12, tokens=40, streamed=False)
    with exchanging(tmp_path, built, tape()) as stack:
        seen = run(stack, kind, load)
    assert seen["words"] == load.requests * load.words
    assert seen["events"] == load.requests


def in_place_of(old: bytes, new: bytes) -> bytes:
    assert len(old) == len(new)
    assert old in tape()
    return tape().replace(old, new)


def wrong_word() -> bytes:
    """One word comes in place of another."""
    one, other = (word.encode() for _, word in words(vocabulary())[5:7])
    return in_place_of(b'"text":"%s"' % one, b'"text":"%s"' % other)


def unknown_word() -> bytes:
    """The first word of all streams is none."""
    (_, word), *_ = words(vocabulary())
    return in_place_of(b'"text":"%s"' % word.encode(), b'"text":"####"')


def no_text() -> bytes:
    """One word never comes."""
    _, word = words(vocabulary())[9]
    return in_place_of(b'"text":"%s"' % word.encode(), b'"Text":"%s"' % word.encode())


def no_end() -> bytes:
    return in_place_of(b"data: [DONE]", b"data: [dawn]")


@pytest.mark.parametrize(
    ("replayed", "why"),
    [
        (wrong_word, "another word"),
        (unknown_word, "a word that the backend does not know"),
        (no_text, "another word"),
        (no_end, "no terminal event"),
    ],
)
def test_a_wrong_stream_voids_the_run(
    tmp_path: Path, built: programs.Programs, replayed: object, why: str
) -> None:
    assert callable(replayed)
    with exchanging(tmp_path, built, replayed()) as stack, pytest.raises(RunVoid, match=why):
        run(stack, "completions", Load(streams=2, requests=8, tokens=80))


def test_an_answer_of_another_length_voids_the_run(
    tmp_path: Path, built: programs.Programs
) -> None:
    class Longer(Load):
        """Expects a word more than it asks for."""

        @property
        @override
        def words(self) -> int:
            return super().words + 1

    with exchanging(tmp_path, built, tape()) as stack, pytest.raises(RunVoid, match="missing"):
        run(stack, "chat", Longer(streams=1, requests=1, tokens=40))


def test_a_response_that_does_not_complete_fails_its_row_alone_if_it_is_a_peers(
    tmp_path: Path, built: programs.Programs
) -> None:
    replayed = in_place_of(b'"type":"response.completed"', b'"type":"response.confused."')
    with exchanging(tmp_path, built, replayed) as stack, pytest.raises(RowFailed, match="terminal"):
        run(stack, "responses", LOAD, is_peer=True)


class Relay(BaseHTTPRequestHandler):
    """Answers every GET with what the backend streams."""

    protocol_version = "HTTP/1.1"
    backend_port = 0
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        body = System("backend", "backend", "responses").body(LOAD.tokens)
        request = Request(f"http://127.0.0.1:{self.backend_port}/v1/responses", body)
        with urlopen(request) as answer:
            stream = answer.read()
        self.send_response(200)
        self.send_header("content-length", str(len(stream)))
        self.end_headers()
        self.wfile.write(stream)

    @override
    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.slow
def test_a_response_can_be_created_in_one_place_and_read_in_another(
    tmp_path: Path, built: programs.Programs
) -> None:
    with (
        exchanging(tmp_path, built, tape()) as stack,
        ThreadingHTTPServer(("127.0.0.1", 0), Relay) as relay,
    ):
        Relay.backend_port = stack.backend.port
        thread = Thread(target=relay.serve_forever)
        thread.start()
        try:
            seen = run(stack, "responses", replace(LOAD, followed_on=relay.server_port))
        finally:
            relay.shutdown()
            thread.join()
    assert seen["words"] == LOAD.requests * LOAD.words
    assert set(Relay.asked) == {"/v1/responses/resp_66615907c7144918?stream=true"}


def test_the_times_of_all_words_are_kept(tmp_path: Path, built: programs.Programs) -> None:
    times = tmp_path / "times"
    with exchanging(tmp_path, built, tape()) as stack:
        run(stack, "responses", replace(LOAD, times=str(times)))
    kept = loading.word_times(times)
    assert len(kept) == LOAD.requests * (LOAD.words - 2)
    assert all(0 < sent < read for sent, read in kept)


def test_sources_that_do_not_compile_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("backend.c", "answers.c", "shared.c"):
        (tmp_path / name).write_text("nothing that is C\n")
    monkeypatch.setattr(programs, "SOURCES", tmp_path)
    with pytest.raises(programs.NoCompiler, match="backend does not compile"):
        programs.build(tmp_path / "built")


def test_cpu_of_a_process_is_counted_in_less_than_ticks() -> None:
    before = accounting.cpu_s(os.getpid())
    sum(range(10_000))
    assert before < accounting.cpu_s(os.getpid()) < before + 60


def test_memory_of_a_process_is_at_least_its_share() -> None:
    rss, pss = accounting.memory_kib(os.getpid())
    assert rss >= pss > 0
