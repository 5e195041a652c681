"""Proxies of others in front of the same backend, where they are installed.

nginx is found on the PATH; the other two there too, or where BENCH_SGLANG_ROUTER and BENCH_LITELLM
say: the python that has sglang-router, and the `litellm` program.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.load.processes import LOG_CHARS_SHOWN, Child, RunVoid, running
from tests.load.tape import MODEL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

READY_TIMEOUT_S: Final = 90.0
POLL_INTERVAL_S: Final = 0.1
_NGINX_CONFIG: Final = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {folder};
  proxy_temp_path {folder};
  fastcgi_temp_path {folder};
  uwsgi_temp_path {folder};
  scgi_temp_path {folder};
  client_max_body_size 64m;
  keepalive_requests 1000000;
  upstream backend {{ server 127.0.0.1:{backend_port}; keepalive 1024; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://backend;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


def program(name: str) -> str | None:
    """Where a peer is installed; None: it is not."""
    named = os.environ.get("BENCH_" + name.upper().replace("-", "_"))
    if named and not shutil.which(named):
        raise RunVoid(f"{name}: there is no program {named}")
    return named or shutil.which(name)


@contextmanager
def nginx(folder: Path, backend: Child, _: str) -> Iterator[Child]:
    """One worker that looks at nothing."""
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(_NGINX_CONFIG.format(folder=folder, port=port, backend_port=backend.port))
    arguments = [str(program("nginx")), "-p", str(folder), "-c", str(config)]
    with _proxy(arguments, folder / "nginx.log", port, "/health") as child:
        yield child


@contextmanager
def sglang_router(folder: Path, backend: Child, _: str) -> Iterator[Child]:
    """It passes completions through to the one worker it has."""
    found = Path(str(program("sglang-router")))
    python = found if found.name.startswith("python") else found.parent / "python"
    port, metrics_port = free_port(), free_port()
    arguments = [str(python), "-m", "sglang_router.launch_router"]
    arguments += ["--worker-urls", f"http://127.0.0.1:{backend.port}", "--log-level", "warn"]
    arguments += ["--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--prometheus-port", str(metrics_port), "--max-concurrent-requests", "4096"]
    with _proxy(arguments, folder / "sglang-router.log", port, "/v1/models") as child:
        yield child


@contextmanager
def litellm(folder: Path, backend: Child, key: str) -> Iterator[Child]:
    """One worker, no database; it does not start without a key."""
    port = free_port()
    target = {"model": f"openai/{MODEL}", "api_key": "none"}
    target |= {"api_base": f"http://127.0.0.1:{backend.port}/v1"}
    config = folder / "litellm.yaml"
    models = [{"model_name": MODEL, "litellm_params": target}]
    settings = {"model_list": models, "general_settings": {"master_key": key}}
    config.write_text(json.dumps(settings))
    arguments = [str(program("litellm")), "--config", str(config), "--host", "127.0.0.1"]
    arguments += ["--port", str(port), "--num_workers", "1", "--telemetry", "False"]
    with _proxy(arguments, folder / "litellm.log", port, "/health/liveliness") as child:
        yield child


def free_port() -> int:
    """A port that nobody listens on; whoever is told of it has to be quick."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def _proxy(arguments: Sequence[str], log: Path, port: int, path: str) -> Iterator[Child]:
    """Started, and answering 200 at `path`."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    # LiteLLM imports what it finds two folders above the one it runs in.
    nested = log.parent / "runs" / "here"
    nested.mkdir(parents=True)
    with running(arguments, log, environ, folder=nested) as process:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not _answers(port, path):
            if process.poll() is not None or time.monotonic() > deadline:
                said = log.read_text("utf-8", "replace")[-LOG_CHARS_SHOWN:]
                raise RunVoid(f"{arguments[0]} did not start:\n{said}")
            time.sleep(POLL_INTERVAL_S)
        yield Child(process.pid, port)


def _answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
