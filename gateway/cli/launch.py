"""`launch`: a coding agent on this gateway, ready to work."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
from typing import TYPE_CHECKING, Annotated, Final, Never

import typer

from gateway.cli import terminal
from gateway.cli.launch_profiles import KEY_VARIABLE, codex_profile, opencode_profile
from gateway.cli.launch_target import find_target
from gateway.errors import StartupError
from gateway.settings import inherited, load_settings

if TYPE_CHECKING:
    from gateway.cli.launch_profiles import Profile
    from gateway.cli.launch_target import Target

IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Whoever it becomes would go on ignoring them, and so would all that is started there."""
PACKAGES: Final = {"codex": "@openai/codex", "opencode": "opencode-ai"}

commands = typer.Typer(
    help="Run a coding agent on a gateway; it is set up in a file of its own.",
    no_args_is_help=True,
)

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
def codex(
    url: Url = None,
    key: Key = None,
    model: Model = None,
    config: OnlyConfig = False,
    websockets: Annotated[
        bool, typer.Option(help="One connection for a session; off: a request for each turn.")
    ] = True,
    arguments: Arguments = None,
) -> None:
    """Run the Codex CLI on a gateway, as in: launch codex -- exec "Run the tests".

    Your own Codex settings and sessions in ~/.codex are neither read nor changed.
    """
    data_dir = load_settings().data_dir
    target = find_target(data_dir, url=url, key=key, model=model)
    _launch(
        codex_profile(target, data_dir, websockets=websockets),
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
    """Become the client: its terminal, its signals and its exit code need no forwarding."""
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
