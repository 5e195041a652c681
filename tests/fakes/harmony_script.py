"""Harmony output written by hand: text with markers to ids, and segment events to what they say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from gateway.generation import (
    BROWSER_TOOLS,
    PYTHON_TOOL,
    FinishReason,
    SegmentEnded,
    SegmentKind,
    SegmentStarted,
    SegmentText,
)
from gateway.models.harmony.harmony_format import HarmonyFormat
from gateway.models.harmony.parsing import HEADER_IDS_MAX, Parser
from gateway.models.harmony.tokenizer import NAMED_SPECIALS, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gateway.generation import SegmentEvent

TOOLS = frozenset(
    {
        "ask_followup_question",
        "bash",
        "create_event",
        "edit",
        "exec",
        "f",
        "get_weather",
        "grep",
        "math.sum",
        "now",
        "search",
        "shell",
        "web-browsing",
    }
)
"""The functions that the corpus takes as declared."""

HOSTED = frozenset({*BROWSER_TOOLS, PYTHON_TOOL, "crm.add"})
"""Tools that the gateway runs itself."""

_NONE: frozenset[str] = frozenset()
_MARKER = re.compile("(" + "|".join(map(re.escape, NAMED_SPECIALS)) + ")")


@cache
def vocabulary() -> Vocabulary:
    """The packaged vocabulary, loaded once for each test process."""
    return Vocabulary.load()


@cache
def harmony() -> HarmonyFormat:
    """The format of all models that tests know."""
    return HarmonyFormat(vocabulary())


def harmony_of(_model: str) -> HarmonyFormat:
    return harmony()


def script_ids(script: str) -> list[int]:
    """Ids of text in which `<|markers|>` stand for the special ids of that name."""
    ids: list[int] = []
    for piece in _MARKER.split(script):
        special = NAMED_SPECIALS.get(piece)
        ids.extend(vocabulary().encode(piece) if special is None else [special])
    return ids


@dataclass(frozen=True)
class Segment:
    """One whole segment."""

    kind: SegmentKind
    text: str
    name: str = ""
    complete: bool = True
    verbatim: bool = True
    start: int = 0
    end: int = 0

    def said(self) -> tuple[SegmentKind, str, str]:
        """What it says, without where and how."""
        return self.kind, self.name, self.text


def collect(events: Iterable[SegmentEvent]) -> list[Segment]:
    """Put segments together; fails on any order but Started, Text…, Ended, one after the other."""
    segments: list[Segment] = []
    started: SegmentStarted | None = None
    texts: list[str] = []
    for event in events:
        if isinstance(event, SegmentStarted):
            assert started is None
            started, texts = event, []
        elif isinstance(event, SegmentText):
            assert started is not None
            assert event.text
            texts.append(event.text)
        else:
            assert isinstance(event, SegmentEnded)
            assert started is not None
            segments.append(
                Segment(
                    started.kind,
                    "".join(texts),
                    started.name,
                    event.complete,
                    event.verbatim,
                    event.start,
                    event.end,
                )
            )
            started = None
    assert started is None
    return segments


@dataclass(frozen=True)
class Turn:
    """A parsed turn: its segments, and what the parser counted."""

    segments: list[Segment]
    recoveries: dict[str, int]
    reasoning_tokens: int

    @property
    def visible(self) -> bool:
        """Any segment is more than reasoning."""
        return any(segment.kind is not SegmentKind.REASONING for segment in self.segments)

    def said(self) -> list[tuple[SegmentKind, str, str]]:
        """Kind, name and text of each segment."""
        return [segment.said() for segment in self.segments]


def parse_chunks(
    chunks: Iterable[Sequence[int]],
    finish: FinishReason | None = FinishReason.STOP,
    *,
    tools: frozenset[str] | None = TOOLS,
    header_ids_max: int = HEADER_IDS_MAX,
    trace: bool = False,
    hosted: frozenset[str] = _NONE,
) -> Turn:
    """Parse a turn that comes in these chunks. `hosted` are called beside the tools."""
    named = tools | hosted if tools is not None else None
    parser = Parser(vocabulary(), named, header_ids_max=header_ids_max, trace=trace, hosted=hosted)
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    events += parser.finish(finish)
    return Turn(collect(events), parser.recoveries, parser.reasoning_tokens)


def parse(
    script: str,
    finish: FinishReason | None = FinishReason.STOP,
    *,
    tools: frozenset[str] | None = TOOLS,
    header_ids_max: int = HEADER_IDS_MAX,
    hosted: frozenset[str] = _NONE,
) -> Turn:
    """Parse a turn that is written as text with markers."""
    ids = script_ids(script)
    return parse_chunks([ids], finish, tools=tools, header_ids_max=header_ids_max, hosted=hosted)
