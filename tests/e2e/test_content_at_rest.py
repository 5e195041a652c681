"""Words of a tenant are nowhere in the clear: not in tables, files, the write-ahead log, log lines
or metrics, whatever way out a request takes.

Each word is looked for as text and as token ids. Such requests without encryption leave them in
all of these places but the log and the metrics, so what looks for them can find them.
"""

from __future__ import annotations

import json
import secrets
from base64 import b64encode
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx2
import pytest

from tests.e2e.canaries import (
    Peers,
    Speaker,
    peers,
    say_in_other_ways,
    say_over_a_websocket,
    say_to_outsiders,
    say_what_is_refused,
)
from tests.fakes.gateway import gateway_settings, new_key
from tests.fakes.http_client import NO_TLS
from tests.fakes.key_services import sealing
from tests.fakes.processes import gateway_process
from tests.fakes.stream import frames_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.postgres import PostgresServer
    from tests.fakes.processes import GatewayProcess, SimulatorProcess

MODEL: Final = "gpt-oss-20b"
LETTERS: Final = "bcdfghjklmnpqrstvwxz"
SLOW: Final = "[[sim tokens_per_s=30 tokens=600 think=none]] "
OK: Final = 200
WINDOW: Final = 4
"""So many ids in a row are no accident."""


def new_word() -> str:
    return "canary" + "".join(secrets.choice(LETTERS) for _ in range(18))


def id_patterns(word: str) -> list[bytes]:
    """Token ids of a word as columns of ids have them, and as entries of one id have them."""
    from tests.fakes.harmony_script import vocabulary

    ids = [one.to_bytes(4, "little") for one in vocabulary().encode(word)]
    some = ids[-WINDOW - 1 : -1]
    assert len(some) == WINDOW
    return [b"".join(some), b"\x42".join(some)]


@dataclass(frozen=True)
class Scene:
    """A gateway whose client says `word` wherever it can."""

    replica: GatewayProcess
    client: httpx2.Client
    word: str
    id_word: str
    """Said where only an id may stand: such words are names, and stay as they are."""

    def post(self, path: str, status: int = 200, **request: Any) -> Any:
        answer = self.client.post(path, **request)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content and status == 200 else None

    def create(self, said_: str, status: int = 200, /, **fields: Any) -> Any:
        said = {"model": MODEL, "input": f"{said_} {self.word}", **fields}
        return self.post("responses", status, json=said)


def say_everything(scene: Scene, *, is_kept: bool) -> None:
    """Every way in and every way out; without `is_kept` what would be stored is refused."""
    word, kept = scene.word, 200 if is_kept else 400
    brief = f"[[sim think=none say={word}]]"
    tool = {
        "type": "function",
        "name": f"f_{word}",
        "description": word,
        "parameters": {"type": "object", "properties": {word: {"type": "string"}}},
    }
    everywhere = {
        "instructions": word,
        "metadata": {"note": word},
        "user": word,
        "safety_identifier": word,
        "prompt_cache_key": word,
    }
    whole = scene.create(brief, **everywhere)
    scene.create(brief, store=False, **everywhere)
    scene.create(f'[[sim think=none call=f_{word} arguments={{"{word}": "{word}"}}]]', tools=[tool])
    scene.create(brief, kept, previous_response_id=whole["id"])
    scene.create(brief, kept, previous_response_id=whole["id"], store=False)
    list(
        frames_of(
            scene.client,
            "POST",
            "responses",
            json={"model": MODEL, "input": brief, "stream": True, "reasoning": {"effort": "high"}},
        )
    )
    say_what_fails(scene, brief)
    say_what_is_kept(scene, brief, kept)
    say_of_conversations(scene, brief, kept)
    say_in_files(scene, kept)
    scene.post("responses/input_tokens", json={"model": MODEL, "input": word})


def say_what_fails(scene: Scene, brief: str) -> None:
    word = scene.word
    leave(scene, f"{SLOW} {word}")
    scene.create(f"{brief} {word}", max_output_tokens=16)
    scene.create("[[sim die_after=3]]", 502)
    scene.create("[[sim error_after=3]]", 502)
    scene.create("[[sim status=400]]", 502)
    scene.create(brief, 400, temperature=word)
    scene.create(brief, 400, text={"format": {"type": word}})
    scene.create(brief, 404, model=f"no-{word}")


def say_what_is_kept(scene: Scene, brief: str, kept: int) -> None:
    word = scene.word
    scene.post(
        "chat/completions",
        json={
            "model": MODEL,
            "messages": [{"role": "user", "content": f"{brief} {word}"}],
            "store": True,
            "metadata": {"a": word},
        },
    )
    running = scene.create(SLOW, kept, background=True, stream=False)
    if running is not None:
        scene.post(f"responses/{running['id']}/cancel")
    key = {"idempotency-key": f"key-{word}"}
    keyed = {"model": MODEL, "input": f"{brief} {word}"}
    for _ in range(2):
        scene.post("responses", kept, json=keyed, headers=key)
    answer = scene.client.post(
        "traces/ingest",
        json={"data": [{"object": "trace", "id": f"t_{scene.id_word}", "workflow_name": word}]},
    )
    assert answer.status_code == (204 if kept == OK else kept)
    # A path is an id, or no word of ours; it is logged as it came unless nothing may be kept.
    path_word = scene.id_word if kept == OK else word
    tracked = {"x-client-request-id": path_word}
    for path in ("responses", "no", "conversations"):
        scene.client.get(f"{path}/{path_word}", headers=tracked)


def say_in_files(scene: Scene, kept: int) -> None:
    word = scene.word
    container = scene.post("containers", kept, json={"name": word})
    if container is not None:
        path = f"containers/{container['id']}/files"
        scene.post(path, files={"file": (f"{word}.txt", word.encode())})
        scene.post(path, files={"file": (f"{word}.txt", word.encode() * 2)})
        assert len(scene.client.get(path).json()["data"]) == 1, "the same name is the same file"
        python = {"type": "code_interpreter", "container": container["id"]}
        scene.create(f"[[sim steps=python x = '{word}'; quote]]", tools=[python])
    upload = {"file": (f"{word}.txt", word.encode() * 3)}
    scene.post("files", kept, files=upload, data={"purpose": "user_data"})


def say_of_conversations(scene: Scene, brief: str, kept: int) -> None:
    word = scene.word
    message = {"type": "message", "role": "user", "content": word}
    made = scene.post("conversations", kept, json={"metadata": {"a": word}, "items": [message]})
    if made is None:
        return
    path = f"conversations/{made['id']}"
    scene.post(path, json={"metadata": {"b": word}})
    scene.post(f"{path}/items", json={"items": [message]})
    scene.create(brief, conversation=made["id"])
    items = scene.client.get(f"{path}/items").json()["data"]
    assert word in json.dumps(items)
    assert scene.client.delete(f"{path}/items/{items[0]['id']}").status_code == 200


def leave(scene: Scene, text: str) -> None:
    """Hang up in the middle of a stream."""
    asked = {"model": MODEL, "input": text, "stream": True}
    frames = frames_of(scene.client, "POST", "responses", json=asked)
    for _ in range(6):
        next(frames)
    frames.close()


async def dumped(postgres: PostgresServer, url: str) -> dict[str, bytes]:
    """All rows of all tables, as a dump has them; what the server compressed is plain again."""
    tables = await postgres.fetch(
        "SELECT relname FROM pg_class"
        " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace",
        url=url,
    )
    found: dict[str, bytes] = {}
    for (table,) in tables:
        rows = await postgres.fetch(f'SELECT * FROM "{table}"', url=url)
        values = (value for row in rows for value in row.values())
        found[table] = b"\0".join(
            value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
            for value in values
        )
    return found


def hits(content: bytes, word: str) -> int:
    """How often a word is there, as text, as hex or base64 of it, or as ids."""
    shapes = [word.encode(), word.encode().hex().encode(), *id_patterns(word)]
    shapes += [b64encode(word.encode())[:24]]
    return sum(content.count(shape) for shape in shapes)


def files_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_bytes()


@contextmanager
def client_of(replica: GatewayProcess, key: str) -> Iterator[httpx2.Client]:
    headers = {"authorization": f"Bearer {key}"}
    with httpx2.Client(
        base_url=replica.base_url, headers=headers, timeout=60, trust_env=False, verify=NO_TLS
    ) as client:
        yield client


def say_to_all_others(scene: Scene, outside: Peers, *, is_kept: bool) -> None:
    speaker = Speaker(scene.client, scene.word, scene.id_word, is_kept)
    say_to_outsiders(speaker, outside)
    say_over_a_websocket(speaker)
    say_in_other_ways(speaker)
    say_what_is_refused(speaker)


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    with peers(tmp_path_factory.mktemp("booked")) as there:
        yield there


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("how", ["plain", "sealed", "nothing kept"])
async def test_words_are_nowhere_in_the_clear(
    how: str,
    postgres: PostgresServer,
    database_url: str,
    empty_database_url: str,
    simulator: SimulatorProcess,
    outside: Peers,
    tmp_path: Path,
) -> None:
    key = await new_key(gateway_settings(database_url, []), "acme")
    sections = outside.sections()
    if how != "plain":
        sections["encryption"] = sealing(tmp_path, empty_database_url)
    if how == "nothing kept":
        kept = "UPDATE tenants SET retention_type = 'zero_data_retention'"
        await postgres.fetch(kept, url=database_url)
    word = new_word()
    with (
        gateway_process(
            tmp_path, database_url, [simulator.url, outside.echo_url], **sections
        ) as replica,
        client_of(replica, key) as client,
    ):
        is_kept, id_word = how != "nothing kept", new_word()
        scene = Scene(replica, client, word, id_word)
        say_everything(scene, is_kept=is_kept)
        if how != "plain":  # where it is shown that words are found, these ways leave no others
            say_to_all_others(scene, outside, is_kept=is_kept)
        metrics = client.get(f"{replica.url}/metrics").content
        found = await dumped(postgres, database_url)
        replica.child.terminate()
        assert replica.child.exit_code() == 0, replica.child.output
        log = replica.child.output.encode()
    await postgres.execute("CHECKPOINT")
    ((folder,),) = await postgres.fetch("SHOW data_directory")
    in_tables = {table: count for table in found if (count := hits(found[table], word))}
    in_files = [name for name, content in files_of(Path(folder)) if hits(content, word)]
    assert hits(log, word) == 0, [line for line in log.splitlines() if hits(line, word)][:3]
    assert hits(metrics, word) == 0
    if how == "plain":
        told = {"responses", "messages", "conversations", "conversation_items", "files"}
        assert told | {"file_chunks", "traces"} <= set(in_tables)
        assert any(name.startswith("pg_wal") for name in in_files)
    else:
        assert in_tables == {}
        assert in_files == []
    rows = {table: found[table] for table in ("responses", "messages", "files", "traces")}
    assert all(bool(content) == (how != "nothing kept") for content in rows.values())
