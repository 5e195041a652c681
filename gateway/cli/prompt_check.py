"""Does this installation render prompts as openai-harmony, the reference, does?

A wrong prompt does not fail: the model just gets worse. So `doctor` renders one conversation both
ways and compares the ids.
"""

from __future__ import annotations

import os
from importlib.resources import as_file, files
from typing import TYPE_CHECKING

from openai_harmony import (
    Conversation,
    HarmonyEncodingName,
    HarmonyError,
    RenderConversationConfig,
    Role,
    load_harmony_encoding,
)

from gateway.constraints.rules import AnswerFormat
from gateway.errors import StartupError
from gateway.models.format import RenderOptions
from gateway.models.harmony.reference import prompt_messages
from gateway.protocol.context_item import ContextItem
from gateway.protocol.items import InputText, Message
from gateway.protocol.tools import FunctionTool

if TYPE_CHECKING:
    from gateway.models.format import ModelFormat

_RANKS_FOLDER = "TIKTOKEN_ENCODINGS_BASE"
_REMEDY = "Reinstall the package with the versions in its requirements.lock."
_TEXT = "Say hello in 日本語, naïvely 🙂."
_TOOL = FunctionTool(
    name="get_weather",
    description="Current weather.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}},
)
_OPTIONS = RenderOptions(
    instructions="Be brief.",
    tools=(_TOOL,),
    effort="low",
    current_date="2026-01-31",
    model_identity="You are ChatGPT, a large language model trained by OpenAI.",
    knowledge_cutoff="2024-06",
    commentary_without_tools=False,
    answer=AnswerFormat("json_schema", {"type": "object"}, name="greeting", description="One."),
)


def check_prompt(harmony: ModelFormat) -> None:
    """Render a small prompt by both ways. Raises `StartupError` where they differ."""
    message = Message(role="user", content=(InputText(text=_TEXT),))
    said = message.model_dump_json().encode()
    items = [ContextItem("message", "msg_1", said, role="user", parsed=message)]
    ids = harmony.render(items, _OPTIONS).ids.tolist()
    conversation = Conversation.from_messages(prompt_messages(items, _OPTIONS))
    if ids != _reference(conversation):
        raise StartupError("prompts differ from openai-harmony's", remedy=_REMEDY)


def _reference(conversation: Conversation) -> list[int]:
    """openai-harmony's ids, with the packaged ranks: it would download them otherwise."""
    with as_file(files("gateway.models.harmony") / "data") as folder:
        os.environ[_RANKS_FOLDER] = str(folder)  # noqa: TID251 - the only way to tell it
        try:
            encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
        except HarmonyError as error:
            message = f"openai-harmony cannot load its vocabulary: {error}"
            raise StartupError(message, remedy=_REMEDY) from error
    config = RenderConversationConfig(auto_drop_analysis=False)
    ids: list[int] = encoding.render_conversation_for_completion(
        conversation, Role.ASSISTANT, config
    )
    return ids
