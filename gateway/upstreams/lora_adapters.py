"""LoRA adapters, loaded and unloaded at all members of a model.

What a backend has is what it lists, so a repeated call does what the first has left.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from gateway.errors import UpstreamError, UpstreamRejected
from gateway.upstreams.engines import UnknownEngine
from gateway.upstreams.probe import answer, describe
from gateway.upstreams.problems import message_of_body

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.upstreams.backend import Backend, Listed
    from gateway.upstreams.engines import InferenceEngine
    from gateway.upstreams.http.client import Client

_ANSWER_BYTES_MAX: Final = 64 * 1024
_NOT_STARTED_FOR_IT: Final = re.compile(
    r"answered 40[13]|Not Found|LoRA is not enabled", re.IGNORECASE
)
_LOOK_AT_IT: Final = "Is it a LoRA adapter of this model, at a path that the server can read?"


@dataclass(frozen=True, slots=True)
class AdapterOutcome:
    """Outcome of one call at one backend, with a `remedy` for the operator."""

    backend: str
    ok: bool
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Adapter:
    backend: str
    name: str
    parent: str
    path: str | None


def _done(backend: Backend, detail: str) -> AdapterOutcome:
    return AdapterOutcome(backend.name, ok=True, detail=detail)


def _failure(backend: Backend, why: str, remedy: str) -> AdapterOutcome:
    return AdapterOutcome(backend.name, ok=False, detail=why, remedy=remedy)


class Adapters:
    def __init__(
        self, backends: Sequence[Backend], client: Client, *, ask_s: float, load_s: float
    ) -> None:
        # `ask_s` bounds each question, `load_s` each load, in seconds.
        self._backends = backends
        self._client = client
        self._ask_s = ask_s
        self._load_s = load_s

    async def listed(self) -> list[Adapter | AdapterOutcome]:
        answers = await asyncio.gather(*map(self._describe, self._backends))
        return [one for of_backend in answers for one in of_backend]

    async def load(self, name: str, path: str, *, base: str | None = None) -> list[AdapterOutcome]:
        # With `base`, only backends that serve that model; without, all.
        return await self._change_all(base, name, path)

    async def unload(self, name: str, *, base: str | None = None) -> list[AdapterOutcome]:
        return await self._change_all(base, name, None)

    async def _describe(self, backend: Backend) -> list[Adapter | AdapterOutcome]:
        try:
            description = await describe(self._client, backend, timeout_s=self._ask_s)
        except UpstreamError as error:
            return [AdapterOutcome(backend.name, ok=False, detail=error.reason)]
        return [
            Adapter(backend.name, name, row.parent, row.root)
            for name, row in description.models.items()
            if row.parent is not None
        ]

    async def _change_all(
        self, base: str | None, name: str, path: str | None
    ) -> list[AdapterOutcome]:
        # `path` None: unload it.
        servers: dict[str, list[Backend]] = {}
        for backend in self._backends:
            servers.setdefault(backend.base_url, []).append(backend)

        async def change(ranks: Sequence[Backend]) -> list[AdapterOutcome | None]:
            # Backends of one URL are ranks of one server, which refuses to repeat what it did for
            # the first.
            return [await self._change(one, base, name, path) for one in ranks]

        by_server = await asyncio.gather(*map(change, servers.values()))
        outcomes = {
            one.backend: one for of_server in by_server for one in of_server if one is not None
        }
        return [outcomes[one.name] for one in self._backends if one.name in outcomes]

    async def _change(
        self, backend: Backend, base: str | None, name: str, path: str | None
    ) -> AdapterOutcome | None:
        # Returns None if the backend does not serve `base`.
        try:
            description = await describe(self._client, backend, timeout_s=self._ask_s)
            if base is not None and backend.models.get(base, base) not in description.models:
                return None
            row, engine = description.models.get(name), description.engine or UnknownEngine()
            if path is None:
                if row is None or row.parent is None:
                    return _done(backend, "was not there")
                return await self._post(backend, engine, "unload", {"lora_name": name})
            if row is not None:
                return _is_there(backend, row, name, path)
            fields = {"lora_name": name, "lora_path": path}
            return await self._post(backend, engine, "load", fields)
        except UpstreamError as error:
            return _failure(backend, error.reason, "Run the same command again.")

    async def _post(
        self, backend: Backend, engine: InferenceEngine, what: str, fields: dict[str, str]
    ) -> AdapterOutcome:
        paths = engine.adapter_paths
        if paths is None:
            remedy = "Name its adapters when it is started."
            return _failure(backend, f"{engine} loads none while it runs", remedy)
        path = paths.load if what == "load" else paths.unload
        try:
            await self._ask(backend, path, fields)
        except UpstreamRejected as error:
            remedy = paths.remedy if _NOT_STARTED_FOR_IT.search(error.reason) else _LOOK_AT_IT
            return _failure(backend, error.reason, remedy)
        return _done(backend, f"{what}ed")

    async def _ask(self, backend: Backend, path: str, fields: dict[str, str]) -> None:
        headers = {**backend.headers(), "content-type": "application/json"}
        if backend.admin_key:
            headers["authorization"] = f"Bearer {backend.admin_key}"
        request = self._client.build_request(
            "POST",
            backend.url(path),
            headers=headers,
            content=orjson.dumps(fields),
            timeout=self._load_s,
        )
        status, body = await answer(self._client, backend, request, self._load_s, _ANSWER_BYTES_MAX)
        if status != 200:
            why = f"answered {status}: {message_of_body(body)}"
            raise UpstreamRejected(why, upstream=backend.name)


def _is_there(backend: Backend, row: Listed, name: str, path: str) -> AdapterOutcome:
    # The outcome of loading what the backend lists already.
    if row.parent is None:
        return _failure(backend, f"{name} is a base model there", "Give it another name.")
    if row.root in {path, None}:
        return _done(backend, "was there already")
    return _failure(backend, f"is there from {row.root}", f"Run: adapters unload {name}")
