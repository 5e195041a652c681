"""The messages of a prompt as openai-harmony has them, to be rendered by it: what ours is held to.

It writes all by itself that it has a form for. Nothing that serves imports it: only tests, and
`doctor` by way of `HarmonyFormat.check`.
"""

from __future__ import annotations

import os
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Final

from openai_harmony import (
    Author,
    ChannelConfig,
    Conversation,
    DeveloperContent,
    HarmonyEncodingName,
    HarmonyError,
    Message,
    ReasoningEffort,
    RenderConversationConfig,
    Role,
    SystemContent,
    TextContent,
    ToolDescription,
    ToolNamespaceConfig,
    load_harmony_encoding,
)

from gateway.constraints.output_rules import AnswerFormat
from gateway.errors import StartupError
from gateway.models.format import Builtins, RenderOptions, SchemaLimits
from gateway.models.harmony.rendering import (
    CODE_CONTENT,
    INSTRUCTIONS,
    JSON_CONTENT,
    SystemFacts,
    developer_text,
    format_sections,
    harmony_messages,
    instructions_before,
    instructions_of,
    shown,
)
from gateway.models.harmony.tool_typescript import comment_lines
from gateway.models.history import leading_instructions
from gateway.protocol.context_item import ContextItem
from gateway.protocol.items import InputText
from gateway.protocol.items import Message as InputMessage
from gateway.protocol.tool_types import FunctionTool

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from openai_harmony import Content, HarmonyEncoding

    from gateway.models.format import ModelFormat
    from gateway.models.harmony.rendering import HarmonyMessage


_RANKS_FOLDER: Final = "TIKTOKEN_ENCODINGS_BASE"
_REMEDY: Final = "Reinstall the package with the versions in its requirements.lock."
_SAMPLE: Final = "Say hello in 日本語, naïvely 🙂."
_TOOL: Final = FunctionTool(
    name="get_weather",
    description="Current weather.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}},
)
_OPTIONS: Final = RenderOptions(
    instructions="Be brief.",
    tools=(_TOOL,),
    effort="low",
    current_date="2026-01-31",
    model_identity="You are ChatGPT, a large language model trained by OpenAI.",
    knowledge_cutoff="2024-06",
    commentary_without_tools=False,
    answer=AnswerFormat("json_schema", {"type": "object"}, name="greeting", description="One."),
    builtins=Builtins(browser=True, python=True),
)
_ROLES: Final = frozenset(role.value for role in Role if role is not Role.TOOL)


def prompt_messages(items: Sequence[ContextItem], options: RenderOptions) -> list[Message]:
    """Make all messages of a prompt anew, with headers in form 0."""
    leading = leading_instructions(items)
    placed = shown(items, leading, options.approved)
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
        return made.with_content_type(CODE_CONTENT)
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
        text = developer_text(options, leading, SchemaLimits())
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


def check_prompt(format_: ModelFormat, ranks: Path | None = None) -> None:
    """Render a small prompt here and by openai-harmony. Raises `StartupError` where the ids differ:
    a wrong prompt does not fail, the model just gets worse.

    `ranks` is the folder of the vocabulary for openai-harmony; None: the packaged one.
    """
    message = InputMessage(role="user", content=(InputText(text=_SAMPLE),))
    json = message.model_dump_json().encode()
    items = [ContextItem("message", "msg_1", json, role="user", parsed=message)]
    ids = format_.render(items, _OPTIONS).ids.tolist()
    if ids != _reference_ids(Conversation.from_messages(prompt_messages(items, _OPTIONS)), ranks):
        raise StartupError("prompts differ from openai-harmony's", remedy=_REMEDY)


def _reference_ids(conversation: Conversation, ranks: Path | None) -> list[int]:
    # openai-harmony would download the ranks otherwise.
    config = RenderConversationConfig(auto_drop_analysis=False)
    ids: list[int] = _encoding(ranks).render_conversation_for_completion(
        conversation, Role.ASSISTANT, config
    )
    return ids


def _encoding(ranks: Path | None) -> HarmonyEncoding:
    with as_file(files("gateway.models.harmony") / "data") as folder:
        os.environ[_RANKS_FOLDER] = str(ranks or folder)  # noqa: TID251 - the only way to tell it
        try:
            return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
        except HarmonyError as error:
            message = f"openai-harmony cannot load its vocabulary: {error}"
            raise StartupError(message, remedy=_REMEDY) from error
