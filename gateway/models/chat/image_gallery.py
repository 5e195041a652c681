"""Images of a conversation, sent to a server's chat endpoint as data URLs.

No server gets a URL to fetch: it would fetch it from inside of the operator's network. The gateway
fetches images under the rules of its tools (`gateway.tools.egress`).
"""

from __future__ import annotations

from binascii import Error as NotBase64
from binascii import a2b_base64
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import InvalidRequest, RateLimited
from gateway.models.chat.chat_messages import images_of
from gateway.models.format import IMAGE_NO_ROOM, IMAGE_QUESTION, Unrendered
from gateway.models.history import PlacedItem, is_answer, since_compaction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.models.format import ImageLimits, Rendering
    from gateway.protocol.context_item import ContextItem
    from gateway.protocol.items import InputImage, InputItem


SIGNATURES: Final[Mapping[str, tuple[bytes, ...]]] = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
"""First bytes of files, of the types that OpenAI accepts."""
_DATA: Final = "data:"
_BASE64: Final = ";base64"
_WEB: Final = ("http://", "https://")
_DETAILS: Final = {"low": "low", "high": "high", "original": "high"}
RETRY_AFTER_S: Final = 1.0
_TOO_MANY: Final = "the context has {} images, and at most {} are shown"
LONG_TOGETHER: Final = "the images of the context are longer than {} bytes together"
_MISSING: Final = "[an image stood here: {}]"


class Gallery:
    """Images of one context. If there are too many, or they are too long together, the oldest ones
    that the model has answered are left out.
    """

    def __init__(
        self,
        items: Sequence[ContextItem],
        rendered: Mapping[bytes, Rendering],
        limits: ImageLimits,
        new_items: Sequence[InputItem] = (),
    ) -> None:
        """Take the images. `new_items` are the request's own, for errors that name an image.

        Raises `InvalidRequest` for new images that cannot be shown or are too many, `Unrendered`
        for those to be fetched, the latest first, and `RateLimited` for one that could not be
        because others are held.
        """
        self._limits = limits
        self._new_from = _new_from(items)
        self._new_items = new_items
        self._rendered = rendered
        self._left_out: dict[tuple[int, str | None], str] = {}
        images = _images(items)
        new = [one for one in images if one[0] >= self._new_from]
        self._bound([*new, *(one for one in reversed(images) if one[0] < self._new_from)])
        self.is_empty = not images

    def part(self, source: int, image: InputImage) -> dict[str, Any]:
        """Return the part of a message that shows the image, or says that an old one is missing.

        Raises as the constructor does.
        """
        try:
            url = self._data_url(source, image)
        except _Unshowable as error:
            self._leave_out(source, image, str(error))
            return {"type": "text", "text": _MISSING.format(error)}
        shown = {"url": url}
        if image.detail in _DETAILS:
            shown["detail"] = _DETAILS[image.detail]
        return {"type": "image_url", "image_url": shown}

    def _bound(self, images: Sequence[tuple[int, InputImage]]) -> None:
        # The first images in the list matter most.
        limits, length = self._limits, 0
        lacking: dict[bytes, None] = {}
        for number, (source, image) in enumerate(images):
            url = self._fetched_url(image)
            length += 0 if url is None else _file_bytes(url)
            if number >= limits.images_max:
                self._leave_out(source, image, _TOO_MANY.format(len(images), limits.images_max))
            elif length > limits.context_bytes_max:
                self._leave_out(source, image, LONG_TOGETHER.format(limits.context_bytes_max))
            elif url is None:
                lacking[_question(image)] = None
        if lacking:
            raise Unrendered(list(lacking))

    def _fetched_url(self, image: InputImage) -> str | None:
        # None while an image that has to be fetched is not here yet.
        url = image.image_url or ""
        if not url.startswith(_WEB):
            return url
        answer = self._rendered.get(_question(image))
        if answer is None:
            return None
        url_or_fault = str(answer)
        if url_or_fault.startswith(IMAGE_NO_ROOM):
            raise RateLimited(
                url_or_fault.removeprefix(IMAGE_NO_ROOM),
                code="rate_limit_exceeded",
                param=self._param(image),
                retry_after_s=RETRY_AFTER_S,
            )
        return url_or_fault

    def _leave_out(self, source: int, image: InputImage, why: str) -> None:
        if source >= self._new_from:
            raise InvalidRequest(
                f"An image cannot be shown to the model: {why}.",
                code="invalid_image",
                param=self._param(image),
            )
        self._left_out[source, image.image_url] = why

    def _param(self, image: InputImage) -> str:
        # `input` for an image of the history.
        for at, item in enumerate(self._new_items):
            for name in ("content", "output"):
                parts = getattr(item, name, None)
                for number, part in enumerate(parts if isinstance(parts, tuple) else ()):
                    if part is image:
                        return f"input[{at}].{name}[{number}]"
        return "input"

    def _data_url(self, source: int, image: InputImage) -> str:
        url = image.image_url
        if (why := self._left_out.get((source, url))) is not None:
            raise _Unshowable(why)
        if url is None:
            raise _Unshowable("images of files are not known here, send it as 'image_url'")
        if url.startswith(_WEB):
            answer = str(self._rendered[_question(image)])
            if not answer.startswith(_DATA):
                raise _Unshowable(answer)
            url = answer
        return _checked(url, self._limits)


class _Unshowable(ValueError):
    """Refusal of an image; the message is the reason."""


def _question(image: InputImage) -> bytes:
    return IMAGE_QUESTION + (image.image_url or "").encode()


def _images(items: Sequence[ContextItem]) -> list[tuple[int, InputImage]]:
    return [
        (one.source, image)
        for one in since_compaction(PlacedItem(at, item) for at, item in enumerate(items))
        if _may_show(one.item)
        for image in images_of(one.item.item())
    ]


def _file_bytes(url: str) -> int:
    head, _, encoded = url.partition(",")
    return (len(encoded) - encoded.count("=")) * 3 // 4 if head.startswith(_DATA) else 0


def _may_show(item: ContextItem) -> bool:
    return item.kind == "message" or item.kind.endswith("_output")


def _new_from(items: Sequence[ContextItem]) -> int:
    for at in reversed(range(len(items))):
        item = items[at]
        if item.kind == "message" and is_answer(item):
            return at + 1
    return 0


def _checked(url: str, limits: ImageLimits) -> str:
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
    may_have = any(map(_may_show, items))
    return may_have and bool(_images(items))
