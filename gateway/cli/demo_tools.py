"""Sources of the demo's hosted tools: a site to search, an MCP server, and examples of their use.

All of it is real and on this machine. What is not installed is left out, and the demo says so.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from gateway.cli import terminal
from gateway.cli.provision import connected
from gateway.errors import StartupError, installation
from gateway.server.server import PortTaken, Server, listen
from gateway.settings import Server as ServerSettings
from gateway.store.tools import web_pages

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from contextlib import AsyncExitStack, ExitStack
    from pathlib import Path

    from openai import AsyncOpenAI
    from openai.types.responses import Response

    from gateway.settings import Settings
    from gateway.store.postgres.database import Database

SITE_PORT: Final = 8765
"""Port of the site, if it is free."""
SITES_FILE: Final = "demo-site"
"""Name of the file in the data folder with the addresses whose pages are in the index."""
PORTS_TRIED: Final = 20
PAGES_MAX: Final = 50
LABEL: Final = "workshop"
ANSWER_TIMEOUT_S: Final = 60.0
_HOST: Final = "127.0.0.1"
_BACKLOG: Final = 32
_NEEDED: Final = {"web": ("selectolax", "pypdf"), "mcp": ("mcp",)}
_SHOWN_CHARS: Final = 160


@dataclass(frozen=True, slots=True)
class DemoTools:
    """The servers behind the tools; None where something that a tool needs is not installed."""

    site: Server | None
    workshop: Server | None
    details: terminal.Details

    @classmethod
    def prepared(cls, listening: ExitStack, details: terminal.Details) -> DemoTools:
        # The sockets listen, and are closed with the stack.
        return cls(
            _server(listening, _site) if _has("web") else None,
            _server(listening, _workshop) if _has("mcp") else None,
            details,
        )

    @property
    def servers(self) -> list[Server]:
        # The site and the MCP server, if their extras are installed.
        return [server for server in (self.site, self.workshop) if server is not None]

    def sections(self) -> dict[str, Any]:
        """Return settings that allow tools to reach only these two servers of this machine."""
        site = [self.site.url.removeprefix("http://")] if self.site is not None else []
        return {
            "web": {
                "enabled": self.site is not None,
                "public": False,
                "allowed_hosts": site,
                "visit_interval_s": 0,
            },
            "python": {"enabled": True},
            "mcp": {
                "enabled": self.workshop is not None,
                "servers": "listed",
                "hosts": [_HOST],
                "url_networks": [f"{_HOST}/32"],
                "url_plain_http": True,
            },
        }

    async def start(self, stack: AsyncExitStack, settings: Settings) -> None:
        """Start the servers, which run until the stack is closed, and index the site."""
        for server in self.servers:
            await stack.enter_async_context(server)
        if self.site is not None:
            await _fill_index(f"{self.site.url}/", settings, self.details)

    def examples(self, engine: str | None) -> list[Example]:
        """Print which tools are turned on, and return an example of each.

        `engine` is the engine that runs Python.
        """
        site, workshop = self.site, self.workshop
        self._show("search", f"over {site.url}" if site else None, "web")
        self._show("python", f"in the engine {engine}" if engine else None, "sandbox")
        self._show("mcp", f"{LABEL} at {workshop.url}/mcp" if workshop else None, "mcp")
        return [
            *([SEARCH] if site is not None else []),
            *([PLOT] if engine is not None else []),
            *([mcp_example(f"{workshop.url}/mcp")] if workshop is not None else []),
        ]

    def _show(self, name: str, detail: str | None, extra: str) -> None:
        if detail is not None:
            self.details.step(terminal.OK, name, detail)
        else:
            self.details.step(terminal.SKIPPED, name, f"off: {installation(extra)} turns it on")


@dataclass(frozen=True, slots=True)
class Example:
    """A question for a tool, and how what came of it reads in a line.

    `shown` is an expression of Python for what is worth printing of `r`, the response, and
    `invitation` what stands above a program that prints it.
    """

    name: str
    question: str
    tool: dict[str, Any]
    told: Callable[[Response], str]
    shown: str
    invitation: str
    include: tuple[str, ...] = ()

    def script(self, model: str) -> str:
        """Return a program that sends the same request.

        It contains no single quotes, because a shell command quotes it in them.
        """
        body = {"model": model, "input": self.question, "tools": [self.tool]}
        if self.include:
            body["include"] = list(self.include)
        given = ",\n  ".join(f"{name}={json.dumps(value)}" for name, value in body.items())
        return f"""\
from openai import OpenAI
r = OpenAI().responses.create(
  {given})
print({self.shown})"""

    async def run(self, client: AsyncOpenAI, model: str) -> None:
        """Send the request and print the result. Raises `StartupError` if the tool was not used."""
        from openai import OpenAIError

        started = time.perf_counter()
        body: Any = {"tools": [self.tool], "include": list(self.include)}
        try:
            response = await client.responses.create(
                model=model, input=self.question, timeout=ANSWER_TIMEOUT_S, **body
            )
        except OpenAIError as error:
            raise _unanswered(self, str(error)) from error
        try:
            told = self.told(response)
        except StopIteration as error:
            raise _unanswered(self, f"no call in {response.to_json()}") from error
        seconds = time.perf_counter() - started
        terminal.step(terminal.OK, self.name, f"{self.question!r} → {told}", seconds)


def _unanswered(example: Example, found: str) -> StartupError:
    return StartupError(
        f"the demo's example of {example.name} did not work: {found}",
        remedy="See the lines above; `harmony-gateway doctor` looks at everything.",
    )


def _cited(response: Response) -> str:
    urls = [
        one.url
        for item in response.output
        if item.type == "message"
        for part in item.content
        if part.type == "output_text"
        for one in part.annotations
        if one.type == "url_citation"
    ]
    return f"{response.output_text[:_SHOWN_CHARS]!r}   cites {', '.join(urls) or 'nothing'}"


def _plotted(response: Response) -> str:
    call: Any = next(item for item in response.output if item.type == "code_interpreter_call")
    outputs = [
        f"an image: {one.url[:40]}…"
        if one.type == "image"
        else f"a drawing of {len(one.logs.splitlines())} lines of text"
        for one in call.outputs or ()
    ]
    return f"{', '.join(outputs) or call.status}   in {call.container_id}"


def _converted(response: Response) -> str:
    call: Any = next(item for item in response.output if item.type == "mcp_call")
    return f"{call.name}({call.arguments}) = {call.output or call.error!r}"


SEARCH: Final = Example(
    "cited",
    "Search the web: at how many nautical miles is the lamp seen? Cite your source.",
    {"type": "web_search"},
    _cited,
    "r.output_text",
    "A web search, with its source",
)
PLOT: Final = Example(
    "plotted",
    "Plot sin(x) with Python.",
    {"type": "code_interpreter", "container": {"type": "auto"}},
    _plotted,
    '*(o.url[:60] if o.type == "image" else o.logs for i in r.output'
    ' if i.type == "code_interpreter_call" for o in i.outputs)',
    "A plot, by Python in a sandbox",
    ("code_interpreter_call.outputs",),
)


def mcp_example(url: str) -> Example:
    """Return an example that calls a tool that only reads and needs no approval."""
    tool = {
        "type": "mcp",
        "server_label": LABEL,
        "server_url": url,
        "require_approval": {"never": {"tool_names": ["convert"]}},
    }
    question = f"Use {LABEL}.convert with value: 10, unit: nmi, into: km."
    return Example("called", question, tool, _converted, "r.output_text", "A call of an MCP server")


async def _fill_index(url: str, settings: Settings, details: terminal.Details) -> None:
    # The pages of the site replace those of earlier demos, whose ports were others.
    from gateway.cli.pages import PageSource, load

    started = time.perf_counter()
    async with connected(settings) as database:
        await _forget_sites(database, settings.data_dir / SITES_FILE, url)
        count = await load(settings, database, PageSource(url, pages_max=PAGES_MAX), quiet=True)
    details.step(terminal.OK, "index", f"{count} pages of {url}", time.perf_counter() - started)


async def _forget_sites(database: Database, noted: Path, url: str) -> None:
    # The file `noted` lists the sites of earlier demos.
    known = _noted_sites(noted)
    _note_sites(noted, {*known, url})
    for other in known:
        if other != url:
            await web_pages.remove_documents(database, None, other)
    _note_sites(noted, {url})


def _noted_sites(noted: Path) -> list[str]:
    return noted.read_text("utf-8").split() if noted.exists() else []


def _note_sites(noted: Path, urls: set[str]) -> None:
    noted.write_text("".join(f"{url}\n" for url in sorted(urls)), encoding="utf-8")


def _has(extra: str) -> bool:
    return all(find_spec(name) is not None for name in _NEEDED[extra])


def _server(listening: ExitStack, serve: Callable[[socket.socket], Server]) -> Server:
    return serve(listening.enter_context(_listen()))


def _listen() -> socket.socket:
    for port in range(SITE_PORT, SITE_PORT + PORTS_TRIED):
        try:
            return listen(_HOST, port, _BACKLOG)
        except PortTaken:
            continue
    return listen(_HOST, 0, _BACKLOG)


def _site(listener: socket.socket) -> Server:
    from gateway.simulator.demo_site import create_site

    return Server(create_site(), listener, ServerSettings())


def _workshop(listener: socket.socket) -> Server:
    from gateway.simulator.workshop import create_workshop

    return Server(create_workshop(), listener, ServerSettings())
