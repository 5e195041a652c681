"""Background responses through OpenAI's clients, while the processes that generate them come and
go.
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from openai import BadRequestError

from tests.fakes.event_grammar import check_stream
from tests.fakes.key_services import sealing
from tests.fakes.processes import gateway_process, reserved_port, simulator_process
from tests.fakes.stream import as_events, frames_of, parse_stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from openai import AsyncOpenAI, OpenAI
    from openai.types.responses import Response

    from tests.fakes.processes import GatewayProcess

MODEL = "gpt-oss-20b"
BRIEF = "[[sim think=2 say=ok]] go"
SLOW = "[[sim tokens_per_s=100 tokens=400 think=none]] go"
SLOW_TOKENS = 404
WAIT_S = 60.0


def ended(client: OpenAI, response_id: str) -> Response:
    """As the documentation of OpenAI shows it: poll until it is over."""
    deadline = time.monotonic() + WAIT_S
    while (response := client.responses.retrieve(response_id)).status in {"queued", "in_progress"}:
        assert time.monotonic() < deadline, response
    return response


@pytest.mark.client("openai (Python)", "background")
def test_a_response_is_polled(client: OpenAI) -> None:
    queued = client.responses.create(model=MODEL, input=BRIEF, background=True)
    assert queued.status == "queued"
    response = ended(client, queued.id)
    assert (response.status, response.output_text) == ("completed", "ok")


@pytest.mark.client("openai (Python)", "background")
def test_a_stream_is_resumed_where_it_broke_off(client: OpenAI) -> None:
    with client.responses.create(
        model=MODEL, input="Hello there", background=True, stream=True
    ) as events:
        seen = [next(events) for _ in range(6)]
    (created, *_) = seen
    assert created.type == "response.created"
    with client.responses.retrieve(
        created.response.id, stream=True, starting_after=seen[-1].sequence_number
    ) as events:
        seen += events
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert seen[-1].type == "response.completed"


@pytest.mark.requirement("replay.from-the-start")
def test_the_stream_helper_resumes_too(client: OpenAI) -> None:
    queued = client.responses.create(model=MODEL, input=BRIEF, background=True, stream=True)
    with queued as events:
        first = next(iter(events))
    assert first.type == "response.created"
    with client.responses.stream(response_id=first.response.id, starting_after=3) as stream:
        numbers = [event.sequence_number for event in stream]
        final = stream.get_final_response()
    assert numbers[0] == 4
    assert final.output_text == "ok"


def test_a_response_is_cancelled(client: OpenAI) -> None:
    queued = client.responses.create(model=MODEL, input=SLOW, background=True)
    assert client.responses.cancel(queued.id).status == "cancelled"
    assert client.responses.cancel(queued.id).status == "cancelled"
    completed = client.responses.create(model=MODEL, input=BRIEF, background=True)
    ended(client, completed.id)
    with pytest.raises(BadRequestError, match="Cannot cancel a completed response"):
        client.responses.cancel(completed.id)


@pytest.mark.client("openai (Python)", "retries")
async def test_a_request_with_a_key_may_be_sent_twice(async_client: AsyncOpenAI) -> None:
    headers = {"Idempotency-Key": "one-order"}
    first, second = await asyncio.gather(
        *(
            async_client.responses.create(model=MODEL, input=BRIEF, extra_headers=headers)
            for _ in range(2)
        )
    )
    assert first.to_dict() == second.to_dict()


@dataclass(frozen=True)
class Replica:
    """A process, and a client of it."""

    process: GatewayProcess
    client: httpx2.Client

    def counted(self, metric: str) -> float:
        """What it says of itself in /metrics; 0 for what it does not mention."""
        lines = self.client.get("/metrics").text.splitlines()
        values = [line.split(" ")[-1] for line in lines if line.startswith(f"{metric} ")]
        return float(values[0]) if values else 0.0


@contextmanager
def replicas(
    database_url: str, key: str, folder: Path, lease_s: float, **more: Any
) -> Iterator[tuple[Replica, Replica]]:
    """Two replicas of the test's own, on one database, with one backend."""
    sections: dict[str, Any] = {"background": {"lease_s": lease_s}, **more}
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        simulator = stack.enter_context(simulator_process(port))
        started = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            process = stack.enter_context(
                gateway_process(folder / name, database_url, [simulator.url], **sections)
            )
            started.append(process)
        headers = {"authorization": f"Bearer {key}"}
        one, two = (
            Replica(
                process,
                stack.enter_context(
                    httpx2.Client(
                        base_url=process.url, headers=headers, timeout=WAIT_S, trust_env=False
                    )
                ),
            )
            for process in started
        )
        yield one, two


@pytest.mark.slow
@pytest.mark.requirement("accept.resume-elsewhere")
@pytest.mark.parametrize(
    ("lease_s", "signal", "is_sealed"),
    [(1.0, "kill", False), (600.0, "terminate", False), (1.0, "kill", True)],
    ids=["killed", "told to end", "killed, and all is sealed"],
)
def test_another_replica_goes_on_and_the_stream_is_the_same(
    database_url: str,
    empty_database_url: str,
    own_key: str,
    tmp_path: Path,
    lease_s: float,
    signal: str,
    is_sealed: bool,
) -> None:
    """Killed, it is silent until its lease has lapsed; told to end, it gives the lease back."""
    more = {"encryption": sealing(tmp_path, empty_database_url)} if is_sealed else {}
    with replicas(database_url, own_key, tmp_path, lease_s, **more) as pair:
        body = {"model": MODEL, "input": SLOW, "background": True, "stream": True}
        frames = frames_of(pair[0].client, "POST", "/v1/responses", json=body)
        whole = list(islice(frames, 10))
        frames.close()
        (response_id,) = re.findall(r'"response":\{"id":"(\w+)"', whole[0])
        path = f"/v1/responses/{response_id}"
        owner, survivor = sorted(pair, key=lambda one: -one.counted("gateway_claims_held"))
        query = {"stream": "true", "starting_after": str(len(whole) - 1)}
        rest = frames_of(survivor.client, "GET", path, params=query)
        whole += islice(rest, 5)
        getattr(owner.process.child, signal)()
        whole += rest
        events = parse_stream("".join(whole))
        check_stream(as_events(events))
        response = events[-1]["response"]
        assert response["status"] == "completed"
        assert response["usage"]["output_tokens"] == SLOW_TOKENS
        assert survivor.counted('gateway_claims_total{kind="taken_over"}') == 1
        assert list(frames_of(survivor.client, "GET", path, params={"stream": "true"})) == whole
        assert survivor.client.get(path).json() == response
        if signal == "terminate":
            assert owner.process.child.exit_code() == 0
            assert "Traceback" not in owner.process.child.output
