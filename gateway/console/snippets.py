from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY_VARIABLE: Final = "OPENAI_API_KEY"
"""Read by OpenAI's SDKs."""


class Snippet(NamedTuple):
    client: str
    where: str
    text: str


def snippets(base_url: str, key: str, model: str) -> list[Snippet]:
    """Return a snippet for each client; `base_url` ends in `/v1`."""
    environment = f"export OPENAI_BASE_URL={shlex.quote(base_url)}\n" + (
        f"export OPENAI_API_KEY={shlex.quote(key)}"
    )
    body = json.dumps({"model": model, "input": "Say hello"})
    return [
        Snippet(
            "curl", "a shell", _curl(base_url, shlex.quote(f"Authorization: Bearer {key}"), body)
        ),
        Snippet(
            "OpenAI SDK for Python",
            "a Python file",
            "from openai import OpenAI\n\n"
            f"client = OpenAI(base_url={base_url!r}, api_key={key!r})\n"
            f"response = client.responses.create(model={model!r}, input='Say hello')\n"
            "print(response.output_text)",
        ),
        Snippet(
            "OpenAI SDK for Node",
            "a JavaScript module",
            'import OpenAI from "openai";\n\n'
            "const client = new OpenAI({ "
            f"baseURL: {json.dumps(base_url)}, apiKey: {json.dumps(key)} }});\n"
            "const response = await client.responses.create({ "
            f'model: {json.dumps(model)}, input: "Say hello" }});\n'
            "console.log(response.output_text);",
        ),
        Snippet("Any client of OpenAI's", "its environment", environment),
        *(
            Snippet(
                agent,
                "a shell with harmony-gateway",
                f"harmony-gateway launch {agent.lower()} --url {shlex.quote(base_url)} \\\n"
                f"  --key {shlex.quote(key)} --model {shlex.quote(model)}",
            )
            for agent in ("Codex", "opencode")
        ),
    ]


def request_snippets(base_url: str, body: Mapping[str, object]) -> list[Snippet]:
    """Return a request as programs make it."""
    indented = json.dumps(body, indent=2, ensure_ascii=False)
    arguments = "".join(f"    {name}={value!r},\n" for name, value in body.items())
    return [
        Snippet(
            "curl", "a shell", _curl(base_url, f'"Authorization: Bearer ${KEY_VARIABLE}"', indented)
        ),
        Snippet(
            "Python",
            "the OpenAI SDK",
            "from openai import OpenAI\n\n"
            f"client = OpenAI(base_url={base_url!r})\n"
            f"response = client.responses.create(\n{arguments})\n"
            "print(response.output_text)",
        ),
    ]


def _curl(base_url: str, authorization: str, body: str) -> str:
    # `authorization` is a header, quoted for the shell.
    return (
        f"curl {shlex.quote(f'{base_url}/responses')} \\\n  -H {authorization} \\\n"
        f"  -H 'Content-Type: application/json' \\\n  -d {shlex.quote(body)}"
    )
