"""What the newest openai SDK has and this release does not know: `python -m
tests.conformance.newest_sdk FOLDER`, where FOLDER has the SDK. It only warns.

What the SDK that the tests are locked to has is known: `test_documented` compares name by name. A
newer one may have parameters, items and tools that clients begin to send.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final, get_args, get_type_hints

from pydantic import BaseModel
from typing_extensions import is_typeddict

from gateway.protocol.documented import NEWER_PARAMETERS, literal_values

if TYPE_CHECKING:
    from collections.abc import Iterator

TYPES: Final = (
    ("responses.response_create_params", "ResponseCreateParamsBase"),
    ("responses.input_token_count_params", "InputTokenCountParams"),
    ("responses.response_compact_params", "ResponseCompactParams"),
    ("chat.completion_create_params", "CompletionCreateParamsBase"),
    ("responses.response", "Response"),
    ("responses.response_stream_event", "ResponseStreamEvent"),
    ("responses.response_output_item", "ResponseOutputItem"),
)
"""Modules of `openai.types`, and the type of each whose fields are compared."""
DEPTH_MAX: Final = 5
"""Levels of objects within objects."""


def fields_of(kind: Any, path: str, depth: int = 0) -> Iterator[str]:
    """The paths of its fields, and of those of the types within, with the names of variants."""
    hints: dict[str, Any] = {}
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        hints = {name: field.annotation for name, field in kind.model_fields.items()}
    elif is_typeddict(kind):
        hints = get_type_hints(kind)
    if hints:
        tag = "".join(f"<{value}>" for value in literal_values(hints.get("type"))[:1])
        for name, hint in hints.items():
            yield f"{path}{tag}.{name}"
            if depth < DEPTH_MAX:
                yield from fields_of(hint, f"{path}{tag}.{name}", depth + 1)
    for part in get_args(kind):
        yield from fields_of(part, path, depth)


def sdk_fields() -> set[str]:
    """Those of the SDK that is imported now."""
    found = set()
    for module, name in TYPES:
        kind = getattr(importlib.import_module(f"openai.types.{module}"), name, None)
        found |= {*fields_of(kind, name)}
    return found


def new_fields(newest: set[str], locked: set[str], *, known: set[str]) -> list[str]:
    """Those that only the newest has; of an object that is new or known its name is enough."""
    new = newest - locked - known
    return sorted(one for one in new if one.rpartition(".")[0] not in new | known)


def main() -> None:
    """Compare the locked SDK with that in the folder."""
    locked = sdk_fields()
    for name in [name for name in sys.modules if name.partition(".")[0] == "openai"]:
        del sys.modules[name]
    sys.path.insert(0, sys.argv[1])
    version = importlib.import_module("openai").__version__
    known = {f"ResponseCreateParamsBase.{name}" for name in NEWER_PARAMETERS}
    shown = new_fields(sdk_fields(), locked, known=known)
    for one in shown:
        print(f"warning: openai {version} has {one}, which is not known here")
    print(f"openai {version}: {len(shown)} fields that are not known here")


if __name__ == "__main__":
    main()
