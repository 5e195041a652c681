"""Answers of the benchmark's backend as bytes of chunked HTTP, one frame a chunk as vLLM has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.harmony.vocabulary import Vocabulary
from tests.load import script

FRAMES_PER_BLOCK: Final = 8
"""Of one unpaced stream, before it is the next one's turn."""
STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
STREAM_END: Final = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Recording:
    """An answer without what differs from request to request.

    `lead` is what comes at once behind the first frame, up to the first word; then `frames`, or
    the same as larger `blocks`.
    """

    first_id: int
    lead: bytes
    frames: list[bytes]
    blocks: list[bytes]


class Playback:
    """The answers by length, each made once."""

    def __init__(self) -> None:
        self._vocabulary = Vocabulary.load()
        self._recordings: dict[int, Recording] = {}

    def recording(self, length: int) -> Recording:
        """The answer of `length` ids."""
        if length not in self._recordings:
            self._recordings[length] = self._record(length)
        return self._recordings[length]

    def opening(self, length: int, prompt: list[int]) -> bytes:
        """The head and everything up to the first word; the first frame repeats the prompt."""
        recording = self.recording(length)
        first = script.frame(self._vocabulary, recording.first_id, prompt)
        return b"".join([STREAM_HEAD, chunk(first), recording.lead])

    @staticmethod
    def closing(length: int, prompt: list[int]) -> bytes:
        """What follows the last id."""
        usage = script.usage_frame(len(prompt), length)
        return chunk(usage) + chunk(script.DONE) + STREAM_END

    def _record(self, length: int) -> Recording:
        first, *others = script.turn(self._vocabulary, length).ids
        chunks = [chunk(script.frame(self._vocabulary, token)) for token in others]
        lead, frames = chunks[: script.LEAD - 1], chunks[script.LEAD - 1 :]
        cuts = range(0, len(frames), FRAMES_PER_BLOCK)
        blocks = [b"".join(frames[at : at + FRAMES_PER_BLOCK]) for at in cuts]
        return Recording(first, b"".join(lead), frames, blocks)


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)
