"""Every place where work is handed to a thread or a process is in the table of docs/security.md,
with a bound that exists; the worst inputs that it names end, and nothing works on afterwards.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from base64 import urlsafe_b64encode
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.robotparser import RobotFileParser

import orjson
import pytest
from pydantic import BaseModel
from starlette.requests import Request

from gateway.api.content_encoding import decoded
from gateway.api.multipart import FormReader
from gateway.api.request_context import RequestRecord
from gateway.constraints.gbnf import UntranslatableGrammar
from gateway.constraints.lark import ebnf_of
from gateway.constraints.output_rules import TextGrammar, UnusableGrammar, UnusableSchema
from gateway.constraints.validation import WORK_MAX
from gateway.constraints.validators import GrammarValidator, SchemaValidator
from gateway.errors import InvalidRequest, PayloadTooLarge, TokenRefused, UpstreamFailed
from gateway.generation import Sampling
from gateway.models.chat.image_gallery import Gallery
from gateway.models.format import ImageLimits
from gateway.protocol.chat_conversion import parse_chat
from gateway.protocol.grants import McpTool
from gateway.protocol.items import InputImage
from gateway.protocol.json_body import InputLimits, parse_object
from gateway.services.executor import ThreadExecutor
from gateway.services.federation import KEYS_BYTES_MAX, TOKEN_BYTES_MAX, by_id, read
from gateway.services.proxy import read_answer
from gateway.settings import Settings
from gateway.tools.browser.document_reader import DocumentReader
from gateway.tools.browser.extraction import TEXT_CHARS_MAX, ReadLimits
from gateway.tools.browser.fetch import ROBOTS_BYTES_MAX
from gateway.tools.browser.page import (
    Fetched,
    Page,
    Unreadable,
    find,
    link_places,
    links_in,
    words_of,
)
from gateway.tools.egress.transport import ValueCount
from gateway.tools.mcp.server_tools import BadArguments, checked_arguments
from gateway.tools.mcp.session import RESULT_BYTES_MAX, RESULT_VALUES_MAX
from gateway.upstreams.backend import StreamLimits
from gateway.upstreams.chat_endpoint import ChatReader
from gateway.upstreams.token_readers import CompletionReader
from gateway.upstreams.tokenization import ids_of
from tests.fakes import hostile_bytes
from tests.fakes.executor_calls import executor_calls, functions_of
from tests.fakes.harmony_script import vocabulary
from tests.fakes.hostile_pages import PAGES
from tests.fakes.work import is_waiting, readers, threads_at_work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.types import Message

TABLE: Final = Path(__file__).parents[3] / "docs" / "security.md"
SETTINGS: Final = Settings()
LIMITS: Final = InputLimits()
GRAMMAR_CHARS: Final = LIMITS.grammar_bytes_max
REFUSED: Final = (
    BadArguments, InvalidRequest, PayloadTooLarge, RecursionError, UnusableGrammar,
    UnusableSchema, UntranslatableGrammar, UpstreamFailed, ValueError,
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


@pytest.mark.slow
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
    """Of a constant, by its module, of the default of a field, by its class, or of a setting."""
    if bound.startswith("gateway."):
        owner, _, name = bound.rpartition(".")
        module, _, kind = owner.rpartition(".")
        if kind[0].isupper():
            return getattr(getattr(importlib.import_module(module), kind)(), name)
        return getattr(importlib.import_module(owner), name)
    value: Any = SETTINGS
    for step in bound.split("."):
        assert isinstance(value, BaseModel), bound
        assert step in type(value).model_fields, bound
        value = getattr(value, step)
    return value


def in_thread(work: Callable[[Any], object], inputs: Iterable[Any]) -> Callable[[], Any]:
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
    reader = DocumentReader(ReadLimits(document_timeout_s=2.0))
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
            await checked_arguments(tool, written, bytes_max=1 << 20)


async def hostile_result() -> None:
    bound = RESULT_VALUES_MAX
    assert ValueCount(is_stream=False).add(b"[" * RESULT_BYTES_MAX) > bound


def read_page(text: str) -> object:
    page = Page("", "", text, ("a",))
    return find(page, "x"), words_of(text), link_places(page), links_in(text)


def ask_robots(text: str) -> bool:
    rules = RobotFileParser()
    rules.parse(text.splitlines())
    return rules.can_fetch("Harmony", "http://site.example/" + "b" * 2_000)


async def hostile_tokens() -> None:
    def encoded(text: bytes) -> str:
        return urlsafe_b64encode(text).decode().rstrip("=")

    size = TOKEN_BYTES_MAX // 2
    nested, wide, long = b"[" * size, b'{"aud":[' + b'"",' * (size // 3), b"9" * size
    for part in (nested, wide + b'""]}', b'{"a":' * (size // 5), b'{"exp":%b}' % long):
        for token in (f"{encoded(part)}.e30.AA", f"e30.{encoded(part)}.AA"):
            with pytest.raises(TokenRefused):
                read(token)
    keys_bytes = KEYS_BYTES_MAX
    many = orjson.loads(
        b"[%b]" % hostile_bytes.repeated(b'{"kid":"a","kty":"RSA"}', keys_bytes // 24)
    )
    long_key = {"kid": "a", "kty": "RSA", "n": "A" * keys_bytes, "e": "A" * keys_bytes}
    assert by_id(many) == by_id([long_key]) == {}


async def hostile_events() -> None:
    """Each in reads of one slice: what the event loop does before others have their turn."""
    event_bytes = StreamLimits().event_bytes_max - 200
    streams = hostile_bytes.event_streams(event_bytes)
    for reader, answer in product((CompletionReader, ChatReader), streams):
        read = reader(
            "b0", Sampling(1_000, logprobs=20), stop_ids=(), frame_bytes_max=21 * event_bytes
        )
        read.keep(answer)
        while read.has_more:
            read.go_on()


async def hostile_forms() -> None:
    for body in hostile_bytes.forms():
        with suppress(InvalidRequest):
            async with FormReader(1 << 24, 60.0).read(request_of(body), ()):
                pass


def request_of(body: bytes) -> Request:
    parts = iter(range(0, len(body), 65_536))

    async def receive() -> Message:
        start = next(parts)
        more = start + 65_536 < len(body)
        return {
            "type": "http.request", "body": body[start : start + 65_536], "more_body": more
        }  # fmt: skip

    headers = [(b"content-type", b"multipart/form-data; boundary=b")]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "headers": headers}
    scope["record"] = RequestRecord(scope)
    return Request(scope, receive)


def doubled(levels: int, leaf: str) -> str:
    steps = [f"A{level}: A{level + 1} A{level + 1}" for level in range(levels)]
    return "\n".join(["start: A0", *steps, f"A{levels}: {leaf}"])


def check_schema(schema: dict[str, Any]) -> object:
    validator = SchemaValidator(schema, work_max=WORK_MAX)
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
        read_page,
        ["\n" * TEXT_CHARS_MAX, "【1†" * (TEXT_CHARS_MAX // 3), "【1†a†" * (TEXT_CHARS_MAX // 5)],
    ),
    "robots": in_thread(
        ask_robots,
        [
            "User-agent: *\n" + line * (ROBOTS_BYTES_MAX // len(line))
            for line in ("Allow: ?\n", "Disallow: /x\n", "Disallow: /*b*b*b*c\n")
        ],
    ),
    "compressed": in_thread(
        lambda given: decoded(given[0], given[1], hostile_bytes.BODY_BYTES),
        hostile_bytes.compressed_bodies(),
    ),
    "json": in_thread(lambda body: parse_object(body, LIMITS), hostile_bytes.json_bodies()),
    "chat": in_thread(lambda body: parse_chat(body, limits=LIMITS), hostile_bytes.chat_bodies()),
    "images": in_thread(
        lambda url: Gallery([], {}, ImageLimits()).part(0, InputImage(image_url=url)),
        hostile_bytes.data_urls(),
    ),
    "tokens": hostile_tokens,
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
    "text": in_thread(vocabulary().encode, [" " * LIMITS.text_chars_max]),
    "arguments": hostile_arguments,
    "result": hostile_result,
    "events": hostile_events,
    "renderings": in_thread(ids_of, hostile_bytes.renderings()),
    "answers": in_thread(
        lambda body: read_answer(body, "m", "b0"), hostile_bytes.proxied_answers()
    ),
    "uploads": hostile_forms,
}


def test_every_worst_input_of_the_table_is_tried() -> None:
    assert [name for *_, tried in rows() for name in named(tried)] == list(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
async def test_worst_input_ends_and_nothing_works_on(name: str) -> None:
    await CASES[name]()
    async with asyncio.timeout(30.0):
        while threads_at_work() or not all(map(is_waiting, readers())):  # noqa: ASYNC110 - others do
            await asyncio.sleep(0)
