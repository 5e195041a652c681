"""Recorded answers of real servers: a vLLM 0.32, `### REQUEST ... ### RESPONSE ... [12.3ms 182B]
bytes`; SGLang 0.5.23 in the folders `sglang…`, `### request ... ### answer ... [ 12] text`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "data" / "backend-captures"

_RESPONSE = b"### RESPONSE (raw bytes; [ms since send])\n\n"
_ANSWER = b"### answer (ms since the request was sent, then the bytes of one read)\n"
_STEP = re.compile(rb"\n\[ *\d+\] ")
_EVENT = re.compile(rb"^data: .*", re.MULTILINE)
_FRAMING = (b"transfer-encoding", b"content-length", b"connection")
_READ = re.compile(rb"\n*\[[\d.]+ms (\d+)B\] ")


@dataclass(frozen=True)
class Capture:
    """`reads` are the pieces in which the answer came; what followed them is how it `ended`."""

    name: str
    request: bytes
    reads: tuple[bytes, ...]
    ended: str

    @property
    def response(self) -> bytes:
        return b"".join(self.reads)

    @property
    def path(self) -> str:
        """What was asked."""
        found = re.search(rb"^(?:GET|POST) (/\S*) HTTP", self.request, re.MULTILINE)
        return found[1].decode() if found else ""

    @property
    def status(self) -> int:
        return int(self.response.split(b" ", 2)[1])

    @property
    def body(self) -> bytes:
        """Of an answer with a content-length."""
        return self.response.split(b"\r\n\r\n", 1)[1]


def capture(name: str) -> Capture:
    """The recording of that name; those of SGLang are `sglang/…`."""
    recorded = (FOLDER / f"{name}.txt").read_bytes()
    if recorded.startswith(b"### request"):
        return _plain_capture(name, recorded)
    request, _, played = recorded.partition(_RESPONSE)
    reads = []
    position = 0
    while found := _READ.match(played, position):
        position = found.end() + int(found[1])
        reads.append(played[found.end() : position])
    return Capture(name, request, tuple(reads), played[position:].decode().strip())


def _plain_capture(name: str, recorded: bytes) -> Capture:
    """Of a recording that was kept as text, without the ends of its lines: as it must have been."""
    request, _, answer = recorded.partition(_ANSWER)
    head, _, rest = answer.partition(b"\n\n")
    rest = b"\n" + rest
    lines = head.partition(b"] ")[2].split(b"\n")
    lines = [line for line in lines if not line.lower().startswith(_FRAMING)]
    text = _STEP.sub(b"", rest)
    if b"text/event-stream" in head:
        lines.append(b"Transfer-Encoding: chunked")
        pieces = [_chunk(line + b"\n\n") for line in _EVENT.findall(text)]
        if re.search(rb"^0$", text, re.MULTILINE):
            pieces.append(_chunk(b""))
    else:
        pieces = [text.strip().removesuffix(b"<EOF>").strip()]
        lines.append(b"Content-Length: %d" % len(pieces[0]))
    return Capture(name, request, (b"\r\n".join([*lines, b"", b""]), *pieces), "")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def names(*patterns: str) -> list[str]:
    """Names of recordings, sorted."""
    found = [path for pattern in patterns for path in FOLDER.glob(f"{pattern}.txt")]
    return sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in found)
