"""Every place where work is handed to a thread or a process is in the table of docs/security.md,
with a bound that exists; the worst inputs that it names end, and nothing works on afterwards.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.robotparser import RobotFileParser

import pytest
from pydantic import BaseModel

from gateway.constraints.gbnf import UntranslatableGrammar
from gateway.constraints.lark import ebnf_of
from gateway.constraints.rules import TextGrammar, UnusableGrammar, UnusableSchema
from gateway.constraints.validation import CheckLimits
from gateway.constraints.validators import GrammarValidator, SchemaValidator
from gateway.errors import InvalidRequest
from gateway.protocol.hosted.grants import McpTool
from gateway.protocol.json_body import InputLimits, parse_object
from gateway.services.executor import ThreadExecutor
from gateway.settings import Settings
from gateway.tools.browser.document_reader import DocumentReader
from gateway.tools.browser.extraction import ReadLimits
from gateway.tools.browser.fetch import ROBOTS_BYTES_MAX
from gateway.tools.browser.fetched import Fetched, Unreadable
from gateway.tools.browser.page import Page, find
from gateway.tools.egress.json_values import ValueCount
from gateway.tools.mcp.arguments import BadArguments, checked
from tests.fakes.executor_calls import executor_calls, functions_of
from tests.fakes.harmony_script import vocabulary
from tests.fakes.hostile_pages import PAGES
from tests.fakes.work import is_waiting, readers, threads_at_work

if TYPE_CHECKING:
    from collections.abc import Callable

TABLE: Final = Path(__file__).parents[3] / "docs" / "security.md"
SETTINGS: Final = Settings()
LIMITS: Final = InputLimits(
    json_depth_max=SETTINGS.limits.json_depth_max,
    items_max=SETTINGS.limits.items_max,
    tools_max=SETTINGS.limits.tools_max,
    schema_bytes_max=SETTINGS.limits.schema_bytes_max,
    text_chars_max=SETTINGS.limits.text_chars_max,
    json_containers_max=SETTINGS.limits.json_containers_max,
)
BODY_BYTES: Final = SETTINGS.limits.body_bytes_max
GRAMMAR_CHARS: Final = SETTINGS.limits.grammar_bytes_max
REFUSED: Final = (
    BadArguments, InvalidRequest, UnusableGrammar, UnusableSchema, UntranslatableGrammar,
)  # fmt: skip


def rows() -> list[list[str]]:
    """The cells of each row of the table."""
    section = (
        TABLE.read_text("utf-8").partition("## Work on foreign bytes")[2].partition("\n## ")[0]
    )
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_thread_and_process_is_in_the_table() -> None:
    places = {place for _, code, _, _ in rows() for place in named(code)}
    assert executor_calls() - places == set()
    for place in places:
        module, function = place.split(":")
        assert function in functions_of(module), place


def test_every_row_has_a_bound_that_exists() -> None:
    for work, _, bounds, _ in rows():
        assert named(bounds), work
        for bound in named(bounds):
            assert value_of(bound) is not None, bound


def value_of(bound: str) -> Any:
    """Of a constant, by its module, or of a setting."""
    if bound.startswith("gateway."):
        module, _, name = bound.rpartition(".")
        return getattr(importlib.import_module(module), name)
    value: Any = SETTINGS
    for step in bound.split("."):
        assert isinstance(value, BaseModel), bound
        assert step in type(value).model_fields, bound
        value = getattr(value, step)
    return value


def in_thread(work: Callable[[Any], object], inputs: list[Any]) -> Callable[[], Any]:
    """Work as requests do it, on each input in turn; one that is refused has ended, too."""

    async def run() -> None:
        threads = ThreadExecutor(threads_max=2, inline_bytes_max=0)
        try:
            for given in inputs:
                with suppress(*REFUSED):
                    await threads.run(work, given, size_bytes=1)
        finally:
            threads.close()

    return run


async def hostile_documents() -> None:
    reader = DocumentReader(ReadLimits(pdf_timeout_s=2.0))
    for html in PAGES.values():
        with pytest.raises(Unreadable, match=r"nested deeper|has more than|too long"):
            await reader.read(Fetched("http://site.example/", "text/html", html.encode()))
    await reader.close()


async def hostile_arguments() -> None:
    options = [{"type": "object", "required": [f"a{number}"]} for number in range(2000)]
    schema = {"type": "object", "additionalProperties": {"items": {"anyOf": options}}}
    tool = McpTool("tool", schema)
    for written in ("[" * 1000, '{"a":' * 40 + "1" + "}" * 40, f'{{"a":[{"{}," * 20_000}{{}}]}}'):
        with pytest.raises(BadArguments):
            await checked(tool, written, bytes_max=1 << 20)


async def hostile_result() -> None:
    bound = SETTINGS.tools.mcp.result_values_max
    assert ValueCount(is_stream=False).add(b"[" * SETTINGS.tools.mcp.result_bytes_max) > bound


def body_of(piece: bytes) -> bytes:
    return b'{"input":[' + piece * ((BODY_BYTES - 20) // len(piece)) + b"1]}"


def doubled(levels: int, leaf: str) -> str:
    steps = [f"A{level}: A{level + 1} A{level + 1}" for level in range(levels)]
    return "\n".join(["start: A0", *steps, f"A{levels}: {leaf}"])


def check_schema(schema: dict[str, Any]) -> object:
    validator = SchemaValidator(schema, work_max=CheckLimits().work_max)
    return validator.fault("[" + "{}," * 20_000 + "{}]")


def compile_grammar(grammar: TextGrammar) -> object:
    return GrammarValidator(grammar, seconds_max=1.0).fault("ab" * 50_000)


def forking(levels: int) -> dict[str, Any]:
    steps = {
        f"s{level}": {"anyOf": [{"$ref": f"#/$defs/s{level + 1}"}] * 2} for level in range(levels)
    }
    return {"$defs": {**steps, f"s{levels}": {}}, "$ref": "#/$defs/s0"}


def regex(definition: str) -> TextGrammar:
    return TextGrammar("regex", definition[:GRAMMAR_CHARS])


def lark(definition: str) -> TextGrammar:
    return TextGrammar("lark", definition)


CASES: Final[dict[str, Callable[[], Any]]] = {
    "pages": hostile_documents,
    "lines": in_thread(
        lambda text: find(Page("", "", text), "x"), ["\n" * SETTINGS.tools.web.text_chars_max]
    ),
    "robots": in_thread(
        lambda text: RobotFileParser().parse(text.splitlines()),
        ["User-agent: *\n" + "Allow: /\n" * (ROBOTS_BYTES_MAX // 9)],
    ),
    "json": in_thread(
        lambda body: parse_object(body, LIMITS),
        [body_of(piece) for piece in (b"1,", b"[],", b'"\\\\[",', b"[")],
    ),
    "schema": in_thread(
        check_schema,
        [
            forking(40),
            {"type": "array", "items": {"anyOf": [{"required": [f"{n}"]} for n in range(2000)]}},
            {"properties": {f"{n}": {"pattern": rf"(\w{{1,30}}){{1,9}}{n}"} for n in range(256)}},
        ],
    ),
    "grammar": in_thread(
        compile_grammar,
        [
            lark(doubled(12, r"/\w*/")),
            lark(doubled(9, r"/\w*/")),
            lark("start: A\nA: " + " & ".join(rf"/(.|\n)*a.{{{n}}}(.|\n)*/" for n in range(50))),
            lark("start: start start | /a/ |"),
            lark(r"start: /(.|\n)*a(.|\n){60}b/"),
            regex(r"\w*" * 20_000),
            regex(r"\w*" * 700),
        ],
    ),
    "pattern": in_thread(
        ebnf_of,
        [
            regex(piece * GRAMMAR_CHARS)
            for piece in ("|", "[", "(", "[^a-z]|", r"(\w|)", "a{9999}", "\\")
        ],
    ),
    "text": in_thread(vocabulary().encode, [" " * SETTINGS.limits.text_chars_max]),
    "arguments": hostile_arguments,
    "result": hostile_result,
}


def test_every_worst_input_of_the_table_is_tried() -> None:
    assert [name for *_, tried in rows() for name in named(tried)] == list(CASES)


@pytest.mark.parametrize("name", CASES)
async def test_worst_input_ends_and_nothing_works_on(name: str) -> None:
    await CASES[name]()
    async with asyncio.timeout(30.0):
        while threads_at_work() or not all(map(is_waiting, readers())):  # noqa: ASYNC110 - others do
            await asyncio.sleep(0)
