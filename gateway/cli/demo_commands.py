"""The commands that the demo prints: each is pasted as it stands, so it begins at column 0."""

from __future__ import annotations

import json
import shlex
import sys
from typing import TYPE_CHECKING, Final

from gateway.cli.provision import PROJECT_KEY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gateway.cli.demo_tools import Example

QUESTION: Final = "Say hello"
PROJECT: Final = "Second project"
PYTHON: Final = shlex.quote(sys.executable)


def first_commands(environment: Path, model: str) -> str:
    """Return commands that source `environment` and send a request with curl and with Python."""
    body = json.dumps({"model": model, "input": QUESTION, "stream": True})
    program = f"""\
from openai import OpenAI
print(OpenAI().responses.create(model="{model}", input="{QUESTION}").output_text)"""
    return f"""\
. {shlex.quote(str(environment))}

curl -N "$OPENAI_BASE_URL/responses" -H "Authorization: Bearer $OPENAI_API_KEY" \\
  -H "Content-Type: application/json" -d '{body}'

{_python(program)}
"""


def more_commands(model: str, hosted: Sequence[Example]) -> str:
    """Return commands that show other features of the gateway, each with a title.

    `hosted` are the examples of the tools that are turned on.
    """
    commands = [*_governance(model), *_agents_and_background(model)]
    commands += [(example.invitation, _python(example.script(model))) for example in hosted]
    return "".join(f"\n  {title}:\n\n{command}\n" for title, command in commands)


def _python(program: str) -> str:
    # `program` must not contain single quotes.
    return f"{PYTHON} -c '\n{program}'"


def _governance(model: str) -> list[tuple[str, str]]:
    projects = """\
from openai import OpenAI
for project in OpenAI().admin.organization.projects.list():
    print(project.id, project.name)"""
    refused = f"""\
import os
from openai import OpenAI, RateLimitError
client = OpenAI(api_key=os.environ["{PROJECT_KEY}"], max_retries=0)
try:
    for _ in range(4):
        print(client.responses.create(model="{model}", input="{QUESTION}").status)
except RateLimitError as error:
    print(error.message)"""
    used = f"""\
import time
from openai import OpenAI
organization = OpenAI().admin.organization
for project in organization.projects.list():
    if project.name == "{PROJECT}":
        print(organization.projects.spend_limit.retrieve(project.id).threshold_amount, "cents")
begin = int(time.time()) // 86_400 * 86_400
usage = organization.usage.completions(start_time=begin, group_by=["project_id"])
for used in usage.data[0].results:
    print(used.project_id, used.input_tokens, "tokens in,", used.output_tokens, "out")"""
    return [
        (
            f"Projects and keys, with OpenAI's admin API (${PROJECT_KEY} is of a second project)",
            _python(projects),
        ),
        (
            "That project may ask three times a minute, and spend a dollar a month; the fourth "
            "answer is a 429",
            _python(refused),
        ),
        ("Its budget, and what was used today, by project", _python(used)),
    ]


def _agents_and_background(model: str) -> list[tuple[str, str]]:
    resumed = f"""\
from openai import OpenAI
client = OpenAI()
question = dict(model="{model}", input="{QUESTION}")
with client.responses.create(**question, background=True, stream=True) as events:
    first = next(events)
for event in client.responses.retrieve(first.response.id, stream=True, starting_after=0):
    print(event.sequence_number, event.type)"""
    return [
        (
            "A coding agent on this gateway, once it is installed (codex or opencode)",
            f"{PYTHON} -m gateway launch codex",
        ),
        (
            "In the background a response goes on without its client, which reads on from any "
            "event",
            _python(resumed),
        ),
    ]
