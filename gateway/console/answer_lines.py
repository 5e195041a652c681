"""Stream of the API's events → lines for the script of the Playground.

A line is a JSON array: `["begin", id]` has the id of the response, `["add", html]` appends an item,
`["text", index, text]` goes on with it, `["put", index, html]` replaces it, and `["end", html, id]`
is the last; `id` is what the next question continues (null: nothing new is). Templates escape all
of the HTML.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

import orjson

from gateway.console import BASE
from gateway.console.rendering import count, duration, visible
from gateway.protocol.stream_events import TERMINAL_TYPES
from gateway.tools.python.container_pool import IMAGE_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gateway.console.snippets import Snippet
    from gateway.protocol.admin_bodies import Json

    Render = Callable[[str, object], str]
    Line = tuple[object, ...]

FILE: Final = "/playground/file"
"""Below /console."""
JSON_CHARS_MAX: Final = 20_000
"""Characters of an item of another type, shown as JSON."""
_FILE_URL: Final = re.compile(r"/v1/containers/([A-Za-z0-9_]+)/files/([A-Za-z0-9_-]+)/content")
_IMAGE_DATA: Final = re.compile(f"data:(?:{'|'.join(IMAGE_KINDS.values())});base64,[A-Za-z0-9+/=]+")
_REASONS: Final = {
    "max_output_tokens": "The answer ends here: it has as many tokens as it may. Raise 'Max "
    "tokens', or leave it empty."
}
_CUT: Final = "The stream ended before the answer did. Repeat the question."


class Block(NamedTuple):
    label: str
    text: str


class Citation(NamedTuple):
    """Reference of an answer; `file` is the address of a file here."""

    title: str
    url: str
    file: str = ""


@dataclass(frozen=True, slots=True)
class ShownItem:
    """Item of an answer; `text` grows while it is generated."""

    kind: str
    title: str = ""
    text: str = ""
    blocks: Sequence[Block] = ()
    images: Sequence[str] = ()
    citations: Sequence[Citation] = ()
    index: int = 0
    status: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """End of an answer; `calls` wait for output, `approvals` for the reader."""

    id: str = ""
    tone: str = ""
    notice: str = ""
    details: str = ""
    facts: Sequence[tuple[str, str]] = ()
    calls: Sequence[Json] = ()
    approvals: Sequence[Json] = ()
    snippets: Sequence[Snippet] = ()


class AnswerLines:
    def __init__(self, render: Render, snippets: Sequence[Snippet]) -> None:
        self._render = render
        self._snippets = snippets
        self._began_at = time.monotonic()
        self._first_at: float | None = None
        self._unread = b""
        self._status = 200
        self._notes: list[str] = []
        self._is_over = False

    def begin(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        self._status = status
        for name, words in (
            (b"x-gateway-dropped-tools", "Not for this tenant, or not on: "),
            (b"x-ignored-parameters", "Without effect: "),
        ):
            if name in headers:
                self._notes.append(f"{words}{headers[name].decode('latin-1')}")

    def feed(self, part: bytes, *, is_last: bool) -> bytes:
        self._unread += part
        lines: list[Line] = []
        if self._status == 200:
            *frames, self._unread = self._unread.split(b"\n\n")
            for frame in frames:
                lines += self._lines_of(frame)
        elif is_last:
            lines.append(self._refused(orjson.loads(self._unread)))
        if is_last and not self._is_over:
            lines.append(self._end(Ending(notice=_CUT, tone="bad")))
        return b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)

    def _lines_of(self, frame: bytes) -> Iterator[Line]:
        data = b"".join(line[6:] for line in frame.split(b"\n") if line.startswith(b"data: "))
        if not data.startswith(b"{"):
            return
        event: Json = orjson.loads(data)
        kind = event["type"]
        if kind == "response.created":
            yield "begin", event["response"]["id"]
        elif kind.endswith(".delta") and isinstance(event.get("delta"), str):
            self._first_at = self._first_at or time.monotonic()
            yield "text", event["output_index"], visible(event["delta"])
        elif kind in {"response.output_item.added", "response.output_item.done"}:
            item = item_of(event["output_index"], event["item"])
            html = self._render("item", item)
            yield ("add", html) if kind.endswith("added") else ("put", item.index, html)
        elif kind in TERMINAL_TYPES:
            yield self._ended(event["response"])
        elif kind == "error":
            yield self._refused({"error": event.get("error") or event})

    def _refused(self, body: Json) -> Line:
        error = body["error"]
        fields = (("Status", self._status if self._status != 200 else None), *error.items())
        details = " · ".join(
            f"{name}: {value}"
            for name, value in fields
            if value is not None and name in {"Status", "code", "param"}
        )
        return self._end(Ending(notice=error["message"], tone="bad", details=details))

    def _ended(self, response: Json) -> Line:
        notice, tone = "", ""
        if response.get("error"):
            notice, tone = response["error"]["message"], "bad"
        elif response.get("incomplete_details"):
            reason = response["incomplete_details"]["reason"]
            notice, tone = _REASONS.get(reason, f"The answer is incomplete: {reason}."), "warn"
        can_go_on = response.get("store") is not False and response["status"] != "failed"
        if not can_go_on and not notice:
            notice, tone = "Not stored, so the next question does not continue this answer.", "warn"

        def waiting(kind: str) -> list[Json]:
            return [one for one in response["output"] if can_go_on and one["type"] == kind]

        ending = Ending(
            response["id"],
            tone,
            notice,
            facts=self._facts(response.get("usage") or {}),
            calls=waiting("function_call"),
            approvals=waiting("mcp_approval_request"),
            snippets=self._snippets,
        )
        return self._end(ending, can_go_on=can_go_on)

    def _facts(self, usage: Json) -> list[tuple[str, str]]:
        now = time.monotonic()
        facts = []
        written = usage.get("output_tokens", 0)
        if self._first_at is not None:
            facts.append(("First token", duration(self._first_at - self._began_at)))
            if written and now > self._first_at:
                facts.append(("Tokens/s", count(round(written / (now - self._first_at)))))
        facts.append(("Took", duration(now - self._began_at)))
        if usage:
            cached = usage["input_tokens_details"]["cached_tokens"]
            thinking = usage["output_tokens_details"]["reasoning_tokens"]
            facts.append(("Tokens in", f"{count(usage['input_tokens'])} ({count(cached)} cached)"))
            facts.append(("Tokens out", f"{count(written)} ({count(thinking)} thinking)"))
        return facts

    def _end(self, ending: Ending, *, can_go_on: bool = False) -> Line:
        self._is_over = True
        details = " · ".join(filter(None, [ending.details, *self._notes]))
        html = self._render("ending", replace(ending, details=details))
        return "end", html, ending.id if can_go_on else None


def item_of(index: int, item: Json) -> ShownItem:
    status = item.get("status") or ""
    shown = _VIEWS.get(item["type"], _other)(item)
    return replace(shown, index=index, status="" if status == "completed" else status)


def _message(item: Json) -> ShownItem:
    parts = item.get("content") or ()
    text = "\n".join(part.get("text") or part.get("refusal") or "" for part in parts)
    return ShownItem("message", text=text, citations=_citations(parts))


def _thinking(item: Json) -> ShownItem:
    parts = item.get("content") or item.get("summary") or ()
    return ShownItem("thinking", "Thinking", "\n".join(part.get("text", "") for part in parts))


def _function_call(item: Json) -> ShownItem:
    text = item.get("arguments") or item.get("input") or ""
    return ShownItem("tool", f"Call of {item['name']}", text)


def _mcp_call(item: Json) -> ShownItem:
    blocks = [Block(name, str(item[name])) for name in ("output", "error") if item.get(name)]
    title = f"Call of {item.get('server_label')}.{item.get('name')}"
    return ShownItem("tool", title, item.get("arguments") or "", blocks)


def _approval(item: Json) -> ShownItem:
    return replace(_mcp_call(item), title=f"Asks for {item['server_label']}.{item['name']}")


def _web_search(item: Json) -> ShownItem:
    action = item.get("action") or {}
    words = (action.get(name) for name in ("type", "query", "url", "pattern"))
    urls = [str(one["url"]) for one in action.get("sources") or () if "url" in one]
    return ShownItem(
        "tool",
        "Web search",
        " · ".join(str(word) for word in words if word),
        citations=[Citation("", url) for url in urls],
    )


def _python_call(item: Json) -> ShownItem:
    blocks, images = [], []
    for output in item.get("outputs") or ():
        if output["type"] == "logs":
            blocks.append(Block("output", output["logs"]))
            continue
        url = str(output.get("url", ""))
        if _IMAGE_DATA.fullmatch(url):
            images.append(url)
        elif path := _FILE_URL.fullmatch(url):
            images.append(file_address(*path.groups()))
        else:
            blocks.append(Block("image", url))
    return ShownItem("tool", "Python", item.get("code") or "", blocks, images)


def _other(item: Json) -> ShownItem:
    text = orjson.dumps(item, option=orjson.OPT_INDENT_2).decode()[:JSON_CHARS_MAX]
    return ShownItem("tool", item["type"].replace("_", " "), text)


_VIEWS: Final[dict[str, Callable[[Json], ShownItem]]] = {
    "message": _message,
    "reasoning": _thinking,
    "function_call": _function_call,
    "custom_tool_call": _function_call,
    "mcp_call": _mcp_call,
    "mcp_approval_request": _approval,
    "web_search_call": _web_search,
    "code_interpreter_call": _python_call,
}


def _citations(parts: Sequence[Json]) -> list[Citation]:
    # Each once, in their order.
    cited: dict[Any, Citation] = {}
    for annotation in (one for part in parts for one in part.get("annotations") or ()):
        match annotation:
            case {"type": "url_citation", "url": str(url)}:
                cited[url] = Citation(str(annotation.get("title") or ""), url)
            case {
                "type": "container_file_citation",
                "container_id": str(container),
                "file_id": str(file),
            }:
                name = str(annotation.get("filename") or file)
                cited[container, file] = Citation(name, "", file_address(container, file))
            case _:
                pass
    return list(cited.values())


def file_address(container_id: str, file_id: str) -> str:
    return f"{BASE}{FILE}?{urlencode({'container': container_id, 'file': file_id})}"
