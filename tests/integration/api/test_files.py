"""`/v1/files` and `/v1/containers`, asked by OpenAI's own client and by hand."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import openai
import pytest
from starlette.requests import Request

from gateway import ids
from gateway.admin.limits import LimitOwner, Limits
from gateway.api.client_connection import ClientDisconnected
from gateway.api.containers import download_response
from gateway.api.streaming import StreamLimits
from gateway.errors import ResourceNotFound
from gateway.protocol.hosted_tools import AutoContainer
from gateway.services.containers import Download, download
from gateway.settings.tools import Python, Tools
from gateway.store.postgres.statements import Statement
from gateway.store.tools import files as file_rows
from gateway.store.tools.files import CHUNK_BYTES
from gateway.tenancy import TenantId, default_project
from tests.fakes.bounds import bounds
from tests.fakes.gateway import gateway_settings, new_key, running_gateway
from tests.fakes.http_client import http_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from gateway.settings import Settings
    from gateway.store.postgres.database import Database
    from tests.fakes.gateway import RunningGateway
    from tests.fakes.observation import Backends

Json = dict[str, Any]
SMALL = Python(enabled=True, engine="monty", file_bytes_max=3 << 20, tenant_containers_max=30)
UNKNOWN = "0" * 32


@pytest.fixture(scope="module")
def python_settings(own_database_url: str, backends: Backends) -> Settings:
    return gateway_settings(own_database_url, backends.urls, tools=Tools(python=SMALL))


@pytest.fixture(scope="module")
async def running(python_settings: Settings) -> AsyncIterator[RunningGateway]:
    async with AsyncExitStack() as stack:
        with bounds("python.FileBounds", container_bytes_max=5 << 20, container_files_max=4):
            gateway = await stack.enter_async_context(running_gateway(python_settings))
        yield gateway


@asynccontextmanager
async def full_disk(database: Database) -> AsyncIterator[None]:
    """What a full disk refuses is played by a trigger: the error is the server's own."""
    for statement in (
        "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE disk_full; END $$",
        "CREATE TRIGGER full_disk BEFORE INSERT ON file_chunks EXECUTE FUNCTION no_room()",
    ):
        async with database.owner_transaction() as connection:
            await connection.execute(Statement(statement))
    yield
    async with database.owner_transaction() as connection:
        await connection.execute(Statement("DROP FUNCTION no_room CASCADE"))


async def client_of(running: RunningGateway, settings: Settings) -> openai.AsyncOpenAI:
    """A client of a tenant that nobody else has."""
    key = await new_key(settings, f"files-{ids.new_uuid()}")
    return openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0)


@pytest.fixture
async def sdk(
    running: RunningGateway, python_settings: Settings
) -> AsyncIterator[openai.AsyncOpenAI]:
    async with await client_of(running, python_settings) as opened:
        yield opened


@pytest.fixture
async def stranger_sdk(
    running: RunningGateway, python_settings: Settings
) -> AsyncIterator[openai.AsyncOpenAI]:
    async with await client_of(running, python_settings) as opened:
        yield opened


@pytest.fixture
async def raw(
    sdk: openai.AsyncOpenAI, running: RunningGateway
) -> AsyncIterator[httpx2.AsyncClient]:
    """The same tenant without OpenAI's client."""
    headers = {"authorization": f"Bearer {sdk.api_key}"}
    async with http_client(running.url, headers=headers) as opened:
        yield opened


async def refusal(answer: Any) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as caught:
        await answer
    return caught.value


async def test_a_file_is_uploaded_listed_downloaded_and_deleted(sdk: openai.AsyncOpenAI) -> None:
    content = bytes(range(256)) * 5000
    made = await sdk.files.create(file=("../dir/räport.bin", content), purpose="user_data")
    assert made.id.startswith("file-")
    assert (made.object, made.bytes, made.filename) == ("file", len(content), "räport.bin")
    assert (made.purpose, made.status, made.expires_at) == ("user_data", "processed", None)
    assert await sdk.files.retrieve(made.id) == made
    assert [file async for file in sdk.files.list()] == [made]
    assert [file async for file in sdk.files.list(purpose="vision")] == []
    answer = await sdk.files.content(made.id)
    assert answer.content == content
    disposition = "attachment; filename*=UTF-8''r%C3%A4port.bin"
    assert answer.response.headers["content-disposition"] == disposition
    assert answer.response.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.response.headers["content-security-policy"]
    gone = await sdk.files.delete(made.id)
    assert (gone.id, gone.deleted, gone.object) == (made.id, True, "file")
    for ask in (sdk.files.retrieve, sdk.files.content, sdk.files.delete):
        error = await refusal(ask(made.id))
        assert (error.status_code, error.type) == (404, "invalid_request_error")


async def test_what_means_nothing_is_named_in_a_header(raw: httpx2.AsyncClient) -> None:
    made = await raw.post("/v1/containers", json={"name": "c", "image": "debian", "ignored": []})
    assert made.headers["x-ignored-parameters"] == "image, ignored"
    form = {"file": ("a", b"a")}
    file = await raw.post("/v1/files", files=form, data={"purpose": "evals"})
    path = f"/v1/containers/{made.json()['id']}/files"
    added = await raw.post(path, json={"file_id": file.json()["id"], "path": "/b"})
    assert added.status_code == 200
    assert added.headers["x-ignored-parameters"] == "path"
    # OpenAI's clients send `expires_after[anchor]` and `expires_after[seconds]`.
    fields = {"purpose": "evals", "expires_after": '{"anchor":"created_at","seconds":3600}'}
    file = await raw.post("/v1/files", files=form, data=fields)
    assert file.headers["x-ignored-parameters"] == "expires_after"
    assert file.json()["expires_at"] is None


async def test_a_key_is_refused_where_a_request_would_be_done_twice(
    raw: httpx2.AsyncClient,
) -> None:
    form = {"file": ("a", b"a")}
    file = await raw.post("/v1/files", files=form, data={"purpose": "evals"})
    container = await raw.post("/v1/containers", json={"name": "c"})
    inside = f"/v1/containers/{container.json()['id']}/files"
    raw.headers["idempotency-key"] = "order-4711"
    for answer in (
        await raw.post("/v1/files", files=form, data={"purpose": "evals"}),
        await raw.post("/v1/containers", json={"name": "c"}),
        await raw.post(inside, files=form),
        await raw.post(inside, json={"file_id": file.json()["id"]}),
    ):
        refused = answer.json()["error"]
        assert (answer.status_code, refused["param"]) == (400, "Idempotency-Key")


async def test_a_form_may_name_an_uploaded_file(raw: httpx2.AsyncClient) -> None:
    form = {"file": ("a.txt", b"a")}
    file = await raw.post("/v1/files", files=form, data={"purpose": "evals"})
    container = await raw.post("/v1/containers", json={"name": "c"})
    path = f"/v1/containers/{container.json()['id']}/files"
    copied = await raw.post(path, files={"file_id": (None, file.json()["id"])})
    assert copied.status_code == 200, copied.text
    assert copied.json()["path"] == "/mnt/data/a.txt"
    unknown = await raw.post(path, files={"file_id": (None, "file-x")})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "file_id")
    neither = await raw.post(path, files={"other": (None, "x")})
    assert (neither.status_code, neither.json()["error"]["param"]) == (400, "file")


async def test_lists_are_read_backwards(sdk: openai.AsyncOpenAI, raw: httpx2.AsyncClient) -> None:
    container = await sdk.containers.create(name="c")
    inside = f"/v1/containers/{container.id}/files"
    for name in "abcd":
        await sdk.files.create(file=(name, b""), purpose="evals")
        await sdk.containers.create(name=name)
        await sdk.containers.files.create(container.id, file=(name, b""))
    for path in ("/v1/files", "/v1/containers", inside):
        ids_ = [one["id"] for one in (await raw.get(path)).json()["data"]]
        page = (await raw.get(path, params={"before": ids_[3], "limit": 2})).json()
        assert [one["id"] for one in page["data"]] == ids_[1:3]
        assert page["has_more"]
        first = (await raw.get(path, params={"before": ids_[1], "limit": 2})).json()
        assert [one["id"] for one in first["data"]] == ids_[:1]
        assert not first["has_more"]
        unknown = (await raw.get(path, params={"before": "x"})).json()
        assert unknown["error"]["param"] == "before"


@pytest.mark.slow
async def test_files_count_among_what_a_project_may_store(
    running: RunningGateway, python_settings: Settings
) -> None:
    key = await new_key(python_settings, name := f"files-{ids.new_uuid()}")
    limits = Limits(running.process.foundation.database)
    project = default_project(await limits.tenant(name))
    place = LimitOwner(TenantId(project), "project", project)
    await limits.set_limits(place, {("stored_bytes", 0): 10_000})
    sdk = openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0)
    made = await sdk.files.create(file=("a", b"." * 4_000), purpose="evals")
    container = await sdk.containers.create(name="c", file_ids=[made.id])
    for asked in (
        sdk.containers.files.create(container.id, file_id=made.id),
        sdk.containers.files.create(container.id, file=("b", b"." * 3_000)),
        sdk.containers.create(name="d", file_ids=[made.id]),
        sdk.files.create(file=("b", b"." * 2_001), purpose="evals"),
    ):
        error = await refusal(asked)
        assert (error.status_code, error.code) == (429, "insufficient_quota")
        assert "stored bytes of project" in error.message
    await sdk.files.create(file=("b", b"." * 2_000), purpose="evals")
    await sdk.close()


async def test_an_upload_may_expire(sdk: openai.AsyncOpenAI) -> None:
    after: Any = {"anchor": "created_at", "seconds": 3600}
    made = await sdk.files.create(file=("a", b""), purpose="batch", expires_after=after)
    assert made.expires_at == made.created_at + 3600
    assert (await sdk.files.content(made.id)).content == b""


@pytest.mark.slow
async def test_head_reads_as_get_does_and_writes_nothing(
    sdk: openai.AsyncOpenAI, raw: httpx2.AsyncClient
) -> None:
    file = await sdk.files.create(file=("a.txt", b"a"), purpose="user_data")
    container = await sdk.containers.create(name="one")
    inside = await sdk.containers.files.create(container.id, file_id=file.id)
    files, one = f"/v1/containers/{container.id}/files", f"/v1/files/{file.id}"
    readable = ("/v1/files", one, f"{one}/content", "/v1/containers", f"{files}/{inside.id}")
    for path in (*readable, files, f"{files}/{inside.id}/content"):
        read = await raw.get(path)
        # A key that may only read may send it, whatever is in it.
        headed = await raw.request("HEAD", path, json={"file_id": file.id})
        assert headed.status_code == read.status_code == 200
        assert headed.headers["content-length"] == read.headers["content-length"]
    assert [one.id async for one in sdk.containers.files.list(container.id)] == [inside.id]


async def test_head_reads_nothing_of_a_file() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        sent.append("a chunk")
        yield b"a"

    async def send(message: Any) -> None:
        sent.append(message["type"])

    sent: list[str] = []
    scope = {"type": "http", "method": "HEAD", "headers": []}
    response = download_response(Request(scope), Download("a.txt", 1, chunks()))
    await response(scope, Request(scope).receive, send)
    assert response.headers["content-length"] == "1"
    assert sent == ["http.response.start", "http.response.body"]


async def test_a_download_waits_only_so_long_for_its_client() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(1 << 20)
        finally:
            sent.append("closed")

    async def never(_: Any = None) -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(len(message.get("body", b"")))
        if len(sent) == 4:
            await never()

    sent: list[Any] = []
    scope = {"type": "http", "method": "GET", "headers": []}
    limits = StreamLimits(write_timeout_s=0.001, write_bytes_max=65_536)
    response = download_response(Request(scope), Download("a.txt", 1 << 30, chunks()), limits)
    with pytest.raises(ClientDisconnected):
        await response(scope, never, send)
    assert sent == [0, 65_536, 65_536, 65_536, "closed"]


async def test_a_download_of_a_deleted_file_ends_with_an_error(
    running: RunningGateway, python_settings: Settings
) -> None:
    key = await new_key(python_settings, name := f"files-{ids.new_uuid()}")
    database = running.process.foundation.database
    tenant = TenantId(await Limits(database).tenant(name))
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=key) as sdk:
        made = await sdk.files.create(file=("a", bytes(CHUNK_BYTES + 1)), purpose="user_data")
        uuid = ids.parse_file_id(made.id)
        assert uuid is not None
        row = await file_rows.load(database, tenant, uuid, now=datetime.now(UTC))
        assert row is not None
        chunks = download(database, tenant, row).chunks
        assert len(await anext(chunks)) == CHUNK_BYTES
        await sdk.files.delete(made.id)
    with pytest.raises(ResourceNotFound):
        await anext(chunks)


@pytest.mark.parametrize(
    ("fields", "files", "status", "param"),
    [
        ({"purpose": "user_data"}, {}, 400, "file"),
        ({}, {"file": ("a", b"1")}, 400, "purpose"),
        ({"purpose": "other"}, {"file": ("a", b"1")}, 400, "purpose"),
        ({"purpose": "evals"}, {"file": ("a\u202eb", b"1")}, 400, "file"),
        ({"purpose": "evals"}, {"file": ("..", b"1")}, 400, "file"),
        ({"purpose": "evals"}, {"file": ("x" * 257, b"1")}, 400, "file"),
        ({"purpose": "evals"}, {"file": ("a", bytes((3 << 20) + 1))}, 413, None),
        ({"purpose": "evals"}, {"file": ("a", bytes((4 << 20) + 1))}, 413, None),
        ({"purpose": "evals", "x": "y" * 70_000}, {"file": ("a", b"1")}, 400, None),
        (
            {"purpose": "evals", **{f"x{n}": "y" for n in range(20)}},
            {"file": ("a", b"")},
            400,
            None,
        ),
        ({"purpose": "evals"}, [("file", ("a", b"1")), ("file", ("b", b"1"))], 400, None),
        ({"purpose": "evals", "expires_after[seconds]": "1"}, {"file": ("a", b"")}, 400, "…anchor"),
        (
            {"purpose": "evals", "expires_after[anchor]": "created_at"},
            {"file": ("a", b"")},
            400,
            "…seconds",
        ),
        *(
            (
                {
                    "purpose": "evals",
                    "expires_after[anchor]": "created_at",
                    "expires_after[seconds]": seconds,
                },
                {"file": ("a", b"")},
                400,
                "…seconds",
            )
            for seconds in ("3599", "2592001", "x", "²")
        ),
    ],
)
async def test_uploads_that_are_refused(
    fields: Json, files: Any, status: int, param: str | None, raw: httpx2.AsyncClient
) -> None:
    answer = await raw.post("/v1/files", data=fields, files=files or {"other": ("o", b"1")})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == (param and param.replace("…", "expires_after."))
    assert (await raw.get("/v1/files")).json()["data"] == []


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b"--x"),
        ("multipart/form-data; boundary=x", b"--y\r\n\r\n"),
        ("multipart/form-data; boundary=x", b"--x\r\nnot a header\r\n\r\n--x--"),
    ],
)
async def test_bodies_that_are_no_forms(
    content_type: str, body: bytes, raw: httpx2.AsyncClient
) -> None:
    answer = await raw.post("/v1/files", content=body, headers={"content-type": content_type})
    assert answer.status_code == 400, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "charset", ["undefined", "punycode", "unicode_escape", '"utf-7"', "iso-8859-1", "UTF-8"]
)
async def test_a_form_is_utf_8_whatever_it_says(charset: str, raw: httpx2.AsyncClient) -> None:
    headers = {"content-type": f"multipart/form-data; Charset = {charset}; boundary=x"}

    async def upload(purpose: str) -> httpx2.Response:
        parts = [
            f'Content-Disposition: form-data; name="purpose"\r\n\r\n{purpose}',
            'Content-Disposition: form-data; name="file"; filename="räport.txt"\r\n\r\nhi',
        ]
        body = "".join(f"--x\r\n{part}\r\n" for part in parts) + "--x--\r\n"
        return await raw.post("/v1/files", content=body.encode(), headers=headers)

    made = await upload("user_data")
    assert (made.status_code, made.json()["filename"]) == (200, "räport.txt"), made.text
    refused = await upload("\\ud800+2AA-")
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == "purpose"


@pytest.mark.slow
async def test_lists_are_read_page_by_page(sdk: openai.AsyncOpenAI) -> None:
    names = [str(number) for number in range(5)]
    for name in names:
        await sdk.files.create(file=(name, b""), purpose="evals")
    pages = sdk.files.list(limit=2, order="asc")
    assert [file.filename async for file in pages] == names
    assert [file.filename async for file in sdk.files.list()] == names[::-1]
    for place in ("file-" + UNKNOWN, "nothing"):
        assert (await refusal(sdk.files.list(after=place))).param == "after"
    container = await sdk.containers.create(name="c")
    for name in names[:4]:
        await sdk.containers.files.create(container.id, file=(name, b""))
    listed = sdk.containers.files.list(container.id, limit=3, order="asc")
    assert [file.path async for file in listed] == [f"/mnt/data/{name}" for name in names[:4]]
    for place in ("cfile_" + UNKNOWN, "nothing"):
        error = await refusal(sdk.containers.files.list(container.id, after=place))
        assert error.param == "after"


@pytest.mark.slow
async def test_a_container_is_made_listed_and_deleted(sdk: openai.AsyncOpenAI) -> None:
    file = await sdk.files.create(file=("a.csv", b"1,2"), purpose="user_data")
    after: Any = {"anchor": "last_active_at", "minutes": 5}
    made = await sdk.containers.create(name="work", expires_after=after, file_ids=[file.id])
    assert made.id.startswith("cntr_")
    assert (made.object, made.name, made.memory_limit) == ("container", "work", "1g")
    assert made.expires_after is not None
    assert (made.expires_after.anchor, made.expires_after.minutes) == ("last_active_at", 5)
    assert made.network_policy is not None
    assert made.network_policy.type == "disabled"
    found = await sdk.containers.retrieve(made.id)
    assert found.model_dump() == made.model_dump()
    other = await sdk.containers.create(name="other")
    assert [each.id async for each in sdk.containers.list(limit=1)] == [other.id, made.id]
    assert [each.id async for each in sdk.containers.list(order="asc", name="work")] == [made.id]
    for place in ("cntr_" + UNKNOWN, "nothing"):
        assert (await refusal(sdk.containers.list(after=place))).param == "after"
    (copied,) = [each async for each in sdk.containers.files.list(made.id)]
    assert (copied.path, copied.bytes, copied.source) == ("/mnt/data/a.csv", 3, "user")
    gone = await sdk.containers.with_raw_response.delete(made.id)
    named = {"id": made.id, "object": "container.deleted", "deleted": True}
    assert (gone.status_code, gone.http_response.json()) == (200, named)
    for ask in (sdk.containers.retrieve, sdk.containers.delete):
        error = await refusal(ask(made.id))
        assert (error.status_code, error.code) == (404, "container_not_found")
        assert error.param == "container_id"
    content = sdk.containers.files.content.retrieve(copied.id, container_id=made.id)
    assert (await refusal(content)).status_code == 404
    assert (await sdk.files.content(file.id)).content == b"1,2"


async def test_a_name_that_no_container_can_hold_is_refused(sdk: openai.AsyncOpenAI) -> None:
    container = await sdk.containers.create(name="c")
    held = await sdk.containers.files.create(container.id, file=("é" * 127, b"1"))
    assert held.path == f"/mnt/data/{'é' * 127}"
    uploaded = await sdk.files.create(file=("é" * 128, b"1"), purpose="evals")
    for refused in (
        sdk.containers.files.create(container.id, file=("é" * 128, b"1")),
        sdk.containers.files.create(container.id, file_id=uploaded.id),
    ):
        error = await refusal(refused)
        assert error.status_code == 400
        assert "at most 255 bytes" in error.message


@pytest.mark.slow
async def test_files_of_a_container(sdk: openai.AsyncOpenAI, raw: httpx2.AsyncClient) -> None:
    container = await sdk.containers.create(name="c")
    made = await sdk.containers.files.create(container.id, file=("/etc/../x/one.txt", b"first"))
    assert (made.path, made.container_id) == ("/mnt/data/one.txt", container.id)
    again = await sdk.containers.files.create(container.id, file=("one.txt", b"second!"))
    assert (again.id, again.bytes) == (made.id, 7)
    content = await sdk.containers.files.content.retrieve(made.id, container_id=container.id)
    assert content.content == b"second!"
    uploaded = await sdk.files.create(file=("two.txt", b"2" * (2 << 20)), purpose="user_data")
    copied = await raw.post(f"/v1/containers/{container.id}/files", json={"file_id": uploaded.id})
    assert copied.json()["path"] == "/mnt/data/two.txt"
    found = await sdk.containers.files.retrieve(made.id, container_id=container.id)
    assert found.model_dump() == again.model_dump()
    gone = await raw.delete(f"/v1/containers/{container.id}/files/{made.id}")
    named = {"id": made.id, "object": "container.file.deleted", "deleted": True}
    assert (gone.status_code, gone.json()) == (200, named)
    for wrong in (made.id, uploaded.id, "cfile_" + UNKNOWN, "x"):
        error = await refusal(sdk.containers.files.retrieve(wrong, container_id=container.id))
        assert error.status_code == 404
    large = sdk.containers.files.create(container.id, file=("a", bytes((3 << 20) + 1)))
    assert (await refusal(large)).status_code == 413
    await sdk.containers.files.create(container.id, file=("three", bytes(2 << 20)))
    over = await refusal(sdk.containers.files.create(container.id, file=("b", bytes(2 << 20))))
    assert (over.status_code, over.code) == (400, "container_full")
    for name in "cd":
        await sdk.containers.files.create(container.id, file=(name, b""))
    many = await refusal(sdk.containers.files.create(container.id, file=("e", b"")))
    assert (many.status_code, many.code) == (400, "container_full")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "n", "memory_limit": "2g"}, "memory_limit"),
        ({"name": "n", "memory_limit": "4g"}, "memory_limit"),
        ({"name": "n", "network_policy": {"type": "allowlist"}}, "network_policy.type"),
        ({"name": "n", "skills": [{}]}, "skills"),
        ({"name": "n", "file_ids": ["file-" + UNKNOWN]}, "file_ids"),
        ({"name": "n", "file_ids": ["x"] * 51}, "file_ids"),
        (
            {"name": "n", "expires_after": {"anchor": "last_active_at", "minutes": 21}},
            "expires_after.minutes",
        ),
    ],
)
async def test_containers_that_are_refused(body: Json, param: str, raw: httpx2.AsyncClient) -> None:
    answer = await raw.post("/v1/containers", json=body)
    assert answer.status_code in {400, 404}, answer.text
    assert answer.json()["error"]["param"] == param
    assert (await raw.get("/v1/containers")).json()["data"] == []


async def test_container_without_room_for_its_files_is_not_made(sdk: openai.AsyncOpenAI) -> None:
    content = bytes(3 << 20)
    made = [await sdk.files.create(file=(name, content), purpose="user_data") for name in "ab"]
    error = await refusal(sdk.containers.create(name="c", file_ids=[one.id for one in made]))
    assert (error.status_code, error.code) == (400, "container_full")
    assert [each async for each in sdk.containers.list()] == []


async def test_a_container_whose_files_the_database_cannot_write_is_not_made(
    sdk: openai.AsyncOpenAI, running: RunningGateway
) -> None:
    made = await sdk.files.create(file=("a", b"a"), purpose="user_data")
    async with full_disk(running.process.foundation.database):
        error = await refusal(sdk.containers.create(name="c", file_ids=[made.id]))
    assert error.status_code == 503
    assert [each async for each in sdk.containers.list()] == []


@pytest.mark.slow
async def test_a_tenant_has_so_many_containers(sdk: openai.AsyncOpenAI) -> None:
    made = await sdk.containers.create(name="c", skills=[], memory_limit="1g")
    for _ in range(SMALL.tenant_containers_max - 1):
        await sdk.containers.create(name="c")
    error = await refusal(sdk.containers.create(name="c"))
    assert (error.status_code, error.code) == (429, "too_many_containers")
    assert error.response.headers["x-should-retry"] == "false"
    assert "retry-after" not in error.response.headers
    await sdk.containers.delete(made.id)
    await sdk.containers.create(name="c")


async def test_a_container_is_made_on_first_use_only_where_a_response_has_none(
    sdk: openai.AsyncOpenAI, running: RunningGateway
) -> None:
    made = await sdk.containers.create(name="c")
    principal = await running.process.access.authenticate(sdk.api_key)
    granted = partial(running.process.containers.granted, principal, ids.new_uuid())
    auto = AutoContainer(type="auto")
    assert (await granted(auto)).containers_max == SMALL.tenant_containers_max
    for grant in (await granted(made.id), await granted(auto, inherited=made.id)):
        assert (grant.container_id, grant.containers_max) == (made.id, None)


@pytest.mark.slow
async def test_others_see_nothing(
    sdk: openai.AsyncOpenAI, stranger_sdk: openai.AsyncOpenAI
) -> None:
    file = await sdk.files.create(file=("a", b"secret"), purpose="user_data")
    container = await sdk.containers.create(name="c", file_ids=[file.id])
    (held,) = [each async for each in sdk.containers.files.list(container.id)]
    theirs = await stranger_sdk.containers.create(name="c")
    assert [each async for each in stranger_sdk.files.list()] == []
    assert [each.id async for each in stranger_sdk.containers.list()] == [theirs.id]
    files = stranger_sdk.containers.files
    for attack in (
        stranger_sdk.files.retrieve(file.id),
        stranger_sdk.files.content(file.id),
        stranger_sdk.files.delete(file.id),
        stranger_sdk.files.list(after=file.id),
        stranger_sdk.containers.retrieve(container.id),
        stranger_sdk.containers.delete(container.id),
        stranger_sdk.containers.list(after=container.id),
        stranger_sdk.containers.create(name="c", file_ids=[file.id]),
        files.create(container.id, file=("b", b"1")),
        files.create(theirs.id, file_id=file.id),
        files.list(container.id),
        files.retrieve(held.id, container_id=container.id),
        files.retrieve(held.id, container_id=theirs.id),
        files.content.retrieve(held.id, container_id=theirs.id),
        files.delete(held.id, container_id=theirs.id),
    ):
        assert (await refusal(attack)).status_code in {400, 404}
    assert (await sdk.files.content(file.id)).content == b"secret"
    assert len([each async for each in sdk.containers.files.list(container.id)]) == 1


async def test_an_expired_container_is_told_from_an_unknown_one(
    sdk: openai.AsyncOpenAI, running: RunningGateway
) -> None:
    container = await sdk.containers.create(name="c")
    pool = running.process.foundation.containers
    now = pool.now
    later = timedelta(seconds=pool.policy.idle_s + 1)
    pool.now = lambda: now() + later
    try:
        error = await refusal(sdk.containers.retrieve(container.id))
        assert (error.status_code, error.code) == (400, "container_expired")
        put = sdk.containers.files.create(container.id, file=("a", b""))
        assert (await refusal(put)).code == "container_expired"
        assert [each async for each in sdk.containers.list()] == []
    finally:
        pool.now = now
    unknown = await refusal(sdk.containers.retrieve("cntr_" + UNKNOWN))
    assert unknown.status_code == 404


async def test_without_python_there_are_neither(client: httpx2.AsyncClient) -> None:
    for method, path in (
        ("GET", "/v1/files"),
        ("POST", "/v1/files"),
        ("GET", "/v1/containers"),
        ("POST", f"/v1/containers/cntr_{UNKNOWN}/files"),
    ):
        answer = await client.request(method, path)
        assert answer.status_code == 404
        assert "tools.python.enabled" in answer.json()["error"]["message"]


async def test_a_form_is_not_taken_compressed(running: RunningGateway) -> None:
    headers = {**running.headers, "content-encoding": "gzip"}
    async with http_client(running.url, headers=headers) as client:
        answer = await client.post("/v1/files", files={"file": b"x"}, data={"purpose": "user_data"})
    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "unsupported_content_encoding"
    assert answer.headers["accept-encoding"] == "identity"
