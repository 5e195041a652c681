"""What the scripted model knows: the conversation up to the turn it is to say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from gateway.simulator.directives import without_directives

if TYPE_CHECKING:
    from gateway.simulator.turn.transcript import Bodies, Message

_EFFORT: Final = re.compile(r"^Reasoning: (low|medium|high)\s*$", re.MULTILINE)
_NAME: Final = re.compile(r"\bmy name is ([\w'\-]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool answered."""

    name: str
    text: str


@dataclass(frozen=True)
class Conversation:
    """The messages before the open turn, read on demand; texts of users without directives."""

    messages: tuple[Message, ...]
    bodies: Bodies

    def _texts(self, role: str) -> list[str]:
        return [self.bodies.text(message) for message in self.messages if message.role == role]

    @cached_property
    def effort(self) -> str:
        """The reasoning effort of the system message."""
        found = _EFFORT.search("\n".join(self._texts("system")))
        return found[1] if found else "medium"

    @cached_property
    def developer(self) -> str:
        """Instructions, tools and response formats."""
        return "\n".join(self._texts("developer"))

    @cached_property
    def raw_request(self) -> str:
        """The user's last message with its directives; empty when there is none."""
        for message in reversed(self.messages):
            if message.role == "user":
                return self.bodies.text(message)
        return ""

    @cached_property
    def request(self) -> str:
        """The user's last message."""
        return without_directives(self.raw_request)

    @cached_property
    def users(self) -> list[str]:
        """Every message of the user."""
        return [without_directives(text) for text in self._texts("user")]

    @cached_property
    def outputs(self) -> list[ToolOutput]:
        """Every tool output, in order."""
        return self._outputs_from(0)

    @cached_property
    def new_outputs(self) -> list[ToolOutput]:
        """Those since the user's last message."""
        after = [i for i, message in enumerate(self.messages) if message.role == "user"]
        return self._outputs_from(after[-1] + 1 if after else 0)

    @cached_property
    def user_name(self) -> str | None:
        """What the user said to be called, most recently."""
        found = [match[1] for text in self.users if (match := _NAME.search(text))]
        return found[-1] if found else None

    def _outputs_from(self, index: int) -> list[ToolOutput]:
        return [
            ToolOutput(
                name=message.role.removeprefix("functions."),
                text=self.bodies.text(message),
            )
            for message in self.messages[index:]
            if message.role not in {"system", "developer", "user", "assistant"}
        ]
