"""Parts of a chat's messages, respelled as parts of items.

A sound is respelled as a file, because items know none: the model, which reads text only, is told
that there was one (`protocol.calls`), or the request is refused (settings, `input`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.protocol.base import without_nulls
from gateway.protocol.refusals import missing, wrong_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.protocol.chat.messages import ChatMessage, ChatPart
    from gateway.protocol.chat.places import Places

    Json = dict[str, Any]

_SPOKEN: Final = ("text", "refusal")
_SHOWN: Final = ("text", "image_url", "input_audio", "file")
PART_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "developer": ("text",),
    "system": ("text",),
    "user": _SHOWN,
    "assistant": _SPOKEN,
    "tool": _SHOWN,
    "function": _SHOWN,
}
"""What a message of each role may hold. OpenAI's tools return text; some show what they saw."""


def respelled_parts(message: ChatMessage, path: str, places: Places, to: str) -> list[Json]:
    """The content of the message at `path`, as that at `to` of the respelled request.

    Notes in `places` where each part came from. Raises `InvalidRequest` for a part of a type that
    its role has not, and for one that lacks what it is named after.
    """
    if message.text is not None:
        places.add(f"{to}[0].text", f"{path}.content")
        return [{"type": "input_text", "text": message.text}]
    return [
        _part(message.role, part, f"{path}.content[{index}]", places, f"{to}[{index}]")
        for index, part in enumerate(message.content or ())
    ]


def _part(role: str, part: ChatPart, path: str, places: Places, to: str) -> Json:
    if part.type not in PART_TYPES[role]:
        raise wrong_value(f"{path}.type", part.type, PART_TYPES[role])
    if getattr(part, part.type) is None:
        raise missing(f"{path}.{part.type}")
    places.add(to, path)
    respell, names = _RESPELLED[part.type]
    for name, original in names.items():
        places.add(f"{to}.{name}", f"{path}.{original}")
    return respell(part)


def _text(part: ChatPart) -> Json:
    return {"type": "input_text", "text": part.text}


def _refusal(part: ChatPart) -> Json:
    return {"type": "refusal", "refusal": part.refusal}


def _image(part: ChatPart) -> Json:
    assert part.image_url is not None
    image = {"image_url": part.image_url.url, "detail": part.image_url.detail}
    return {"type": "input_image", **without_nulls(image)}


def _sound(part: ChatPart) -> Json:
    assert part.input_audio is not None
    name = f"audio.{part.input_audio.format}" if part.input_audio.format else "audio"
    return {"type": "input_file", "file_data": part.input_audio.data, "filename": name}


def _file(part: ChatPart) -> Json:
    assert part.file is not None
    return {"type": "input_file", **part.file.model_dump(exclude_none=True)}


_RESPELLED: Final[dict[str, tuple[Callable[[ChatPart], Json], dict[str, str]]]] = {
    "text": (_text, {}),
    "refusal": (_refusal, {}),
    "image_url": (_image, {"image_url": "image_url.url", "detail": "image_url.detail"}),
    "input_audio": (_sound, {"file_data": "input_audio.data"}),
    "file": (_file, {name: f"file.{name}" for name in ("file_id", "file_data", "filename")}),
}
"""How a part is respelled, and where its fields came from."""
