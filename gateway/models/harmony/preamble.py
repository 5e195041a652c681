"""The system and developer messages before a conversation, from one request alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from gateway.models.harmony.messages import recipient
from gateway.models.harmony.schema import SchemaNormaliser
from gateway.models.harmony.typescript import comment_lines, function_text, json_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gateway.constraints.rules import AnswerFormat
    from gateway.models.format import RenderOptions, SchemaLimits

_ANY_OBJECT: Final = "The answer is exactly one JSON object, with nothing before or behind it."


class SystemFacts(NamedTuple):
    """All that the system message says: of what a request holds, no more than its effort."""

    model_identity: str
    effort: Literal["low", "medium", "high"]
    current_date: str | None
    knowledge_cutoff: str | None
    has_functions: bool
    has_commentary: bool

    @classmethod
    def of(cls, options: RenderOptions) -> SystemFacts:
        """Those of one request."""
        has_functions = bool(options.tools)
        return cls(
            options.model_identity,
            options.effort,
            options.current_date,
            options.knowledge_cutoff,
            has_functions,
            has_functions or options.commentary_without_tools,
        )


def system_text(facts: SystemFacts) -> str:
    """The body of the system message, as openai-harmony 0.0.8 writes it."""
    about = [facts.model_identity]
    if facts.knowledge_cutoff is not None:
        about.append(f"Knowledge cutoff: {facts.knowledge_cutoff}")
    if facts.current_date is not None:
        about.append(f"Current date: {facts.current_date}")
    commentary = ["commentary"] if facts.has_commentary else []
    channels = (
        f"# Valid channels: {', '.join(['analysis', *commentary, 'final'])}."
        " Channel must be included for every message."
    )
    if facts.has_functions:
        channels += "\nCalls to these tools must go to the commentary channel: 'functions'."
    return "\n\n".join(["\n".join(about), f"Reasoning: {facts.effort}", channels])


def instructions_before(options: RenderOptions, leading: Sequence[str]) -> str:
    """The request's own, then those that its context begins with."""
    return "\n\n".join(text for text in (options.instructions, *leading) if text)


def developer_text(options: RenderOptions, leading: Sequence[str], limits: SchemaLimits) -> str:
    """The body of the first developer message, as openai-harmony 0.0.8 writes it; empty for none.

    The last section is in the form that OpenAI's guide to Harmony shows. Raises `InvalidRequest`
    for a function's name or schema that cannot be written.
    """
    sections = []
    if instructions := instructions_before(options, leading):
        sections += ["# Instructions", instructions]
    if options.tools:
        sections += ["# Tools", "\n".join(_function_lines(options, limits))]
    if options.answer is not None:
        sections += format_sections(options.answer)
    return "\n\n".join(sections)


def _function_lines(options: RenderOptions, limits: SchemaLimits) -> Iterator[str]:
    normaliser = SchemaNormaliser(limits)
    paths = options.tool_paths or tuple(f"tools[{index}]" for index in range(len(options.tools)))
    yield "## functions\n"
    yield "namespace functions {\n"
    for tool, path in zip(options.tools, paths, strict=True):
        recipient(tool.name, param=f"{path}.name")
        yield from _comment(tool.description or "")
        schema = tool.parameters
        if schema is not None:
            schema = normaliser.normalise(schema, param=f"{path}.parameters")
        yield function_text(tool.name, schema)
    yield "} // namespace functions"


def format_sections(answer: AnswerFormat) -> Iterator[str]:
    """The paragraphs that show the format: its name, its description, its schema on one line.

    The schema is written as the request gave it, not as TypeScript: it is for JSON.
    """
    name, description = answer.name, answer.description
    if answer.kind == "json_object":
        name, description = answer.kind, _ANY_OBJECT
    yield "# Response Formats"
    yield f"## {name}"
    yield "\n".join([*_comment(description), json_line(answer.schema)])


def _comment(text: str) -> list[str]:
    """A comment of as many lines."""
    return [f"// {line}" for line in comment_lines(text)]
