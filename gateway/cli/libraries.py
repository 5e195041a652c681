"""Check that the libraries that the settings turn on can be loaded.

A process that serves loads most of them with the first request that needs one: a gateway that uses
no tool has no memory for them. One that is installed but broken (built for another system, of
another version) would be noticed by that request, so `doctor` loads them all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.errors import installation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gateway.settings import Settings

CORE: Final = ("cryptography.hazmat.primitives.ciphers.aead", "jsonschema_rs", "llguidance")
_ENGINES: Final = {"monty": ("pydantic_monty",)}
"""Modules of the engines of Python that are libraries, by engine."""


class Needed(NamedTuple):
    """Modules that something needs, and the command that installs them."""

    what: str
    modules: Sequence[str]
    command: str


def needed(settings: Settings) -> Iterator[Needed]:
    """Yield the libraries that these settings need."""
    tools = settings.tools
    command = "pip install --force-reinstall ."
    yield Needed("grammars, schemas and sealing", CORE, command)
    if tools.web.enabled:
        yield Needed("web search", ("selectolax.lexbor", "pypdf"), installation("web"))
    if tools.mcp.enabled:
        yield Needed("MCP", ("mcp", "mcp.client.streamable_http"), installation("mcp"))
    if tools.python.enabled:
        modules = ("python_multipart", *_ENGINES.get(tools.python.engine, ()))
        yield Needed("code interpreter", modules, installation("sandbox"))


def faults(modules: Sequence[str]) -> list[str]:
    """Return for each module that cannot be loaded its name and the reason."""
    found = []
    for name in modules:
        try:
            import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever a library raises, it is of no use
            found.append(f"{name.partition('.')[0]}: {error}")
    return found
