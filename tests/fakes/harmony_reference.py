"""The messages of a prompt as openai-harmony has them, to be rendered by it: what ours is held to.

It writes all by itself that it has a form for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
    ToolNamespaceConfig,
)

from gateway.models.harmony.rendering import (
    INSTRUCTIONS,
    SystemFacts,
    developer_text,
    format_sections,
    harmony_messages,
)
from gateway.models.harmony.tool_typescript import comment_lines
from gateway.models.history import (
    instructions_before,
    instructions_of,
    leading_instructions,
    shown_items,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openai_harmony import Content

    from gateway.models.format import RenderOptions
    from gateway.models.harmony.rendering import HarmonyMessage
    from gateway.protocol.context_item import ContextItem


_ROLES: Final = frozenset(role.value for role in Role if role is not Role.TOOL)


def prompt_messages(items: Sequence[ContextItem], options: RenderOptions) -> list[Message]:
    """Make all messages of a prompt anew, with headers in form 0."""
    leading = leading_instructions(items)
    placed = shown_items(items, leading, options.approved)
    written = (harmony_messages(one.item.item(), one.function) for one in placed)
    return [
        _system(SystemFacts.from_options(options)),
        *_developer(options, instructions_of(items[:leading])),
        *(library_message(message) for messages in written for message in messages),
    ]


def library_message(message: HarmonyMessage) -> Message:
    """Return a message in openai-harmony's form, which renders it for comparison."""
    if message.author == Role.DEVELOPER.value:
        content = DeveloperContent(instructions=message.text.removeprefix(INSTRUCTIONS))
        return Message.from_role_and_content(Role.DEVELOPER, content)
    if message.author in _ROLES:
        author = Author(role=Role(message.author))
    else:
        author = Author.new(Role.TOOL, message.author)
    made = Message.from_author_and_content(author, message.text)
    if message.channel is not None:
        made = made.with_channel(message.channel)
    if message.recipient is not None:
        made = made.with_recipient(message.recipient)
    if message.is_code:
        return made.with_content_type("code")
    return made.with_content_type("<|constrain|>json") if message.is_json else made


def _system(facts: SystemFacts) -> Message:
    commentary = ["commentary"] if facts.has_commentary else []
    content = SystemContent(
        model_identity=facts.model_identity,
        reasoning_effort=ReasoningEffort[facts.effort.upper()],
        conversation_start_date=facts.current_date,
        knowledge_cutoff=facts.knowledge_cutoff,
        channel_config=ChannelConfig.require_channels(["analysis", *commentary, "final"]),
    )
    if facts.has_browser:
        content = content.with_browser_tool()
    if facts.has_python:
        python = ToolNamespaceConfig.python()
        if facts.python_description is not None:
            python = python.model_copy(update={"description": facts.python_description})
        content = content.with_tools(python)
    return Message.from_role_and_content(Role.SYSTEM, content)


def _developer(options: RenderOptions, leading: Sequence[str]) -> list[Message]:
    # The format of an answer is a separate text behind the tools: tokens end there anyway.
    if not options.tools:
        text = developer_text(options, leading)
        return [Message.from_role_and_content(Role.DEVELOPER, text)] if text else []
    tools = [
        ToolDescription.new(
            tool.name, "\n".join(comment_lines(tool.description or "")), tool.parameters
        )
        for tool in options.tools
    ]
    content = DeveloperContent(instructions=instructions_before(options, leading) or None)
    contents: list[Content] = [content.with_function_tools(tools)]
    if options.answer is not None:
        formats = "\n\n".join(["", *format_sections(options.answer)])
        contents.append(TextContent(text=formats))
    return [Message.from_role_and_contents(Role.DEVELOPER, contents)]
