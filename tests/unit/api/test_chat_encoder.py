"""How one client of chat completions or completions is shown events that have no chunk."""

from __future__ import annotations

from typing_extensions import override

from gateway.api.chat import HIDDEN_EVENTS_MAX, ChunkEncoder
from gateway.api.sse import COMMENT
from gateway.protocol.chat_answers import Chunks
from gateway.protocol.stream_events import Event


class Mute(Chunks):
    """Chunks of a stream that shows only what is `shown`."""

    def __init__(self) -> None:
        super().__init__("mute", include_usage=False)

    @override
    def from_event(self, event: Event) -> list[bytes]:
        return [event.data] if event.type == "shown" else []


def test_long_silence_shows_that_there_is_life() -> None:
    encoder = ChunkEncoder(Mute(), obfuscate=False)
    hidden = [
        encoder.event(Event("hidden", number, b"{}")) for number in range(2 * HIDDEN_EVENTS_MAX)
    ]
    signs = [number for number, frames in enumerate(hidden, 1) if frames == COMMENT]
    assert signs == [HIDDEN_EVENTS_MAX, 2 * HIDDEN_EVENTS_MAX]
    assert set(hidden) == {b"", COMMENT}


def test_what_is_shown_begins_the_silence_anew() -> None:
    encoder = ChunkEncoder(Mute(), obfuscate=True)
    silence = [Event("hidden", number, b"{}") for number in range(HIDDEN_EVENTS_MAX - 1)]
    before = [encoder.event(event) for event in silence]
    assert encoder.event(Event("shown", 1, b'{"a":1}')) == b'data: {"a":1}\n\n'
    assert {*before, *map(encoder.event, silence)} == {b""}


def test_a_run_that_says_it_is_alive_is_passed_on_as_a_comment() -> None:
    encoder = ChunkEncoder(Mute(), obfuscate=False)
    assert encoder.event(Event("response.in_progress", 1, b"{}")) == COMMENT


def test_chunks_of_one_event_are_frames_of_their_own() -> None:
    class Twice(Mute):
        @override
        def from_event(self, event: Event) -> list[bytes]:
            return [b"{}", event.data]

    frames = ChunkEncoder(Twice(), obfuscate=True).event(Event("shown", 1, b'{"a":1}'))
    assert frames == b'data: {}\n\ndata: {"a":1}\n\n'
