"""Where in a request of another API the parts of the respelled one came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

_SEPARATORS: Final = ".["


class Places:
    """Paths of the respelled request, each with the path that the client wrote."""

    def __init__(self, places: Mapping[str, str]) -> None:
        """What is below a path is below its counterpart, unless it has one of its own."""
        self._places = dict(places)

    def add(self, path: str, original: str) -> None:
        """Say where one more part came from."""
        self._places[path] = original

    def original(self, path: str) -> str:
        """The client's path of what stands at `path`; the same where nothing else is known."""
        known, rest = path, ""
        while known not in self._places:
            cut = max(map(known.rfind, _SEPARATORS))
            if cut < 0:
                return path
            known, rest = known[:cut], known[cut:] + rest
        return self._places[known] + rest

    def restated(self, error: InvalidRequest) -> InvalidRequest:
        """The same refusal, in the words of the client's request."""
        if error.param is None:
            return InvalidRequest(in_chat_words(error.message), code=error.code)
        param = self.original(error.param)
        message = error.message.replace(f"'{error.param}'", f"'{param}'")
        return InvalidRequest(in_chat_words(message), code=error.code, param=param)


def in_chat_words(message: str) -> str:
    """What a message calls parameters of the Responses API, as this API calls them."""
    for name, word in _WORDS.items():
        message = message.replace(name, word)
    return message


_WORDS: Final = {
    "text.format": "response_format",
    "max_output_tokens": "max_completion_tokens",
}
