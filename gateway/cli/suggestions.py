"""What may have been meant by a value that an option does not know."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typing_extensions import override

_NONE_OF: Final = re.compile(
    r"(?:Value error, )?(?P<said>'(?P<given>.*)' is not one of (?P<known>.*)\.)"
)
_OF_TYPES: Final = re.compile(r"^Input should be (?:a valid )?")
_QUOTED: Final = re.compile(r"'([^']*)'")


class Suggesting(TyperGroup):
    """Commands whose values are compared with those there are, as typer does with commands."""

    @override
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = with_suggestion(error.message)
            raise


def with_suggestion(message: str) -> str:
    """The same message, in plain words; of what it lists, the likeliest is named."""
    found = _NONE_OF.fullmatch(message)
    if found is None:
        return _OF_TYPES.sub("expected ", message.removeprefix("Value error, "))
    close = get_close_matches(found["given"].lower(), _QUOTED.findall(found["known"]), n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return found["said"] + hint
