"""What a client of these APIs is shown of a response: a body, or a stream of chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gateway.protocol.chat.bodies import ChatForm, chat_body, completion_body
from gateway.protocol.chat.chunks import ChatChunks, CompletionChunks

if TYPE_CHECKING:
    from gateway.protocol.events import Event

    Json = dict[str, Any]


class Chunks(Protocol):
    """One stream."""

    def of(self, event: Event) -> list[bytes]:
        """The chunks that show the next event, encoded: none, one or several. An error is one, too.

        What text they have is that of the event: as long, but for what joins two texts.
        """
        ...


class Answers(Protocol):
    """How one client is answered."""

    def body(self, response: Json) -> Json:
        """The body that says what a finished Response object says."""
        ...

    def chunks(self) -> Chunks:
        """For a new stream, from its first event on."""
        ...


@dataclass(frozen=True, slots=True)
class ChatAnswers:
    """Of chat completions; `include_usage` is for streams."""

    form: ChatForm
    include_usage: bool

    def body(self, response: Json) -> Json:
        """A `chat.completion`."""
        return chat_body(response, self.form)

    def chunks(self) -> Chunks:
        """Each is a `chat.completion.chunk`."""
        return ChatChunks(self.form, include_usage=self.include_usage)


@dataclass(frozen=True, slots=True)
class CompletionAnswers:
    """Of completions."""

    include_usage: bool

    def body(self, response: Json) -> Json:
        """A `text_completion`."""
        return completion_body(response)

    def chunks(self) -> Chunks:
        """Each is a `text_completion`, too."""
        return CompletionChunks(include_usage=self.include_usage)
