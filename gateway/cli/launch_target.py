"""Which gateway a client is launched for, asked before the client is: a clear error beats six
retries on somebody else's screen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from gateway.cli import demo_environment
from gateway.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


DEFAULT_BASE_URL: Final = "http://127.0.0.1:8000/v1"
VENDOR_PREFIX: Final = "openai/"
ASKING_TIMEOUT_S: Final = 10.0
_URL: Final = re.compile(
    r"https?://(\[[0-9a-f:.]+\]|[\w.-]+)(:\d{1,5})?(?P<path>(/[^?#\s]*)?)", re.IGNORECASE
)
_KEY: Final = re.compile(r"[!-~]+")
_MAKE_KEY: Final = "An operator makes one with: harmony-gateway keys create"
_START_ONE: Final = "Start one with: harmony-gateway demo. Or name yours with --url."


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """A model of the gateway, with its further names. `context_length` is in tokens."""

    id: str
    context_length: int
    aliases: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, its own first."""
        return (self.id, *self.aliases)


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway that answered: a key that it takes, and the model to begin with."""

    base_url: str
    api_key: str
    model: str
    offered: tuple[OfferedModel, ...]


def find_target(data_dir: Path, *, url: str | None, key: str | None, model: str | None) -> Target:
    """What is not given is the demo's, if this user has one; the model is the first.

    The demo's key is for the demo: nobody else is sent it. Raises `StartupError` where no gateway
    answers, or does not take the key, or lacks the model.
    """
    demo = demo_environment.saved(data_dir)
    demo_url = demo.get(demo_environment.BASE_URL) or DEFAULT_BASE_URL
    base_url = _base_url(url or demo_url)
    if not key and urlsplit(base_url).netloc == urlsplit(demo_url).netloc:
        key = demo.get(demo_environment.API_KEY)
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
    """With the path that clients add theirs to, which may be left out."""
    match = _URL.fullmatch(url)
    if match is None:
        raise StartupError(
            f"{url} is no address of a gateway", remedy="Give one such as http://127.0.0.1:8000."
        )
    return url.rstrip("/") if match["path"].strip("/") else f"{url.rstrip('/')}/v1"


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
            said = client.get("/models", cast_to=object)
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
    return _read(base_url, said)


def _read(base_url: str, said: object) -> tuple[OfferedModel, ...]:
    match said:
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
    """Other servers list models, too, but not what we tell of ours."""
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
    bare = model.removeprefix(VENDOR_PREFIX)
    for name in names:
        if name.removeprefix(VENDOR_PREFIX) == bare:
            return name
    raise StartupError(
        f"the gateway has no model {model}", remedy=f"Choose with --model: {', '.join(names)}"
    )
