"""The ends of processes: a replica that drains, a backend that is killed and comes back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2
import psutil
import pytest
from openai import DefaultHttpxClient, InternalServerError, OpenAI

from gateway.devdb.embedded import PID_FILE
from gateway.store.migration.migrate import upgrade
from tests.fakes.event_grammar import check_stream
from tests.fakes.gateway import gateway_settings, new_key
from tests.fakes.http_client import NO_TLS
from tests.fakes.postgres import embedded, reachable_folder
from tests.fakes.processes import gateway_process, reserved_port, simulator_process
from tests.fakes.stream import as_events, parse_stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from tests.fakes.processes import GatewayProcess, SimulatorProcess

MODEL = "gpt-oss-20b"
PACED = "[[sim tokens_per_s=40 tokens=40 think=none]] go"
ENDLESS = "[[sim tokens_per_s=40 tokens=5000 think=none]] go"
TENANTS = 3
SECTIONS: dict[str, Any] = {
    "server": {"drain_grace_s": 20},
    "upstream": {"health_interval_s": 0.1, "probe_interval_s": 0.5},
}


@dataclass(frozen=True)
class Pair:
    """A replica and its only backend, which the test may kill and start again."""

    gateway: GatewayProcess
    simulator: SimulatorProcess
    start_simulator_again: Callable[[], None]
    key: str

    def kill_simulator(self) -> None:
        """As the kernel kills one that takes too much memory."""
        assert self.simulator.child is not None
        self.simulator.child.kill()

    @contextmanager
    def client(
        self, max_retries: int = 0, on_answer: Callable[[httpx2.Response], None] | None = None
    ) -> Iterator[OpenAI]:
        """OpenAI's client; `on_answer` sees every HTTP answer, retried ones included."""
        hooks: Any = {"response": [on_answer] if on_answer else []}
        http_client = DefaultHttpxClient(trust_env=False, verify=NO_TLS, event_hooks=hooks)
        with OpenAI(
            base_url=self.gateway.base_url,
            api_key=self.key,
            max_retries=max_retries,
            http_client=http_client,
        ) as opened:
            yield opened


@pytest.fixture
def pair(database_url: str, own_key: str, tmp_path: Path) -> Iterator[Pair]:
    """Both of this test's own."""
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        simulator = stack.enter_context(simulator_process(port))
        gateway = stack.enter_context(
            gateway_process(tmp_path, database_url, [simulator.url], **SECTIONS)
        )
        assert gateway.url

        def again() -> None:
            stack.enter_context(simulator_process(port))

        yield Pair(gateway, simulator, again, own_key)


def test_a_replica_that_is_told_to_end_finishes_its_stream(pair: Pair) -> None:
    with (
        pair.client() as client,
        client.responses.create(model=MODEL, input=PACED, stream=True) as events,
    ):
        seen = [next(events) for _ in range(6)]
        pair.gateway.child.terminate()
        seen += events
    assert seen[5].type == "response.output_text.delta"
    assert seen[-1].type == "response.completed"
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert pair.gateway.child.exit_code() == 0
    assert "Traceback" not in pair.gateway.child.output


@pytest.mark.slow
def test_what_has_not_ended_within_the_grace_is_answered_or_cut_off(
    database_url: str, own_key: str, tmp_path: Path
) -> None:
    headers = {"authorization": f"Bearer {own_key}"}
    body = {"model": MODEL, "input": ENDLESS, "max_output_tokens": 4001}
    with reserved_port() as port, simulator_process(port) as backend, ExitStack() as stack:
        gateway = stack.enter_context(
            gateway_process(tmp_path, database_url, [backend.url], server={"drain_grace_s": 1})
        )
        url = f"{gateway.base_url}/responses"
        client = stack.enter_context(httpx2.Client(headers=headers, timeout=30, trust_env=False))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        waiting = pool.submit(client.post, url, json=body)
        backend.until_request(lambda row: row["max_tokens"] == 4001)
        with client.stream("POST", url, json=body | {"stream": True}) as stream:
            parts = stream.iter_text()
            assert next(parts)
            gateway.child.terminate()
            with pytest.raises(httpx2.RemoteProtocolError):
                "".join(parts)
        answer = waiting.result()
        assert gateway.child.exit_code() == 0
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["code"] == "server_is_overloaded"
    assert "Exception in ASGI application" not in gateway.child.output
    assert "without completing response" not in gateway.child.output


def test_a_killed_backend_fails_the_stream_and_what_it_said_is_stored(pair: Pair) -> None:
    with httpx2.Client(
        base_url=pair.gateway.base_url,
        headers={"authorization": f"Bearer {pair.key}"},
        timeout=30,
        trust_env=False,
    ) as client:
        body = {"model": MODEL, "input": ENDLESS, "stream": True}
        with client.stream("POST", "/responses", json=body) as answer:
            received = ""
            for text in answer.iter_text():
                if "output_text.delta" not in received and "output_text.delta" in text:
                    pair.kill_simulator()
                received += text
        stream = check_stream(as_events(parse_stream(received)))
        stored = client.get(f"/responses/{stream.response['id']}").json()
    assert stream.types()[-2:] == ["error", "response.failed"]
    assert stream.response["error"]["code"] == "server_error"
    assert stream.items[0]["content"][0]["text"] != ""
    assert stored == stream.response


def test_a_request_is_retried_until_the_backend_is_back(pair: Pair) -> None:
    pair.kill_simulator()
    with pair.client() as impatient, pytest.raises(InternalServerError) as caught:
        impatient.responses.create(model=MODEL, input="Hello there")
    assert caught.value.status_code == 503
    assert caught.value.code == "server_is_overloaded"
    assert int(caught.value.response.headers["retry-after"]) > 0
    answers: list[int] = []

    def bring_it_back(answer: httpx2.Response) -> None:
        answers.append(answer.status_code)
        if len(answers) == 1:
            pair.start_simulator_again()

    with pair.client(max_retries=10, on_answer=bring_it_back) as patient:
        response = patient.responses.create(model=MODEL, input="Hello there")
    assert "Hello there" in response.output_text
    assert set(answers[:-1]) == {503}
    assert answers[-1] == 200


@dataclass(frozen=True)
class Silenceable:
    """A PostgreSQL of the test's own, and keys of several tenants."""

    url: str
    keys: tuple[str, ...]
    data: Path

    @contextmanager
    def silent(self) -> Iterator[None]:
        """All connections stay, new ones are accepted by the kernel, and nothing is answered."""
        (file,) = self.data.rglob(PID_FILE)
        server = psutil.Process(int(file.read_text().split()[0]))
        server.suspend()
        frozen = [server, *server.children(recursive=True)]
        for process in frozen[1:]:
            process.suspend()
        try:
            yield
        finally:
            for process in frozen:
                process.resume()


@pytest.fixture
async def silenceable() -> AsyncIterator[Silenceable]:
    with reachable_folder() as folder, embedded(folder / "data") as server:
        await upgrade(server.url)
        settings = gateway_settings(server.url, [])
        keys = [await new_key(settings, f"tenant-{number}") for number in range(TENANTS)]
        yield Silenceable(server.url, tuple(keys), folder / "data")


@pytest.mark.slow
def test_a_replica_ends_soon_although_its_database_is_silent(
    silenceable: Silenceable, simulator: SimulatorProcess, tmp_path: Path
) -> None:
    """The uses of its keys, a statement for each tenant, wait to be written."""
    with gateway_process(tmp_path, silenceable.url, [simulator.url], **SECTIONS) as gateway:
        for key in silenceable.keys:
            headers = {"authorization": f"Bearer {key}"}
            models = httpx2.get(f"{gateway.base_url}/models", headers=headers, trust_env=False)
            assert models.status_code == 200
        with silenceable.silent():
            gateway.child.terminate()
            assert gateway.child.exit_code() == 0
        assert "the last uses of keys" in gateway.child.output
        assert "Traceback" not in gateway.child.output
