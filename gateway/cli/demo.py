"""`demo`: a whole gateway, without a model.

Printed commands begin at column 0, so that they can be pasted.
"""

from __future__ import annotations

import json
import shlex
import socket
import sys
import time
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from gateway import __version__, ids
from gateway.admin.keys import AccountKeyCreate
from gateway.admin.prices import PriceCreate, Prices
from gateway.admin.projects import ProjectCreate
from gateway.admin.transactions import AdminCaller
from gateway.app import AdminGateway, create_app
from gateway.audit import COMMAND_LINE
from gateway.cli import terminal
from gateway.cli.command import run
from gateway.cli.page_index import PageSource, load
from gateway.cli.provision import (
    ADMIN_KEY,
    API_KEY,
    BASE_URL,
    PROJECT_KEY,
    bring_up_to_date,
    connected,
    demo_examples_file,
    demo_file,
    embedded_database,
    load_pepper,
    saved_demo,
    write_demo,
)
from gateway.console.login_sessions import Sessions, login_url
from gateway.errors import (
    AuthenticationError,
    DatabaseInUse,
    InvalidRequest,
    StartupError,
    installation,
)
from gateway.server.access_log import AccessLog
from gateway.server.server import PortTaken, Server, listen, stopped_by_signals, until_stopped
from gateway.settings import Server as ServerSettings
from gateway.settings import load_settings
from gateway.settings.sections import PORT_MAX
from gateway.store.schema import REVISION
from gateway.store.tools import web_pages
from gateway.telemetry.logs import configure_logging
from gateway.wiring.admin import admin_services, tenants
from gateway.wiring.databases import access

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from openai import AsyncOpenAI
    from openai.types.responses import Response

    from gateway.admin.resources import AdminServices
    from gateway.admin.tenants import Tenants
    from gateway.app import Gateway
    from gateway.limits.money import Component
    from gateway.services.access import Access
    from gateway.settings import Settings
    from gateway.store.postgres.database import Database
    from gateway.tenancy import ApiKey

    Step = Callable[..., None]

HOST = "127.0.0.1"
PORT = 8000
PORTS_TRIED = 20
BACKLOG = 128
DRAIN_GRACE_S = 2
ANSWER_TIMEOUT_S = 30.0
RUNNING_TIMEOUT_S = 1.0
TENANT = "demo"
PROJECT_REQUESTS_PER_MINUTE = 3
PROJECT_BUDGET_NANO = 10**9
BY_MESSAGES = "gpt-oss-20b-by-messages"
"""The first model again, as one whose server takes messages and returns text."""
PRICE: Final[dict[Component, int]] = {"input": 50, "output": 250}
"""Nano-dollars a token."""
_KEY_NAMES = ("key", "admin key", "key of a second project")

SITE_PORT: Final = 8765
CONSOLE_PORT: Final = 9000
OPERATOR: Final = "demo"
SCRIPTED: Final = "SCRIPTED: no GPU, no model"
SITES_FILE: Final = "demo-site"
PAGES_MAX: Final = 50
LABEL: Final = "workshop"
TOOL_TIMEOUT_S: Final = 60.0
_NEEDED: Final = {"web": ("selectolax", "pypdf"), "mcp": ("mcp",), "console": ("jinja2",)}
_SHOWN_CHARS: Final = 160
QUESTION: Final = "Say hello"
PROJECT: Final = "Second project"
PYTHON: Final = shlex.quote(sys.executable)
_OTHER_FOLDER: Final = "GATEWAY_DATA_DIR=/another/folder"


def demo(
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=PORT_MAX,
            help="Port to listen on; 0: a free one. Default: GATEWAY_SERVER__PORT or PORT, else "
            f"{PORT} or the next that is free.",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Start, answer one request, stop. For tests and CI.")
    ] = False,
    examples: Annotated[
        bool,
        typer.Option(
            "--examples",
            help="Try every hosted tool, and print a command for each feature. While a demo runs, "
            "print its commands.",
        ),
    ] = False,
) -> None:
    """Try it: PostgreSQL, a scripted backend and the gateway, in one command, without a GPU.

    What answers is a script, not a model. Data stays in the data folder for the next time;
    Ctrl-C ends everything.
    """
    if examples and (commands := _commands_of_running_demo()) is not None:
        terminal.show(commands, end="")
        return
    run(_demo(port, once=once, examples=examples))


async def _demo(port: int | None, *, once: bool, examples: bool) -> None:
    from gateway.simulator.completion_wire import SimulatorOptions
    from gateway.simulator.simulated_server import create_simulator

    details: Step = terminal.step if examples else _silent
    terminal.show(f"Harmony Gateway {__version__}: the Responses API for gpt-oss\n")
    with ExitStack() as listening:
        backend_listener = listening.enter_context(listen(HOST, 0, BACKLOG))
        models = SimulatorOptions().models
        simulator = Server(create_simulator(SimulatorOptions()), backend_listener, ServerSettings())
        tools = DemoTools.prepared(listening, details)
        settings = _settings(simulator.url, models, port, tools.sections())
        configure_logging(settings.log.level, settings.log.format)
        listener, console_listener, settings = _listeners(listening, settings)
        async with AsyncExitStack() as stack:
            settings = await _database(stack, settings, details)
            keys = await _keys(settings, details)
            app = create_app(settings)
            logged = AccessLog(app, terminal.show)
            logged.is_paused = True  # the demo's own requests are steps
            gateway = Server(logged, listener, settings.server, app.process, websockets=settings)
            consoles = _consoles(app, console_listener, settings)
            others = (simulator, *tools.servers, *consoles)
            stack.enter_context(stopped_by_signals(gateway, *others))
            await stack.enter_async_context(simulator)
            terminal.step(terminal.OK, "backend", f"{SCRIPTED}   {', '.join(models)}")
            await tools.start(stack, settings)
            started = time.perf_counter()
            await stack.enter_async_context(gateway)
            terminal.step(terminal.OK, "gateway", gateway.url, time.perf_counter() - started)
            login = await _login_link(stack, app, consoles, details)
            saved = {BASE_URL: f"{gateway.url}/v1", **keys}
            environment = write_demo(settings.data_dir, saved)
            hosted = tools.examples(app.process.containers.engine)
            await _answers(saved, models[0], hosted if examples else (), details)
            more = more_commands(models[0], hosted)
            stack.enter_context(_saved_examples(settings.data_dir, more))
            _invite(
                first_commands(environment, models[0]),
                more if examples else _way_to_more(settings),
                login,
            )
            if not once:
                terminal.show("Ctrl-C ends it. Requests:\n")
                logged.is_paused = False
                await until_stopped(gateway, *others)


def _silent(*_step: object) -> None:
    pass


def _commands_of_running_demo() -> str | None:
    # None: no demo runs in the data folder.
    data_dir = load_settings().data_dir
    address = urlsplit(saved_demo(data_dir).get(BASE_URL, ""))
    try:
        commands = demo_examples_file(data_dir).read_text(encoding="utf-8")
        with socket.create_connection((address.hostname, address.port), RUNNING_TIMEOUT_S):
            return commands
    except OSError:
        return None


def _listen(settings: Settings) -> socket.socket:
    if "port" in settings.server.model_fields_set:
        return listen(HOST, settings.server.port, BACKLOG)
    return _listen_at_one_of(range(PORT, PORT + PORTS_TRIED), reports_taken=True)


def _listeners(
    listening: ExitStack, settings: Settings
) -> tuple[socket.socket, socket.socket | None, Settings]:
    # None: the console's packages are not installed.
    listener = listening.enter_context(_listen(settings))
    server = settings.server.model_copy(update={"port": listener.getsockname()[1]})
    if not _has("console"):
        return listener, None, settings.model_copy(update={"server": server})
    ports = range(CONSOLE_PORT, CONSOLE_PORT + PORTS_TRIED)
    console = listening.enter_context(_listen_at_one_of(ports))
    admin = settings.admin.model_copy(update={"port": console.getsockname()[1]})
    shown = settings.console.model_copy(update={"enabled": True})
    sections = {"server": server, "admin": admin, "console": shown}
    return listener, console, settings.model_copy(update=sections)


def _consoles(app: Gateway, listener: socket.socket | None, settings: Settings) -> list[Server]:
    if listener is None:
        return []
    return [Server(AdminGateway(app.process), listener, settings.server)]


async def _login_link(
    stack: AsyncExitStack, app: Gateway, consoles: Sequence[Server], details: Step
) -> str:
    for console in consoles:
        await stack.enter_async_context(console)
        details(terminal.OK, "console", f"{console.url}/console")
        sessions = Sessions(app.process.foundation.database, app.process.access.peppers)
        return login_url(console.url, await sessions.create_link(OPERATOR, "owner"))
    details(terminal.SKIPPED, "console", f"off: {installation('console')} turns it on")
    return ""


def _listen_at_one_of(ports: Sequence[int], *, reports_taken: bool = False) -> socket.socket:
    for candidate in ports:
        try:
            return listen(HOST, candidate, BACKLOG)
        except PortTaken:
            if reports_taken:
                detail = f"{candidate} is taken by another program; trying the next"
                terminal.step(terminal.SKIPPED, "port", detail)
    return listen(HOST, 0, BACKLOG)


def _settings(
    backend_url: str, models: tuple[str, ...], port: int | None, tools: dict[str, Any]
) -> Settings:
    # The environment's settings, except for those of the demo: the user's database is not touched.
    listening = {} if port is None else {"port": port}
    by_messages = {"served_as": models[0], "format": "passthrough", "context_length": 131_072}
    arguments: dict[str, Any] = {
        "server": {"host": HOST, "drain_grace_s": DRAIN_GRACE_S, **listening},
        "database": {"url": None},
        "auth": {"key_pepper": None},
        # SDKs have one base URL for both.
        "admin": {"public": True},
        "models": [*({"id": model} for model in models), {"id": BY_MESSAGES, **by_messages}],
        "backends": [{"name": "simulator", "url": backend_url, "models": models}],
        "tools": tools,
        "log": {"level": "warning"},
    }
    return load_settings(arguments=arguments)


async def _database(stack: AsyncExitStack, settings: Settings, details: Step) -> Settings:
    started = time.perf_counter()
    try:
        url = stack.enter_context(embedded_database(settings.data_dir, is_lasting=True))
    except DatabaseInUse as error:
        environment = shlex.quote(str(demo_file(settings.data_dir)))
        raise DatabaseInUse(
            str(error),
            remedy=f"Use that one (`. {environment}` sets its address and key), end it, or start "
            f"this one in a folder of its own: {_OTHER_FOLDER}.",
        ) from error
    now = time.perf_counter()
    terminal.step(terminal.OK, "postgres", f"embedded, in {settings.data_dir}", now - started)
    complete = settings.with_database_url(url).with_pepper(load_pepper(settings.data_dir))
    await bring_up_to_date(complete)
    seconds = time.perf_counter() - now
    details(terminal.OK, "schema", f"at {REVISION}", seconds)
    return complete


async def _keys(settings: Settings, details: Step) -> dict[str, str]:
    # Working keys by their variables: those of the last demo, or new ones.
    async with connected(settings) as database:
        keyring = access(settings, database)
        accounts = tenants(settings, database, keyring)
        if TENANT not in {tenant.name for tenant in await accounts.list()}:
            await accounts.create(COMMAND_LINE, TENANT)
        services = admin_services(settings, database, keyring)
        makers: dict[str, Callable[[], Awaitable[tuple[ApiKey, str]]]] = {
            API_KEY: partial(accounts.create_key, COMMAND_LINE, TENANT, "demo"),
            ADMIN_KEY: partial(
                accounts.create_key, COMMAND_LINE, TENANT, "demo-admin", kind="admin"
            ),
            PROJECT_KEY: partial(
                _project_key,
                accounts,
                services,
                Prices(database),
                [model.id for model in settings.models],
            ),
        }
        saved, keys = saved_demo(settings.data_dir), {}
        for name, make in makers.items():
            key = saved.get(name)
            if key is None or not await _works(keyring, key):
                try:
                    _, key = await make()
                except InvalidRequest as error:  # somebody has disabled or deleted the tenant
                    raise StartupError(
                        error.message, remedy=f"Use another folder: {_OTHER_FOLDER}."
                    ) from error
            keys[name] = key
    hints = (f"{what} …{key[-4:]}" for what, key in zip(_KEY_NAMES, keys.values(), strict=True))
    details(terminal.OK, "tenant", f"{TENANT}   {'   '.join(hints)}")
    return keys


async def _project_key(
    accounts: Tenants, services: AdminServices, prices: Prices, models: Sequence[str]
) -> tuple[ApiKey, str]:
    tenant = (await accounts.get(TENANT)).tenant
    project = await services.projects.create(AdminCaller(tenant.id), ProjectCreate(name=PROJECT))
    _, made = await services.keys.create_account(
        AdminCaller(tenant.id), ids.project_id(project.id), "demo", AccountKeyCreate(name="demo")
    )
    assert made is not None, "a key was asked for"
    owner = await services.limits.of_project(tenant.id, ids.project_id(project.id))
    await services.limits.set_limits(owner, {("requests", 60): PROJECT_REQUESTS_PER_MINUTE})
    for model in models:
        await prices.set(COMMAND_LINE, PriceCreate(model=model, tenant=TENANT, nano_per_unit=PRICE))
    await services.spend_limits.set_budget(owner, PROJECT_BUDGET_NANO)
    return made.key, made.secret or ""


async def _works(accounts: Access, key: str) -> bool:
    try:
        await accounts.authenticate(key)
    except AuthenticationError:
        return False
    return True


def _client(saved: Mapping[str, str]) -> AsyncOpenAI:
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    http_client = DefaultAsyncHttpxClient(trust_env=False)  # no proxy on the way to ourselves
    return AsyncOpenAI(base_url=saved[BASE_URL], api_key=saved[API_KEY], http_client=http_client)


async def _answers(
    saved: Mapping[str, str], model: str, hosted: Sequence[Example], details: Step
) -> None:
    async with _client(saved) as client:
        await _answer(client, model, details)
        for example in hosted:
            await example.run(client, model)


async def _answer(client: AsyncOpenAI, model: str, details: Step) -> None:
    from openai import OpenAIError

    started = time.perf_counter()
    try:
        response = await client.responses.create(
            model=model, input=QUESTION, timeout=ANSWER_TIMEOUT_S
        )
    except OpenAIError as error:
        raise StartupError(
            f"the gateway did not answer the demo's own request: {error}",
            remedy="See the lines above; `harmony-gateway doctor` looks at everything.",
        ) from error
    usage = response.usage
    tokens = f"{usage.input_tokens} tokens in, {usage.output_tokens} out" if usage else ""
    seconds = time.perf_counter() - started
    terminal.step(terminal.OK, "answer", f"{QUESTION!r} → {response.output_text!r}", seconds)
    details(terminal.OK, "stored", f"{response.id}   {tokens}")


@contextmanager
def _saved_examples(data_dir: Path, commands: str) -> Iterator[None]:
    # For `demo --examples` in another terminal, as long as the demo runs.
    path = demo_examples_file(data_dir)
    path.write_text(commands, encoding="utf-8")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _way_to_more(settings: Settings) -> str:
    # The command finds this demo by its data folder.
    is_set = "data_dir" in settings.model_fields_set
    where = f"GATEWAY_DATA_DIR={shlex.quote(str(settings.data_dir))} " if is_set else ""
    return f"More: {where}{PYTHON} -m gateway demo --examples"


def _invite(first: str, more: str, login: str) -> None:
    terminal.show(
        "\n  The answers are scripted; for real ones point the gateway at vLLM (README). In "
        f"another terminal:\n\n{first}"
    )
    terminal.show(more)
    if login:
        terminal.show(f"Console, once within ten minutes: {login}")


def first_commands(environment: Path, model: str) -> str:
    body = json.dumps({"model": model, "input": QUESTION, "stream": True})
    program = f"""\
from openai import OpenAI
print(OpenAI().responses.create(model="{model}", input="{QUESTION}").output_text)"""
    return f"""\
. {shlex.quote(str(environment))}

curl -N "$OPENAI_BASE_URL/responses" -H "Authorization: Bearer $OPENAI_API_KEY" \\
  -H "Content-Type: application/json" -d '{body}'

{_python(program)}
"""


def more_commands(model: str, hosted: Sequence[Example]) -> str:
    commands = [*_governance(model), *_agents_and_background(model)]
    commands += [(example.invitation, _python(example.script(model))) for example in hosted]
    return "".join(f"\n  {title}:\n\n{command}\n" for title, command in commands)


def _python(program: str) -> str:
    # `program` must not contain single quotes.
    return f"{PYTHON} -c '\n{program}'"


def _governance(model: str) -> list[tuple[str, str]]:
    projects = """\
from openai import OpenAI
for project in OpenAI().admin.organization.projects.list():
    print(project.id, project.name)"""
    refused = f"""\
import os
from openai import OpenAI, RateLimitError
client = OpenAI(api_key=os.environ["{PROJECT_KEY}"], max_retries=0)
try:
    for _ in range(4):
        print(client.responses.create(model="{model}", input="{QUESTION}").status)
except RateLimitError as error:
    print(error.message)"""
    used = f"""\
import time
from openai import OpenAI
organization = OpenAI().admin.organization
for project in organization.projects.list():
    if project.name == "{PROJECT}":
        print(organization.projects.spend_limit.retrieve(project.id).threshold_amount, "cents")
begin = int(time.time()) // 86_400 * 86_400
usage = organization.usage.completions(start_time=begin, group_by=["project_id"])
for used in usage.data[0].results:
    print(used.project_id, used.input_tokens, "tokens in,", used.output_tokens, "out")"""
    return [
        (
            f"Projects and keys, with OpenAI's admin API (${PROJECT_KEY} is of a second project)",
            _python(projects),
        ),
        (
            "That project may ask three times a minute, and spend a dollar a month; the fourth "
            "answer is a 429",
            _python(refused),
        ),
        ("Its budget, and what was used today, by project", _python(used)),
    ]


def _agents_and_background(model: str) -> list[tuple[str, str]]:
    resumed = f"""\
from openai import OpenAI
client = OpenAI()
question = dict(model="{model}", input="{QUESTION}")
with client.responses.create(**question, background=True, stream=True) as events:
    first = next(events)
for event in client.responses.retrieve(first.response.id, stream=True, starting_after=0):
    print(event.sequence_number, event.type)"""
    return [
        (
            "A coding agent on this gateway, once it is installed (codex or opencode)",
            f"{PYTHON} -m gateway launch codex",
        ),
        (
            "In the background a response goes on without its client, which reads on from any "
            "event",
            _python(resumed),
        ),
    ]


@dataclass(frozen=True, slots=True)
class DemoTools:
    """Servers behind the tools; None: the extra is not installed."""

    site: Server | None
    workshop: Server | None
    details: Step

    @classmethod
    def prepared(cls, listening: ExitStack, details: Step) -> DemoTools:
        return cls(
            _server(listening, _site) if _has("web") else None,
            _server(listening, _workshop) if _has("mcp") else None,
            details,
        )

    @property
    def servers(self) -> list[Server]:
        return [server for server in (self.site, self.workshop) if server is not None]

    def sections(self) -> dict[str, Any]:
        """Return settings by which tools reach these two servers alone."""
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
                "hosts": [HOST],
                "url_networks": [f"{HOST}/32"],
                "url_plain_http": True,
            },
        }

    async def start(self, stack: AsyncExitStack, settings: Settings) -> None:
        for server in self.servers:
            await stack.enter_async_context(server)
        if self.site is not None:
            await _fill_index(f"{self.site.url}/", settings, self.details)

    def examples(self, engine: str | None) -> list[Example]:
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
            self.details(terminal.OK, name, detail)
        else:
            self.details(terminal.SKIPPED, name, f"off: {installation(extra)} turns it on")


@dataclass(frozen=True, slots=True)
class Example:
    """Question for a tool.

    `shown` is Python for what to print of `r`, the response; `invitation` is the title of that
    program.
    """

    name: str
    question: str
    tool: dict[str, Any]
    describe: Callable[[Response], str]
    shown: str
    invitation: str
    include: tuple[str, ...] = ()

    def script(self, model: str) -> str:
        """Return a program without single quotes that sends the request."""
        body = {"model": model, "input": self.question, "tools": [self.tool]}
        if self.include:
            body["include"] = list(self.include)
        arguments = ",\n  ".join(f"{name}={json.dumps(value)}" for name, value in body.items())
        return f"""\
from openai import OpenAI
r = OpenAI().responses.create(
  {arguments})
print({self.shown})"""

    async def run(self, client: AsyncOpenAI, model: str) -> None:
        """Raise `StartupError` if the tool was not used."""
        from openai import OpenAIError

        started = time.perf_counter()
        body: Any = {"tools": [self.tool], "include": list(self.include)}
        try:
            response = await client.responses.create(
                model=model, input=self.question, timeout=TOOL_TIMEOUT_S, **body
            )
        except OpenAIError as error:
            raise _unanswered(self, str(error)) from error
        try:
            summary = self.describe(response)
        except StopIteration as error:
            raise _unanswered(self, f"no call in {response.to_json()}") from error
        seconds = time.perf_counter() - started
        terminal.step(terminal.OK, self.name, f"{self.question!r} → {summary}", seconds)


def _unanswered(example: Example, cause: str) -> StartupError:
    return StartupError(
        f"the demo's example of {example.name} did not work: {cause}",
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
    tool = {
        "type": "mcp",
        "server_label": LABEL,
        "server_url": url,
        "require_approval": {"never": {"tool_names": ["convert"]}},
    }
    question = f"Use {LABEL}.convert with value: 10, unit: nmi, into: km."
    return Example("called", question, tool, _converted, "r.output_text", "A call of an MCP server")


async def _fill_index(url: str, settings: Settings, details: Step) -> None:
    # The pages of the site replace those of earlier demos, whose ports were others.
    started = time.perf_counter()
    async with connected(settings) as database:
        await _forget_sites(database, settings.data_dir / SITES_FILE, url)
        count = await load(settings, database, PageSource(url, pages_max=PAGES_MAX), quiet=True)
    details(terminal.OK, "index", f"{count} pages of {url}", time.perf_counter() - started)


async def _forget_sites(database: Database, noted: Path, url: str) -> None:
    # The file `noted` lists the sites of earlier demos.
    earlier = _noted_sites(noted)
    _note_sites(noted, {*earlier, url})
    for other in earlier:
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
    ports = range(SITE_PORT, SITE_PORT + PORTS_TRIED)
    return serve(listening.enter_context(_listen_at_one_of(ports)))


def _site(listener: socket.socket) -> Server:
    from gateway.simulator.demo_site import create_site

    return Server(create_site(), listener, ServerSettings())


def _workshop(listener: socket.socket) -> Server:
    from gateway.simulator.workshop import create_workshop

    return Server(create_workshop(), listener, ServerSettings())
