"""A server that loads and unloads adapters, and answers as vLLM 0.32 or SGLang 0.5.23 does.

SGLang's answers are those of `tests/data/backend-captures/sglang_lora`, vLLM's those of its source
(`entrypoints/openai/models/serving.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.requests import Request

BASE = "base"


@dataclass
class AdapterServer:
    """`engine` is whom it plays. `adapters` maps names to paths; `refuses` are paths that it cannot
    load, `is_down` makes every answer a 503. `may_load`: it was started so that it can.
    """

    engine: str = "vllm"
    adapters: dict[str, str] = field(default_factory=dict)
    refuses: set[str] = field(default_factory=set)
    is_down: bool = False
    may_load: bool = True
    key: str | None = None
    posts: list[str] = field(default_factory=list)

    def app(self) -> Starlette:
        prefix = "/v1" if self.engine == "vllm" else ""
        about = "/version" if self.engine == "vllm" else "/server_info"
        routes = [Route("/v1/models", self._models), Route(about, self._about)]
        if self.may_load:
            routes += [
                Route(f"{prefix}/load_lora_adapter", self._load, methods=["POST"]),
                Route(f"{prefix}/unload_lora_adapter", self._unload, methods=["POST"]),
            ]
        return Starlette(routes=routes)

    async def _about(self, _: Request) -> Response:
        return JSONResponse({"version": "0.32.0" if self.engine == "vllm" else "0.5.23"})

    async def _models(self, _: Request) -> Response:
        if self.is_down:
            return PlainTextResponse("no", status_code=503)
        rows: list[dict[str, Any]] = [
            {"id": BASE, "root": BASE, "parent": None, "max_model_len": 8192}
        ]
        rows += [
            {"id": name, "root": path, "parent": BASE, "max_model_len": None}
            for name, path in self.adapters.items()
        ]
        return JSONResponse({"object": "list", "data": rows})

    async def _load(self, request: Request) -> Response:
        body = await request.json()
        name, path = body["lora_name"], body["lora_path"]
        self.posts.append(f"load {name}")
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return JSONResponse({"error": "Unauthorized"}, status_code=401)
        if name in self.adapters:
            return self._refusal(f"Failed to load LoRA adapter {name} because it is already loaded")
        if path in self.refuses:
            return self._refusal(f"No adapter found for {path}", status=404)
        self.adapters[name] = path
        if self.engine == "vllm":
            return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")
        return JSONResponse({"success": True, "error_message": "", "loaded_adapters": {name: path}})

    async def _unload(self, request: Request) -> Response:
        name = (await request.json())["lora_name"]
        self.posts.append(f"unload {name}")
        if self.adapters.pop(name, None) is None:
            return self._refusal(f"LoRA with name {name} does not exist.", status=404)
        if self.engine == "vllm":
            return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")
        return JSONResponse({"success": True, "error_message": "", "loaded_adapters": {}})

    def _refusal(self, why: str, *, status: int = 400) -> Response:
        if self.engine == "vllm":
            error = {"message": why, "type": "InvalidUserInput", "param": None, "code": status}
            return JSONResponse({"error": error}, status_code=status)
        told = {"success": False, "error_message": why, "loaded_adapters": None}
        return JSONResponse(told, status_code=400)
