"""`demo`: a whole gateway on this machine, with nothing but this package.

PostgreSQL is real, the gateway is real, the backend is scripted: it needs no GPU because there is
no model in it.
"""

from __future__ import annotations

import shlex
import socket
import time
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from gateway import __version__, ids
from gateway.admin.keys import AccountKeyCreate
from gateway.admin.prices import PriceCreate, Prices
from gateway.admin.projects import ProjectCreate
from gateway.admin.transactions import AdminCaller
from gateway.app import create_app
from gateway.cli import terminal
from gateway.cli.demo_commands import PROJECT, PYTHON, QUESTION, first_commands, more_commands
from gateway.cli.demo_tools import DemoTools
from gateway.cli.options import PORT_MAX, run
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
from gateway.errors import AuthenticationError, DatabaseInUse, StartupError
from gateway.server.access_log import AccessLog
from gateway.server.server import PortTaken, Server, listen, stopped_by_signals, until_stopped
from gateway.settings import Server as ServerSettings
from gateway.settings import load_settings
from gateway.store.schema import REVISION
from gateway.telemetry.logs import configure_logging
from gateway.wiring.admin import admin_services
from gateway.wiring.databases import access

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from openai import AsyncOpenAI

    from gateway.admin.services import AdminServices
    from gateway.cli.demo_tools import Example
    from gateway.cli.terminal import Details
    from gateway.limits.money import Component
    from gateway.services.access import Access
    from gateway.settings import Settings
    from gateway.tenancy import ApiKey

HOST = "127.0.0.1"
PORT = 8000
PORTS_TRIED = 20
BACKLOG = 128
DRAIN_GRACE_S = 2
ANSWER_TIMEOUT_S = 30.0
RUNNING_TIMEOUT_S = 1.0
"""Seconds that a demo that runs already may take to accept a connection."""
TENANT = "demo"
PROJECT_REQUESTS_PER_MINUTE = 3
PROJECT_BUDGET_NANO = 10**9
BY_MESSAGES = "gpt-oss-20b-by-messages"
"""The first model again, as one whose server takes messages and returns text."""
PRICE: Final[dict[Component, int]] = {"input": 50, "output": 250}
"""Nano-dollars a token."""
_KEY_NAMES = ("key", "admin key", "key of a second project")


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
    from gateway.simulator.simulated_server import create_simulator
    from gateway.simulator.simulator_options import SimulatorOptions

    details = terminal.Details(are_shown=examples)
    terminal.show(f"Harmony Gateway {__version__}: the Responses API for gpt-oss\n")
    with ExitStack() as listening:
        backend_listener = listening.enter_context(listen(HOST, 0, BACKLOG))
        models = SimulatorOptions().models
        simulator = Server(create_simulator(SimulatorOptions()), backend_listener, ServerSettings())
        tools = DemoTools.prepared(listening, details)
        settings = _settings(simulator.url, models, port, tools.sections())
        configure_logging(settings.log.level, settings.log.format)
        listener = listening.enter_context(_listen(settings))
        async with AsyncExitStack() as stack:
            settings = await _database(stack, settings, details)
            keys = await _keys(settings, details)
            app = create_app(settings)
            logged = AccessLog(app, terminal.show)
            logged.is_paused = True  # the demo's own requests are steps
            gateway = Server(logged, listener, settings.server, app.process, websockets=settings)
            others = (simulator, *tools.servers)
            stack.enter_context(stopped_by_signals(gateway, *others))
            await stack.enter_async_context(simulator)
            served = ", ".join(models)
            terminal.step(terminal.OK, "backend", f"SCRIPTED: no GPU, no model   {served}")
            await tools.start(stack, settings)
            started = time.perf_counter()
            await stack.enter_async_context(gateway)
            terminal.step(terminal.OK, "gateway", gateway.url, time.perf_counter() - started)
            saved = {BASE_URL: f"{gateway.url}/v1", **keys}
            environment = write_demo(settings.data_dir, saved)
            hosted = tools.examples(app.process.containers.engine)
            await _answers(saved, models[0], hosted if examples else (), details)
            more = more_commands(models[0], hosted)
            stack.enter_context(_saved_examples(settings.data_dir, more))
            _invite(
                first_commands(environment, models[0]), more if examples else _way_to_more(settings)
            )
            if not once:
                terminal.show("Ctrl-C ends it. Requests:\n")
                logged.is_paused = False
                await until_stopped(gateway, *others)


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
    # Without a configured port: the usual port, or the next that is free.
    if "port" in settings.server.model_fields_set:
        return listen(HOST, settings.server.port, BACKLOG)
    for candidate in range(PORT, PORT + PORTS_TRIED):
        try:
            return listen(HOST, candidate, BACKLOG)
        except PortTaken:
            detail = f"{candidate} is taken by another program; trying the next"
            terminal.step(terminal.SKIPPED, "port", detail)
    return listen(HOST, 0, BACKLOG)


def _settings(
    backend_url: str, models: tuple[str, ...], port: int | None, tools: dict[str, Any]
) -> Settings:
    # The environment's settings, except for those of the demo: the user's database is not touched.
    asked = {} if port is None else {"port": port}
    by_messages = {"served_as": models[0], "format": "passthrough", "context_length": 131_072}
    arguments: dict[str, Any] = {
        "server": {"host": HOST, "drain_grace_s": DRAIN_GRACE_S, **asked},
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


async def _database(stack: AsyncExitStack, settings: Settings, details: Details) -> Settings:
    # The embedded PostgreSQL is stopped with `stack`. Raises `DatabaseInUse`.
    started = time.perf_counter()
    try:
        url = stack.enter_context(embedded_database(settings.data_dir, is_lasting=True))
    except DatabaseInUse as error:
        environment = shlex.quote(str(demo_file(settings.data_dir)))
        raise DatabaseInUse(
            str(error),
            remedy=f"Use that one (`. {environment}` sets its address and key), end it, or start "
            "this one in a folder of its own: GATEWAY_DATA_DIR=/another/folder.",
        ) from error
    now = time.perf_counter()
    terminal.step(terminal.OK, "postgres", f"embedded, in {settings.data_dir}", now - started)
    complete = settings.with_database_url(url).with_pepper(load_pepper(settings.data_dir))
    await bring_up_to_date(complete)
    seconds = time.perf_counter() - now
    details.step(terminal.OK, "schema", f"at {REVISION}", seconds)
    return complete


async def _keys(settings: Settings, details: Details) -> dict[str, str]:
    # Working keys by their variables: those of the last demo, or new ones.
    async with connected(settings) as database:
        accounts = access(settings, database)
        if TENANT not in {tenant.name for tenant in await accounts.list_tenants()}:
            await accounts.create_tenant(TENANT)
        services = admin_services(settings, database, accounts)
        makers: dict[str, Callable[[], Awaitable[tuple[ApiKey, str]]]] = {
            API_KEY: partial(accounts.create_key, TENANT, "demo"),
            ADMIN_KEY: partial(accounts.create_key, TENANT, "demo-admin", kind="admin"),
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
            if key is None or not await _works(accounts, key):
                _, key = await make()
            keys[name] = key
    hints = (f"{what} …{key[-4:]}" for what, key in zip(_KEY_NAMES, keys.values(), strict=True))
    details.step(terminal.OK, "tenant", f"{TENANT}   {'   '.join(hints)}")
    return keys


async def _project_key(
    accounts: Access, services: AdminServices, prices: Prices, models: Sequence[str]
) -> tuple[ApiKey, str]:
    # The key of a second project, which sees nothing of the first and has low limits. Sets prices
    # of the `models`.
    tenant = (await accounts.show_tenant(TENANT)).tenant
    project = await services.projects.create(AdminCaller(tenant.id), ProjectCreate(name=PROJECT))
    _, made = await services.keys.create_account(
        AdminCaller(tenant.id), ids.project_id(project.id), "demo", AccountKeyCreate(name="demo")
    )
    assert made is not None, "a key was asked for"
    owner = await services.limits.of_project(tenant.id, ids.project_id(project.id))
    await services.limits.set_limits(owner, {("requests", 60): PROJECT_REQUESTS_PER_MINUTE})
    for model in models:
        await prices.set(PriceCreate(model=model, tenant=TENANT, nano_per_unit=PRICE))
    await services.limits.set_budget(owner, PROJECT_BUDGET_NANO)
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
    saved: Mapping[str, str], model: str, hosted: Sequence[Example], details: Details
) -> None:
    async with _client(saved) as client:
        await _answer(client, model, details)
        for example in hosted:
            await example.run(client, model)


async def _answer(client: AsyncOpenAI, model: str, details: Details) -> None:
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
    details.step(terminal.OK, "stored", f"{response.id}   {tokens}")


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


def _invite(first: str, more: str) -> None:
    terminal.show(
        "\n  The answers are scripted; for real ones point the gateway at vLLM (README). In "
        f"another terminal:\n\n{first}"
    )
    terminal.show(more)
