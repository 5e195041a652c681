"""Writes docs/conformance.md from the manifest and the marks of the tests:
`python -m tests.conformance.document`.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from tests.conformance.proofs import ROOT, proofs
from tests.conformance.requirements.manifest import REQUIREMENTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.conformance.proofs import Proof
    from tests.conformance.requirements.requirement import Requirement

PAGE: Final = ROOT / "docs" / "conformance.md"

SECTIONS: Final = {
    "0.2": "Where OpenAI and Open Responses differ",
    "1": "Requests of every kind",
    "1.1": "POST /v1/responses",
    "1.2": "What a response continues",
    "1.3": "tool_choice",
    "1.4": "GET /v1/responses/{id}",
    "1.5": "DELETE /v1/responses/{id}",
    "1.6": "POST /v1/responses/{id}/cancel",
    "1.7": "GET /v1/responses/{id}/input_items",
    "1.8": "POST /v1/responses/input_tokens",
    "1.9": "POST /v1/responses/compact",
    "1.10": "Conversations",
    "1.11": "Models",
    "1.12": "WebSocket",
    "2.1": "The Response object",
    "2.2": "The status of a response",
    "2.3": "Codes of failed responses",
    "3.1": "Items",
    "3.2": "Parts of content",
    "3.3": "Kinds of items",
    "4.1": "Frames of a stream",
    "4.2": "Numbers of events",
    "4.3": "Beginning and end of a stream",
    "4.4": "Items in a stream",
    "4.5": "The order within an item",
    "4.6": "Errors in a stream",
    "4.7": "Streams that are resumed",
    "4.8": "Padding",
    "4.9": "Types of events",
    "5.1": "The envelope of an error",
    "5.2": "Statuses and codes",
    "5.3": "What SDKs try again",
    "5.4": "Headers",
    "6.1": "Open Responses: rules",
    "6.3": "Open Responses: cases of the compliance suite, written anew",
    "6.4": "Open Responses: traps",
    "7.2": "gpt-oss: the cases of the compatibility test, written anew",
    "7.3": "gpt-oss: what the test sends",
    "7.4": "gpt-oss: what the test checks",
    "8": "Harmony",
    "9": "What is accepted in the end",
}
"""Those of the reference that promise anything, in the order of the page."""

_INTRODUCTION: Final = """\
# What the API promises, and the tests of it

Every line is a rule of the Responses API, of Open Responses, or of the compatibility test for
providers of gpt-oss, as this gateway keeps it; the tests behind it hold it to that, most of them
through the whole gateway and with a scripted model. The programs of the two suites are not among
them: their cases are written anew, with what they send and what they check. Where a thing is not
served, the rule says how it is refused, or that it is accepted without effect. The sections are
those of a reference of the API; [clients that work](compatibility.md) are on a page of their own.

`python -m tests.conformance.document` writes this page, from the manifest in
`tests/conformance/requirements` and the marks `pytest.mark.requirement(id)` of the tests.
"""


def section_of(requirement: Requirement) -> str:
    """The number of the section of the reference."""
    return requirement.source.split()[1]


def row_of(requirement: Requirement) -> str:
    """The row or bullet in the section."""
    return requirement.source.split(maxsplit=2)[2]


def page() -> str:
    """The text of docs/conformance.md."""
    shown = proofs()
    order = list(SECTIONS)
    ordered = sorted(REQUIREMENTS, key=lambda one: order.index(section_of(one)))
    parts = [_INTRODUCTION]
    for section, requirements in groupby(ordered, section_of):
        parts += [
            f"## {section} {SECTIONS[section]}\n",
            *(_line(one, shown) for one in requirements),
            "",
        ]
    return "\n".join(parts)


def _line(requirement: Requirement, shown: Sequence[Proof]) -> str:
    said = f"* `{requirement.id}` ({_plain(row_of(requirement))}): {requirement.sentence}"
    return f"{said}<br>{'; '.join(_links(requirement, shown))}"


def _links(requirement: Requirement, shown: Sequence[Proof]) -> Iterator[str]:
    for proof in shown:
        if proof.proves(requirement.id):
            name = proof.test.removeprefix("test_").replace("_", " ")
            yield f"[{name}](../{proof.path})"


def _plain(text: str) -> str:
    """Nothing of it is Markdown."""
    return text.replace("*", r"\*").replace("_", r"\_").replace("[", r"\[")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
