"""Sections 7 to 9: the test for providers of gpt-oss, Harmony, and what is accepted in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.compatibility_cases import PROMPTS
from tests.conformance.requirements.requirement import rules

if TYPE_CHECKING:
    from collections.abc import Iterator


def _cases() -> Iterator[tuple[str, str, str]]:
    """One row for each of the thirty, which are numbered through."""
    names = [tool for tool, prompts in PROMPTS.items() for _ in prompts]
    for number, tool in enumerate(names):
        text = f"Request {number % 5 + 1} of 5 for {tool} calls it, and its output is answered."
        yield f"gpt-oss.case-{number}", f"case {number}", text


GPT_OSS = (
    *rules("7.2", *_cases()),
    *rules(
        "7.3",
        (
            "gpt-oss.what-it-sends",
            "Turn 1",
            "Empty instructions, messages without a type, and no store are accepted.",
        ),
        (
            "gpt-oss.replay-ends-in-a-message",
            "Turn 2",
            "Reasoning, call and output sent back as items are answered by a message.",
        ),
    ),
    *rules(
        "7.4",
        (
            "gpt-oss.tool-is-called",
            "(1)",
            "The expected tool is called, with arguments that are valid against its schema.",
        ),
        (
            "gpt-oss.reasoning-is-shown",
            "(2)",
            "The first response has a reasoning item whose parts are non-empty reasoning text.",
        ),
        (
            "gpt-oss.chat",
            "(2)",
            "A chat completion calls the tool, too, and has the reasoning in message.reasoning.",
        ),
        (
            "gpt-oss.reasoning-is-streamed",
            "--streaming",
            "Reasoning is streamed under OpenAI's names, both of them.",
        ),
    ),
)
HARMONY = rules(
    "8",
    ("harmony.analysis", "analysis", "Analysis is a reasoning item, and never a message."),
    (
        "harmony.calls",
        "commentary with a recipient",
        "Commentary to a function is a call of it, under the client's name.",
    ),
    (
        "harmony.commentary",
        "commentary without recipient",
        "Commentary to nobody is a message of that phase.",
    ),
    ("harmony.final", "final", "The final channel is a message of the final phase."),
    (
        "harmony.built-ins",
        "python, browser.*",
        "Built-in tools that no request has are not shown as calls.",
    ),
    (
        "harmony.reasoning-is-dropped",
        "Re-rendering: earlier turns",
        "Reasoning before the last answer is not shown to the model again.",
    ),
    (
        "harmony.reasoning-is-kept",
        "Re-rendering: tool loop",
        "Reasoning since the last answer is shown again while tools are called.",
    ),
    (
        "harmony.calls-stay",
        "Re-rendering: tool calls",
        "Calls and their outputs stay in the prompt.",
    ),
    (
        "harmony.empty-reasoning",
        "reasoning without content",
        "Reasoning that says nothing is looked up by its id, or left out where it has none.",
    ),
    ("harmony.return", "Stop tokens: return", "The return token ends the response."),
    ("harmony.call", "Stop tokens: call", "The call token ends the turn with its call."),
    ("harmony.end", "Stop tokens: end", "The end token leads to the next message."),
    (
        "harmony.length",
        "finish_reason=length",
        "A message that the length cuts off makes the response incomplete.",
    ),
    (
        "harmony.bad-arguments",
        "Backend garbage: arguments",
        "Arguments that are no JSON are passed on as the model wrote them.",
    ),
    (
        "harmony.unparsable",
        "Backend garbage: Harmony",
        "No ids of a model raise: what was meant is shown, and what nobody meant is not.",
    ),
    (
        "harmony.sampling",
        "Sampling",
        "Temperature and top_p reach the backend as given, and as 1 when they are not.",
    ),
)
ACCEPTANCE = rules(
    "9",
    (
        "accept.suites",
        "(1)",
        "The cases of both suites, written anew with prompts of our own, pass with a script.",
    ),
    (
        "accept.sdk",
        "(2)",
        "The SDK creates, streams, resumes after every event, pages, cancels, deletes, connects.",
    ),
    (
        "accept.resume-elsewhere",
        "(3)",
        "A stream that is resumed at another replica adds up to the uninterrupted one.",
    ),
    ("accept.stream-laws", "(4)", "Every stream keeps the laws of numbers, indexes and texts."),
    ("accept.errors", "(5)", "Each row of the table of errors is answered as it says."),
    (
        "accept.recordings",
        "(6)",
        "A stream has the structure of OpenAI's: the same events with the same fields in order.",
    ),
)
COMPATIBILITY = (*GPT_OSS, *HARMONY, *ACCEPTANCE)
