from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import jsonschema
import orjson
import pytest
from starlette.routing import Route

from gateway.admin.resources import admin_routes, operator_routes
from gateway.admin.roles import LACKING
from gateway.api.openapi.endpoints import ADMIN_FILE, FILE, REFERENCE, packaged, page
from gateway.app import routes
from gateway.eventlog.fold import lifecycle
from gateway.protocol.responses.create_request import PARAMETERS
from gateway.protocol.stream_events import TERMINAL_TYPES
from scripts.openapi import generate
from scripts.openapi.admin_listener import admin_document
from scripts.openapi.operations import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

HIDDEN = {"/", "/openapi.json", "/docs"}
"""Pages for people, and the document itself."""


class Anything:
    """A process and its settings: endpoints are made of them that nobody calls."""

    def __getattr__(self, name: str) -> Any:
        return Anything()

    def __call__(self, *_: object, **__: object) -> Anything:
        return self


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(packaged())
    return found


@pytest.fixture(scope="module", params=[FILE, ADMIN_FILE])
def each(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Each of the two documents."""
    found: dict[str, Any] = orjson.loads(packaged(request.param))
    return found


def served() -> set[tuple[str, str]]:
    """Methods and paths, spelled as in the document."""
    found = set()
    for route in routes(Anything()):  # type: ignore[arg-type]
        if isinstance(route, Route) and route.path not in HIDDEN:
            path = re.sub(r"\{model_id:path\}", "{model}", route.path)
            found |= {(method.lower(), path) for method in route.methods or () if method != "HEAD"}
    return found


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(target := value.get("$ref"), str):
            yield target.removeprefix(REFERENCE)
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list):
        for part in value:
            yield from references(part)


@pytest.mark.slow
def test_the_packaged_document_is_the_one_that_is_made() -> None:
    # pytest would need minutes to tell where two documents differ.
    is_same = packaged() == generate.encoded(generate.document())
    assert is_same, "run: make openapi"
    is_same = packaged(ADMIN_FILE) == generate.encoded(admin_document())
    assert is_same, "run: make openapi"


def test_every_route_is_documented_and_every_documented_route_is_there() -> None:
    assert {(one.method, one.path) for one in OPERATIONS} == served()


def test_every_route_of_the_admin_planes_is_documented_or_only_refuses() -> None:
    document = orjson.loads(packaged(ADMIN_FILE))
    documented = {(method, path) for path, one in document["paths"].items() for method in one}
    nobody: Any = Anything()
    served = [*admin_routes(nobody), *operator_routes(nobody)]
    assert documented == {(one.method.lower(), one.url) for one in served if not one.refuses}
    refusing = {one.url for one in served if one.refuses}
    assert all(
        any(url.startswith(f"/v1{path}") for path in LACKING) or "/roles" in url for url in refusing
    )


def test_what_a_route_of_the_admin_planes_reads_is_documented() -> None:
    """A route that reads a body says so, or its request fails: `AdminCall.body`."""
    paths = orjson.loads(packaged(ADMIN_FILE))["paths"]
    for methods in paths.values():
        for method, operation in methods.items():
            assert ("requestBody" in operation) == (method == "post"), operation["operationId"]
            assert re.fullmatch(r"[A-Z][a-z]+[a-z :]* [a-z ]+", operation["summary"])


def test_operations_have_ids_of_their_own(each: dict[str, Any]) -> None:
    named = [one["operationId"] for methods in each["paths"].values() for one in methods.values()]
    assert len(set(named)) == len(named)


def test_parameters_in_paths_are_those_of_the_path(each: dict[str, Any]) -> None:
    for path, methods in each["paths"].items():
        for operation in methods.values():
            parameters = operation.get("parameters", [])
            named = [one["name"] for one in parameters if one["in"] == "path"]
            assert named == re.findall(r"\{(\w+)\}", path)


def test_references_lead_somewhere_and_every_schema_is_used(each: dict[str, Any]) -> None:
    known = set(each["components"]["schemas"])
    assert set(references(each)) == known


@pytest.mark.slow
def test_every_schema_is_one(each: dict[str, Any]) -> None:
    for schema in each["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_parameter_of_a_response_is_described(made: dict[str, Any]) -> None:
    properties = made["components"]["schemas"]["CreateResponse"]["properties"]
    assert properties.keys() == PARAMETERS - generate.UNSERVED_PROPERTIES
    assert all(one["description"] for one in properties.values())


def test_the_events_are_those_that_are_emitted() -> None:
    emitted = {lifecycle.OPENING_EVENT, lifecycle.ERROR_EVENT, *lifecycle.STATUS_EVENTS.values()}
    emitted |= {*lifecycle.EVENT_FIELDS, *TERMINAL_TYPES}
    assert emitted == generate.SERVED_EVENT_TYPES


def test_what_is_not_served_is_not_documented() -> None:
    text = packaged().decode()
    for word in ("file_search", "computer_use", "image_generation", "configuration_update"):
        assert f'"{word}"' not in text, word


def test_the_page_shows_every_operation_and_every_schema(made: dict[str, Any]) -> None:
    shown = page(made)
    for operation in OPERATIONS:
        assert f"id='{operation.id}'" in shown
    for name in made["components"]["schemas"]:
        assert f"id='schema-{name}'" in shown
    for link in re.findall(r"href='#([^']+)'", shown):
        assert f"id='{link}'" in shown or f"id={link}" in shown


def test_the_page_loads_nothing(made: dict[str, Any]) -> None:
    shown = page(made)
    assert not re.search(r"<script|<link|<img|src=|url\(|@import|https?://", shown)
