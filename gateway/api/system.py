from __future__ import annotations

import html
from typing import TYPE_CHECKING

from starlette.responses import HTMLResponse, Response

from gateway import __version__
from gateway.api.query import json_response
from gateway.services.models import codex_catalog

if TYPE_CHECKING:
    from starlette.requests import Request

    from gateway.services.health import Health
    from gateway.services.models import Models
    from gateway.tenancy import Principal
    from gateway.tenancy.policy import TenantPolicy

_LANDING = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Harmony Gateway</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:3rem auto;padding:0 1rem}}
code,pre{{background:#f4f4f4;border-radius:4px;padding:.1em .3em}}pre{{padding:1em;overflow:auto}}
</style>
<h1>Harmony Gateway {version}</h1>
<p>The OpenAI Responses API for gpt-oss. This process is running.</p>
<pre>curl {base}/v1/responses -H "Authorization: Bearer $OPENAI_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "input": "Say hello"}}'</pre>
<p><a href="/readyz">readiness</a> · <a href="/version">version</a> ·
<a href="/metrics">metrics</a> · <a href="/docs">the API</a> ·
<code>GET /v1/models</code> lists the models.</p>
</html>
"""


class SystemEndpoints:
    def __init__(self, models: Models, health: Health) -> None:
        self._models = models
        self._health = health

    async def list_models(self, request: Request) -> Response:
        data = [model.body() for model in self._models.list(_policy(request))]
        return json_response({"object": "list", "data": data})

    async def get_model(self, request: Request) -> Response:
        model = self._models.get(request.path_params["model_id"], _policy(request))
        return json_response(model.body())

    async def codex_models(self, request: Request) -> Response:
        # The `client_version` in the query makes no difference.
        return json_response(codex_catalog(self._models, _policy(request)))

    async def healthz(self, _: Request) -> Response:
        return json_response({"status": "ok"})

    async def readyz(self, _: Request) -> Response:
        report = await self._health.check()
        return json_response(report.body(), status=200 if report.is_ready else 503)

    async def version(self, _: Request) -> Response:
        return json_response({"version": __version__})

    async def metrics(self, request: Request) -> Response:
        body, media_type = self._health.metrics(request.headers.get("accept", ""))
        return Response(body, media_type=media_type)

    async def landing(self, request: Request) -> Response:
        models = self._models.list()
        page = _LANDING.format(
            version=__version__,
            base=html.escape(str(request.base_url).rstrip("/")),
            model=html.escape(models[0].id if models else "gpt-oss-20b"),
        )
        return HTMLResponse(page)


def _policy(request: Request) -> TenantPolicy:
    principal: Principal = request.scope["principal"]
    return principal.policy
