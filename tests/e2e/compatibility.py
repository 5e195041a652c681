"""Writes docs/compatibility.md from the marks of the tests: `python -m tests.e2e.compatibility`.

A cell of its table is there because a test is marked `client(name, feature)`; the versions are
those that the clients are pinned to.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "compatibility.md"
CLIENTS: Final = ROOT / "tests" / "e2e" / "clients"
MARK: Final = "mark.client"
COLUMN_CLIENTS_MIN: Final = 4
"""A feature of fewer clients has no column of its own: it is named in the last one."""

PACKAGES: Final[Mapping[str, str]] = {
    "openai (Python)": "pypi:openai",
    "openai (npm)": "npm:openai",
    "openai-agents": "pypi:openai-agents",
    "@openai/agents": "npm:@openai/agents",
    "Codex CLI": "npm:@openai/codex",
    "opencode": "npm:opencode-linux-x64",
    "@ai-sdk/openai": "npm:@ai-sdk/openai",
    "langchain-openai": "pypi:langchain-openai",
    "@langchain/openai": "npm:@langchain/openai",
    "pydantic-ai-slim": "pypi:pydantic-ai-slim",
    "llama-index-llms-openai": "pypi:llama-index-llms-openai",
    "litellm": "pypi:litellm",
    "instructor": "pypi:instructor",
    "smolagents": "pypi:smolagents",
    "llm": "pypi:llm",
}
"""The clients as marks name them, in the order of the page, and the package of each."""

FEATURES: Final[Mapping[str, str]] = {
    "text": "a request is answered in one piece",
    "streaming": "the parts of an answer add up to it",
    "tools": "the client runs what the model calls, until there is an answer",
    "hosted tools": "the gateway searches, computes and calls MCP servers; approvals both ways",
    "structured output": "the answer is an object of the client's own type",
    "reasoning": "the client shows the model's reasoning",
    "replayed history": "the client sends the earlier turns again, calls and reasoning included",
    "stored responses": "responses are read, listed, deleted, and continued by id",
    "conversations": "the Conversations API, and responses that go on in one",
    "background": "responses outlive their connection, are resumed and cancelled",
    "handoffs": "an agent hands over to another",
    "WebSocket": "turns over one connection",
    "errors": "refusals and broken streams raise the client's own exceptions",
    "retries": "the client retries after the delay that the gateway sends",
    "models": "models are listed and found by name",
    "token counts": "`input_tokens` is what a response would use",
    "compaction": "a compacted context is taken as input",
    "traces": "the client's traces are kept",
    "images": "a request that shows images is answered",
    "custom tools": "tools whose input is free text, or of a grammar",
    "tools in namespaces": "tools that come in groups, and are called by both names",
    "long sessions": "the client goes on after its session was resumed or compacted",
    "setup": "what `launch` writes is all that the client needs",
    "chat completions": "the same by `/v1/chat/completions`",
    "chat models": "turns, tools and objects with a model that has a chat template and writes as a "
    "Qwen3 does",
    "pass-through": "the same with a model whose server takes messages and returns text",
}
"""What may be marked, in the order of the page, and what the mark claims."""

_INTRODUCTION: Final = """\
# Clients that work

Find your client in the table. A ✓ is a test: that version of the client talks to a gateway in front
of the simulated backend, so it shows the protocol, not how well a model answers. Run them with
`make test-e2e`, which installs the clients; `make test` runs those that are installed.
"""
_PINNED: Final = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==([\w.]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Proof:
    """A test, and what it is marked to show of a client."""

    client: str
    feature: str
    test: str
    path: str
    """Relative to the root of the project."""


@cache
def proofs() -> Sequence[Proof]:
    """Every mark of every test, in the order of the page."""
    found = [proof for path in sorted(ROOT.glob("tests/*/**/test_*.py")) for proof in _of(path)]
    clients, features = list(PACKAGES), list(FEATURES)
    return sorted(
        found, key=lambda proof: (clients.index(proof.client), features.index(proof.feature))
    )


def versions() -> dict[str, str]:
    """`pypi:name` or `npm:name` → the version that the tests run."""
    pins = [ROOT / "requirements-dev.lock", *CLIENTS.glob("*/requirements.in")]
    python = {
        f"pypi:{name}": version
        for path in pins
        for name, version in _PINNED.findall(path.read_text("utf-8"))
    }
    node = {
        f"npm:{name}": version
        for path in CLIENTS.glob("*/package.json")
        for kind, packages in json.loads(path.read_text("utf-8")).items()
        if kind.lower().endswith("dependencies")
        for name, version in packages.items()
    }
    return python | node


def page() -> str:
    """The text of docs/compatibility.md."""
    shown = proofs()
    parts = [_INTRODUCTION, *_table(shown), "\n## What the columns mean\n"]
    parts += [f"* **{feature}**: {meaning}." for feature, meaning in FEATURES.items()]
    parts += ["\n## Tests of each client\n", *_files(shown)]
    return "\n".join(parts) + "\n"


def _table(shown: Sequence[Proof]) -> Iterator[str]:
    by_feature = {
        feature: {proof.client for proof in shown if proof.feature == feature}
        for feature in FEATURES
    }
    columns = [one for one, clients in by_feature.items() if len(clients) >= COLUMN_CLIENTS_MIN]
    yield f"| client | {' | '.join(columns)} | and |"
    yield f"|---{'|:-:' * len(columns)}|---|"
    for client in PACKAGES:
        marks = ["✓" if client in by_feature[feature] else "" for feature in columns]
        others = [one for one in FEATURES if one not in columns and client in by_feature[one]]
        cells = [_title(client), *marks, ", ".join(others)]
        yield f"| {' | '.join(cells)} |"


def _files(shown: Sequence[Proof]) -> Iterator[str]:
    for client in PACKAGES:
        paths = dict.fromkeys(proof.path for proof in shown if proof.client == client)
        links = [f"[{Path(path).stem.removeprefix('test_')}](../{path})" for path in paths]
        yield f"* {client}: {', '.join(links)}"


def _title(client: str) -> str:
    return f"{client} {versions()[PACKAGES[client]]}"


def _of(path: Path) -> Iterator[Proof]:
    text = path.read_text("utf-8")
    for node in ast.walk(ast.parse(text)) if MARK in text else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for client, feature in filter(None, map(_marked, node.decorator_list)):
                yield Proof(client, feature, node.name, str(path.relative_to(ROOT)))


def _marked(decorator: ast.expr) -> tuple[str, str] | None:
    """Client and feature of a `pytest.mark.client(…)`."""
    match decorator:
        case ast.Call(
            func=ast.Attribute(attr="client"),
            args=[ast.Constant(value=str(client)), ast.Constant(value=str(feature))],
        ):
            return client, feature
        case _:
            return None


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
