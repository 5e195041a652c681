"""The system and developer messages before a conversation, from one request alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from openai_harmony import (
    ChannelConfig,
    DeveloperContent,
    ReasoningEffort,
    Role,
    SystemContent,
    ToolDescription,
)
from openai_harmony import Message as HarmonyMessage

from gateway.harmony.messages import instructions_message, recipient
from gateway.harmony.schema import SchemaNormaliser
from gateway.harmony.typescript import function_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gateway.harmony.schema import SchemaLimits
    from gateway.protocol.tools import FunctionTool


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """What a prompt depends on besides its items; nothing of it is carried over between requests.

    `current_date` (YYYY-MM-DD) and `knowledge_cutoff` (YYYY-MM) are left out when None. Without
    tools the commentary channel is only offered when `commentary_without_tools` is set: models
    that see it may call functions that do not exist.
    """

    instructions: str | None
    tools: tuple[FunctionTool, ...]
    effort: Literal["low", "medium", "high"]
    current_date: str | None
    model_identity: str
    knowledge_cutoff: str | None
    commentary_without_tools: bool


def preamble(options: RenderOptions, leading: Sequence[str]) -> list[HarmonyMessage]:
    """The messages in front; `leading` are the instructions that the context itself begins with."""
    system = HarmonyMessage.from_role_and_content(Role.SYSTEM, _system(options))
    instructions = "\n\n".join(text for text in (options.instructions, *leading) if text)
    developer = DeveloperContent(instructions=instructions or None)
    if options.tools:
        developer = developer.with_function_tools(
            [
                ToolDescription.new(tool.name, tool.description or "", tool.parameters)
                for tool in options.tools
            ]
        )
    has_content = bool(instructions or options.tools)
    return [system, instructions_message(developer)] if has_content else [system]


def _system(options: RenderOptions) -> SystemContent:
    has_commentary = bool(options.tools) or options.commentary_without_tools
    channels = ["analysis", "commentary", "final"] if has_commentary else ["analysis", "final"]
    return SystemContent(
        model_identity=options.model_identity,
        reasoning_effort=ReasoningEffort[options.effort.upper()],
        conversation_start_date=options.current_date,
        knowledge_cutoff=options.knowledge_cutoff,
        channel_config=ChannelConfig.require_channels(channels),
    )


def system_text(content: SystemContent, *, has_functions: bool) -> str:
    """The body of the system message, as openai-harmony 0.0.8 writes it."""
    about = [content.model_identity]
    if content.knowledge_cutoff is not None:
        about.append(f"Knowledge cutoff: {content.knowledge_cutoff}")
    if content.conversation_start_date is not None:
        about.append(f"Current date: {content.conversation_start_date}")
    channels = (
        f"# Valid channels: {', '.join(content.channel_config.valid_channels)}."
        " Channel must be included for every message."
    )
    if has_functions:
        channels += "\nCalls to these tools must go to the commentary channel: 'functions'."
    return "\n\n".join(
        ["\n".join(about), f"Reasoning: {content.reasoning_effort.value.lower()}", channels]
    )


def developer_text(content: DeveloperContent, limits: SchemaLimits) -> str:
    """The body of a developer message, as openai-harmony 0.0.8 writes it.

    Raises `InvalidRequest` for a function's name or schema that cannot be written.
    """
    sections = []
    if content.instructions is not None:
        sections += ["# Instructions", content.instructions]
    if content.tools is not None:
        lines = _function_lines(content.tools["functions"].tools, limits)
        sections += ["# Tools", "\n".join(lines)]
    return "\n\n".join(sections)


def _function_lines(tools: Sequence[ToolDescription], limits: SchemaLimits) -> Iterator[str]:
    normaliser = SchemaNormaliser(limits)
    yield "## functions\n"
    yield "namespace functions {\n"
    for index, tool in enumerate(tools):
        recipient(tool.name, param=f"tools[{index}].name")
        yield from (f"// {line}" for line in _lines(tool.description))
        schema = tool.parameters
        if schema is not None:
            schema = normaliser.normalise(schema, param=f"tools[{index}].parameters")
        yield function_text(tool.name, schema)
    yield "} // namespace functions"


def _lines(text: str) -> list[str]:
    """Lines that end in LF or CRLF, without a last empty one."""
    *ended, last = text.split("\n")
    lines = [line.removesuffix("\r") for line in ended]
    return [*lines, last] if last else lines
