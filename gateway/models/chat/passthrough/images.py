"""Images of a conversation, as a server's chat endpoint takes them: in the request, as data URLs.

No server is given a URL to fetch: it would fetch it from inside of the operator's network. The
gateway does, under the rules of its tools (`gateway.tools.egress`), and is asked for that as for a
rendering: a question is `image ` and the URL, and its answer a data URL, or why there is none.
"""

from __future__ import annotations

from binascii import Error as NotBase64
from binascii import a2b_base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import InvalidRequest
from gateway.models.chat.messages import images_of
from gateway.models.format import IMAGE_QUESTION, Unrendered
from gateway.models.history import is_answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.models.format import Rendering
    from gateway.protocol.context_item import ContextItem
    from gateway.protocol.items import InputImage

SIGNATURES: Final[Mapping[str, tuple[bytes, ...]]] = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
"""How files of each type begin that may be shown: those that OpenAI takes."""
_DATA: Final = "data:"
_BASE64: Final = ";base64"
_WEB: Final = ("http://", "https://")
_DETAILS: Final = {"low": "low", "high": "high", "original": "high"}
_MISSING: Final = "[an image stood here: {}]"


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Of the images of one context: `bytes_max` of each as a file, and how many of them."""

    bytes_max: int = 8 * 1024 * 1024
    images_max: int = 32


class Gallery:
    """The images of one context. `rendered` has those that were fetched, by their questions."""

    def __init__(
        self,
        items: Sequence[ContextItem],
        rendered: Mapping[bytes, Rendering],
        limits: ImageLimits,
    ) -> None:
        """Raises `InvalidRequest` for more than there may be, and for one that cannot be shown and
        is new; of what was answered before the model is told that one is missing. `Unrendered`
        names those that have to be fetched.
        """
        self._limits = limits
        self._new_from = _new_from(items)
        self._rendered = rendered
        found = [one for item in items if _may_show(item) for one in images_of(item.item())]
        if len(found) > limits.images_max:
            raise _refused(
                f"The context has {len(found)} images, and at most {limits.images_max} can be "
                "shown to the model. Send fewer of them."
            )
        urls = [one.image_url for one in found if (one.image_url or "").startswith(_WEB)]
        questions = [IMAGE_QUESTION + url.encode() for url in dict.fromkeys(filter(None, urls))]
        if lacking := [one for one in questions if one not in rendered]:
            raise Unrendered(lacking)
        self.is_empty = not found

    def part(self, source: int, image: InputImage) -> dict[str, Any]:
        """The part of a message that shows it, or says that it is missing. Raises as above."""
        try:
            url = self._data_url(image)
        except _Unshowable as error:
            if source >= self._new_from:
                raise _refused(f"An image cannot be shown to the model: {error}.") from None
            return {"type": "text", "text": _MISSING.format(error)}
        shown = {"url": url}
        if image.detail in _DETAILS:
            shown["detail"] = _DETAILS[image.detail]
        return {"type": "image_url", "image_url": shown}

    def _data_url(self, image: InputImage) -> str:
        url = image.image_url
        if url is None:
            raise _Unshowable("images of files are not known here, send it as 'image_url'")
        if url.startswith(_WEB):
            answer = self._rendered[IMAGE_QUESTION + url.encode()]
            if not isinstance(answer, str) or not answer.startswith(_DATA):
                raise _Unshowable(str(answer))
            url = answer
        return _checked(url, self._limits)


class _Unshowable(ValueError):
    """Why an image cannot be shown."""


def _refused(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_image", param="input")


def _may_show(item: ContextItem) -> bool:
    return item.kind == "message" or item.kind.endswith("_output")


def _new_from(items: Sequence[ContextItem]) -> int:
    """The index of the first item that the model has not answered yet."""
    for at in reversed(range(len(items))):
        item = items[at]
        if item.kind == "message" and is_answer(item):
            return at + 1
    return 0


def _checked(url: str, limits: ImageLimits) -> str:
    """A data URL with an image in it, as it is. Raises `_Unshowable`."""
    head, comma, encoded = url.partition(",")
    kind = head.removeprefix(_DATA).removesuffix(_BASE64).partition(";")[0].strip().lower()
    if not (comma and head.startswith(_DATA) and head.endswith(_BASE64)):
        raise _Unshowable("its URL is neither of http or https, nor data:image/…;base64,…")
    if kind not in SIGNATURES:
        raise _Unshowable(f"it is no image of {', '.join(SIGNATURES)}")
    try:
        content = a2b_base64(encoded, strict_mode=True)
    except (NotBase64, ValueError):
        raise _Unshowable("its data is no base64") from None
    if len(content) > limits.bytes_max:
        raise _Unshowable(f"it is longer than {limits.bytes_max} bytes")
    if not content.startswith(SIGNATURES[kind]):
        raise _Unshowable(f"its data is no {kind}")
    return url


def has_images(items: Sequence[ContextItem]) -> bool:
    """Whether there is anything to be seen in a context."""
    return any(_may_show(item) and images_of(item.item()) for item in items)
