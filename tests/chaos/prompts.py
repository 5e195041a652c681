"""What backends were asked to go on with, read as a conversation without any of our rendering.

Only messages of users and answers are looked at: which reasoning is shown again, and how, is the
business of other tests.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import orjson

from gateway.context.shortening import INSTRUCTION, INTRODUCTION
from tests.fakes.harmony_oracle import spelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

_MESSAGE: Final = re.compile(
    r"<\|start\|>([^<]*)(?:<\|channel\|>([^<]*))?<\|message\|>(.*?)<\|(?:end|return|call)\|>",
    re.DOTALL,
)


class Said(NamedTuple):
    """A message of the `user`, an `answer`, or a `summary`, whose words are not looked at."""

    by: str
    text: str = ""


SUMMARY: Final = Said("summary")
Shown = tuple[Said, ...]


class Prompts(NamedTuple):
    """All prompts: those of responses, by these, and those that asked for summaries."""

    of_responses: Mapping[UUID, Sequence[Shown]]
    for_summaries: frozenset[Shown]


def read_journals(paths: Iterable[Path]) -> Prompts:
    """What all backends were asked. A last line that was not written to its end is left out."""
    of_responses: defaultdict[UUID, list[Shown]] = defaultdict(list)
    for_summaries: set[Shown] = set()
    for path in paths:
        *lines, _unfinished = path.read_bytes().split(b"\n")
        for line in lines:
            asked = orjson.loads(line)
            shown = shown_in(asked["prompt"])
            if shown and shown[-1] == Said("user", INSTRUCTION):
                for_summaries.add(shown[:-1])
            else:
                of_responses[UUID(asked["request_id"].partition("-")[0])].append(shown)
    return Prompts(of_responses, frozenset(for_summaries))


def shown_in(prompt: Sequence[int]) -> Shown:
    """What a prompt shows up to the last message of the user."""
    said = [
        _said(role, text)
        for role, channel, text in _MESSAGE.findall(spelled(prompt))
        if role == "user" or (role == "assistant" and channel == "final")
    ]
    while said and said[-1].by == "answer":
        said.pop()  # the beginning of the turn itself, of which it is the rest that is asked for
    return tuple(said)


def shown_for(items: Sequence[Mapping[str, Any]]) -> Shown:
    """What a prompt must show of a context whose last item is a message of the user.

    Before the last compaction only messages of the user stay. Its summary follows those that had
    been answered, and all of them where nothing else was there.
    """
    last = max((at for at, item in enumerate(items) if item["type"] == "compaction"), default=None)
    if last is None:
        return tuple(map(_message, filter(_is_message, items)))
    before = items[:last]
    done = [at + 1 for at, item in enumerate(before) if item.get("role") != "user"]
    answered = done[-1] if done else last
    kept = [item for item in before[:answered] if item.get("role") == "user"]
    behind = [*before[answered:], *filter(_is_message, items[last + 1 :])]
    return (*map(_message, kept), SUMMARY, *map(_message, behind))


def _is_message(item: Mapping[str, Any]) -> bool:
    return bool(item["type"] == "message")


def _message(item: Mapping[str, Any]) -> Said:
    text = "".join(part["text"] for part in item["content"])
    return Said("user" if item["role"] == "user" else "answer", text)


def _said(role: str, text: str) -> Said:
    if role == "user" and text.startswith(INTRODUCTION):
        return SUMMARY
    return Said("user" if role == "user" else "answer", text)
