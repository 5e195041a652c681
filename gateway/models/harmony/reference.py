"""The messages of a prompt as openai-harmony has them, to be rendered by it: what ours is held to.

It writes all by itself that it has a form for. Nothing that serves imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openai_harmony import (
    Author,
    ChannelConfig,
    DeveloperContent,
    Message,
    ReasoningEffort,
    Role,
    SystemContent,
    TextContent,
    ToolDescription,
)

from gateway.models.format import SchemaLimits
from gateway.models.harmony.headers import NAMESPACE
from gateway.models.harmony.messages import INSTRUCTIONS, JSON_CONTENT, harmony_message
from gateway.models.harmony.rendering import (
    SystemFacts,
    developer_text,
    format_sections,
    instructions_before,
    instructions_of,
    shown,
)
from gateway.models.harmony.typescript import comment_lines
from gateway.models.history import leading_instructions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openai_harmony import Content

    from gateway.models.format import RenderOptions
    from gateway.models.harmony.messages import HarmonyMessage
    from gateway.protocol.context import ContextItem


def prompt_messages(items: Sequence[ContextItem], options: RenderOptions) -> list[Message]:
    """The messages of a prompt, all made anew, headers in form 0: what its ids mean."""
    leading = leading_instructions(items)
    said = (harmony_message(one.item.item(), one.function) for one in shown(items, leading))
    return [
        _system(SystemFacts.of(options)),
        *_developer(options, instructions_of(items[:leading])),
        *(library_message(message) for message in said if message is not None),
    ]


def library_message(message: HarmonyMessage) -> Message:
    """The same message."""
    if message.author == Role.DEVELOPER.value:
        told = DeveloperContent(instructions=message.text.removeprefix(INSTRUCTIONS))
        return Message.from_role_and_content(Role.DEVELOPER, told)
    if message.author.startswith(NAMESPACE):
        author = Author.new(Role.TOOL, message.author)
    else:
        author = Author(role=Role(message.author))
    made = Message.from_author_and_content(author, message.text)
    if message.channel is not None:
        made = made.with_channel(message.channel)
    if message.recipient is not None:
        made = made.with_recipient(message.recipient)
    return made.with_content_type(JSON_CONTENT) if message.is_json else made


def _system(facts: SystemFacts) -> Message:
    commentary = ["commentary"] if facts.has_commentary else []
    content = SystemContent(
        model_identity=facts.model_identity,
        reasoning_effort=ReasoningEffort[facts.effort.upper()],
        conversation_start_date=facts.current_date,
        knowledge_cutoff=facts.knowledge_cutoff,
        channel_config=ChannelConfig.require_channels(["analysis", *commentary, "final"]),
    )
    return Message.from_role_and_content(Role.SYSTEM, content)


def _developer(options: RenderOptions, leading: Sequence[str]) -> list[Message]:
    """The first developer message, if there is one.

    There is no place in it for the format of an answer, which stands behind the tools as a text of
    its own: tokens end there anyway.
    """
    if not options.tools:
        text = developer_text(options, leading, SchemaLimits())
        return [Message.from_role_and_content(Role.DEVELOPER, text)] if text else []
    tools = [
        ToolDescription.new(
            tool.name, "\n".join(comment_lines(tool.description or "")), tool.parameters
        )
        for tool in options.tools
    ]
    told = DeveloperContent(instructions=instructions_before(options, leading) or None)
    contents: list[Content] = [told.with_function_tools(tools)]
    if options.answer is not None:
        formats = "\n\n".join(["", *format_sections(options.answer)])
        contents.append(TextContent(text=formats))
    return [Message.from_role_and_contents(Role.DEVELOPER, contents)]
