"""`launch`: a coding agent on this gateway.

The gateway is queried first: a clear error beats six retries of the client. Clients read files of
our own, never the user's; these name the variable with the key.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Never
from urllib.parse import urlsplit

import typer

from gateway.cli import terminal
from gateway.cli.provision import API_KEY, BASE_URL, make_folder, saved_demo, write_private
from gateway.errors import StartupError
from gateway.settings import inherited, load_settings
from gateway.settings.http_urls import whole_url

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""The client would inherit that, and so would all that it starts."""
PACKAGES: Final = {"codex": "@openai/codex", "opencode": "opencode-ai"}
DEFAULT_BASE_URL: Final = "http://127.0.0.1:8000/v1"
_VENDOR_PREFIX: Final = "openai/"
ASKING_TIMEOUT_S: Final = 10.0
_KEY: Final = re.compile(r"[!-~]+")
_MAKE_KEY: Final = "An operator makes one with: harmony-gateway keys create"
_START_ONE: Final = "Start one with: harmony-gateway demo. Or name yours with --url."
KEY_VARIABLE: Final = "HARMONY_GATEWAY_API_KEY"
PROVIDER: Final = "harmony-gateway"
CODEX_PROFILE: Final = "gateway"
OUTPUT_TOKENS_MAX: Final = 32_000
"""Tokens that opencode keeps free for an answer, unless the window is small."""
OUTPUT_SHARE: Final = 4

_CODEX = """\
# Written anew by each `harmony-gateway launch codex`. It goes over the config.toml beside it, which
# is for settings of your own.
model = {model}
model_provider = "{provider}"
web_search = {search}
check_for_update_on_startup = false

[model_providers.{provider}]
name = "Harmony Gateway"
base_url = {base_url}
env_key = "{key_variable}"
env_key_instructions = "Start Codex with: harmony-gateway launch codex"
wire_api = "responses"
model_catalog_url = {catalog_url}
supports_websockets = {websockets}

# Every tool that is offered stands in every prompt. These are two thirds of it, and only larger
# models use them well.
[agents]
enabled = false

[features]
view_image = false
apps = false
plugins = false

[skills.bundled]
enabled = false

# Commands of the model need no key.
[shell_environment_policy]
exclude = ["{key_variable}", "OPENAI_API_KEY"]

[analytics]
enabled = false

[feedback]
enabled = false
"""

commands = typer.Typer(no_args_is_help=True)

Url = Annotated[
    str | None,
    typer.Option(envvar="OPENAI_BASE_URL", help="The gateway. Default: the demo.", metavar="URL"),
]
Key = Annotated[
    str | None,
    typer.Option(envvar="OPENAI_API_KEY", help="The API key. Default: the demo's.", metavar="KEY"),
]
Model = Annotated[str | None, typer.Option(help="The model. Default: the gateway's first.")]
OnlyConfig = Annotated[
    bool, typer.Option("--config", help="Only write the file, show it and say how to use it.")
]
Arguments = Annotated[
    list[str] | None, typer.Argument(help="Arguments for the client, behind --.", metavar="-- ARGS")
]


@commands.command()
def codex(  # noqa: PLR0913 - each is an option
    url: Url = None,
    key: Key = None,
    model: Model = None,
    config: OnlyConfig = False,
    websockets: Annotated[
        bool, typer.Option(help="One connection for a session; off: a request for each turn.")
    ] = True,
    search: Annotated[
        bool, typer.Option("--search", help="Let it search the web, where the gateway does.")
    ] = False,
    arguments: Arguments = None,
) -> None:
    """Run the Codex CLI on a gateway, as in: launch codex -- exec "Run the tests".

    Your own Codex settings and sessions in ~/.codex are neither read nor changed.
    """
    data_dir = load_settings().data_dir
    target = find_target(data_dir, url=url, key=key, model=model)
    _launch(
        codex_profile(target, data_dir, websockets=websockets, search=search),
        target,
        arguments or [],
        only_config=config,
    )


@commands.command()
def opencode(
    url: Url = None,
    key: Key = None,
    model: Model = None,
    config: OnlyConfig = False,
    arguments: Arguments = None,
) -> None:
    """Run opencode on a gateway, as in: launch opencode -- run "Run the tests".

    It reads your opencode.json, too, which is not changed.
    """
    data_dir = load_settings().data_dir
    target = find_target(data_dir, url=url, key=key, model=model)
    _launch(opencode_profile(target, data_dir), target, arguments or [], only_config=config)


def _launch(profile: Profile, target: Target, arguments: list[str], *, only_config: bool) -> None:
    # This process becomes the client, so that terminal, signals and exit code need no forwarding.
    if only_config:
        profile.write()
        _show(profile)
        return
    path = _executable(profile.command[0])
    profile.write()
    environment = inherited(**profile.environment, **{KEY_VARIABLE: target.api_key})
    _become(path, [*profile.command, *arguments], environment)


def _executable(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise StartupError(
            f"there is no {name} on the PATH",
            remedy=f"Install it: npm install --global {PACKAGES[name]}",
        )
    return path


def _become(path: str, command: list[str], environment: dict[str, str]) -> Never:
    before = {one: signal.signal(one, signal.SIG_DFL) for one in IGNORED_BY_PYTHON}
    try:
        os.execve(path, command, environment)  # noqa: S606 - no shell is wanted
    except OSError as error:
        for one, treated in before.items():
            signal.signal(one, treated)
        raise StartupError(
            f"cannot run {path}: {error.strerror}", remedy="Install it anew."
        ) from error


def _show(profile: Profile) -> None:
    variables = {**profile.environment, KEY_VARIABLE: "YOUR-API-KEY"}
    terminal.show(f"{profile.path}:\n\n{profile.text}\nTo use it without `launch`:\n")
    for name, value in variables.items():
        terminal.show(f"  export {name}={shlex.quote(value)}")
    terminal.show(f"  {shlex.join(profile.command)}")


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """Model of the gateway; `context_length` is in tokens."""

    id: str
    context_length: int
    aliases: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.id, *self.aliases)


@dataclass(frozen=True, slots=True)
class Target:
    base_url: str
    api_key: str
    model: str
    offered: tuple[OfferedModel, ...]


def find_target(data_dir: Path, *, url: str | None, key: str | None, model: str | None) -> Target:
    """Return the gateway to use; what is not set is taken from this user's demo.

    The demo's key is sent to the demo only.
    """
    demo = saved_demo(data_dir)
    demo_url = demo.get(BASE_URL) or DEFAULT_BASE_URL
    base_url = _base_url(url or demo_url)
    if not key and urlsplit(base_url).netloc == urlsplit(demo_url).netloc:
        key = demo.get(API_KEY)
    if not key:
        raise StartupError(
            "no API key is given, and there is no demo to take one from",
            remedy=f"Give one with --key or OPENAI_API_KEY. {_MAKE_KEY}",
        )
    if not _KEY.fullmatch(key):
        raise StartupError(
            "the API key has characters that no key has", remedy="Was it copied as a whole?"
        )
    offered = _ask(base_url, key)
    return Target(base_url, key, _chosen(offered, model), offered)


def _base_url(url: str) -> str:
    # Clients add their paths to `/v1`, which the user may leave out.
    try:
        path = urlsplit(whole_url(url)).path
    except ValueError as error:
        raise StartupError(
            f"{url} is no address of a gateway", remedy="Give one such as http://127.0.0.1:8000."
        ) from error
    return url.rstrip("/") if path.strip("/") else f"{url.rstrip('/')}/v1"


def _ask(base_url: str, api_key: str) -> tuple[OfferedModel, ...]:
    from openai import (
        APIConnectionError,
        APIStatusError,
        AuthenticationError,
        OpenAI,
        OpenAIError,
        PermissionDeniedError,
    )

    try:
        with OpenAI(
            base_url=base_url, api_key=api_key, max_retries=0, timeout=ASKING_TIMEOUT_S
        ) as client:
            body = client.get("/models", cast_to=object)
    except (AuthenticationError, PermissionDeniedError) as error:
        raise StartupError(
            f"the gateway at {base_url} does not take the API key",
            remedy=f"Give another with --key or OPENAI_API_KEY. {_MAKE_KEY}",
        ) from error
    except APIConnectionError as error:
        raise StartupError(f"no gateway answers at {base_url}", remedy=_START_ONE) from error
    except APIStatusError as error:
        raise StartupError(
            f"{base_url}/models answered HTTP {error.status_code}",
            remedy=f"Is that a Harmony Gateway? {_START_ONE}",
        ) from error
    except (OpenAIError, ValueError) as error:
        raise _no_gateway(base_url) from error
    return _read(base_url, body)


def _read(base_url: str, body: object) -> tuple[OfferedModel, ...]:
    match body:
        case {"data": []}:
            raise StartupError(
                f"the gateway at {base_url} has no model yet",
                remedy="Are its backends running? GET /readyz says what it waits for.",
            )
        case {"data": list(listed)}:
            return tuple(_offered(base_url, model) for model in listed)
        case _:
            raise _no_gateway(base_url)


def _offered(base_url: str, model: object) -> OfferedModel:
    # Other servers list models, too, but without the fields of this gateway.
    match model:
        case {"id": str(name), "context_length": int(length), "aliases": list(aliases)}:
            return OfferedModel(name, length, tuple(map(str, aliases)))
        case _:
            raise _no_gateway(base_url)


def _no_gateway(base_url: str) -> StartupError:
    return StartupError(f"what answers at {base_url} is no Harmony Gateway", remedy=_START_ONE)


def _chosen(offered: Sequence[OfferedModel], model: str | None) -> str:
    if model is None:
        return offered[0].id
    names = [name for one in offered for name in one.names]
    bare = model.removeprefix(_VENDOR_PREFIX)
    for name in names:
        if name.removeprefix(_VENDOR_PREFIX) == bare:
            return name
    raise StartupError(
        f"the gateway has no model {model}", remedy=f"Choose with --model: {', '.join(names)}"
    )


@dataclass(frozen=True, slots=True)
class Profile:
    path: Path
    text: str
    command: tuple[str, ...]
    environment: dict[str, str]

    def write(self) -> None:
        make_folder(self.path.parents[1])
        try:
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            write_private(self.path, self.text)
        except OSError as error:
            raise StartupError(
                f"cannot write {self.path}: {error.strerror}",
                remedy="Name another folder with GATEWAY_DATA_DIR.",
            ) from error


def codex_profile(
    target: Target, data_dir: Path, *, websockets: bool, search: bool = False
) -> Profile:
    home = data_dir / "codex"
    text = _CODEX.format(
        model=json.dumps(target.model),
        provider=PROVIDER,
        base_url=json.dumps(target.base_url),
        catalog_url=json.dumps(f"{target.base_url}/codex/models"),
        key_variable=KEY_VARIABLE,
        websockets=json.dumps(websockets),
        search=json.dumps("live" if search else "disabled"),
    )
    return Profile(
        path=home / f"{CODEX_PROFILE}.config.toml",
        text=text,
        command=("codex", "--profile", CODEX_PROFILE),
        environment={"CODEX_HOME": str(home)},
    )


def opencode_profile(target: Target, data_dir: Path) -> Profile:
    """Return a configuration that opencode reads beside the user's, and that takes precedence."""
    model = f"{PROVIDER}/{target.model}"
    provider = {
        "npm": "@ai-sdk/openai",
        "name": "Harmony Gateway",
        "options": {"baseURL": target.base_url, "apiKey": f"{{env:{KEY_VARIABLE}}}"},
        "models": {name: _opencode_model(one) for one in target.offered for name in one.names},
    }
    configuration = {
        "model": model,
        "small_model": model,
        "share": "disabled",
        "autoupdate": False,
        "provider": {PROVIDER: provider},
    }
    path = data_dir / "opencode" / "opencode.json"
    return Profile(
        path=path,
        text=json.dumps(configuration, indent=2) + "\n",
        command=("opencode",),
        environment={"OPENCODE_CONFIG": str(path)},
    )


def _opencode_model(model: OfferedModel) -> dict[str, Any]:
    # Without `forceReasoning` opencode sends no reasoning options for a model whose name it does
    # not know.
    output = min(OUTPUT_TOKENS_MAX, model.context_length // OUTPUT_SHARE)
    return {
        "reasoning": True,
        "tool_call": True,
        "attachment": False,
        "limit": {"context": model.context_length, "output": output},
        "options": {"reasoningSummary": "auto", "forceReasoning": True},
    }
