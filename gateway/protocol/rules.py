"""What a request demands of the output, derived from what the response repeats of it.

The rules are a function of `ResponseHead.echo` alone, so that whoever folds a log again, on another
replica or a year later, has the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gateway.generation import SegmentKind

if TYPE_CHECKING:
    from collections.abc import Mapping

CallMode = Literal["none", "auto", "required"]
Summary = Literal["off", "concise", "detailed"]


@dataclass(frozen=True, slots=True)
class TextGrammar:
    """The language of a custom tool's input."""

    syntax: Literal["lark", "regex"]
    definition: str


@dataclass(frozen=True, slots=True)
class ToolRule:
    """One tool that the model knows as the function `name`.

    `shown_name` and `namespace` are what the client called it. `schema` is the JSON Schema that
    the arguments must satisfy, None where they may be anything (not strict). `grammar` is the
    language of a custom tool's input.
    """

    name: str
    kind: SegmentKind
    shown_name: str
    namespace: str | None = None
    schema: dict[str, Any] | None = field(default=None, hash=False)
    grammar: TextGrammar | None = None

    @property
    def is_checked(self) -> bool:
        """What the model writes for it can be wrong."""
        return self.schema is not None or self.grammar is not None


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The answer is JSON. `schema` binds it if `strict`; else it need only be JSON (an object, for
    `json_object`), and the model is shown the schema.
    """

    kind: Literal["json_object", "json_schema"]
    schema: dict[str, Any] = field(hash=False)
    name: str = ""
    description: str = ""
    strict: bool = False


@dataclass(frozen=True, slots=True)
class OutputRules:
    """All demands.

    `tools` are the tools that the model is told of, by the name it knows. Of these only `allowed`
    may be called; names that are no tool at all may be, too, if `open_calls` (clients answer "no
    such tool", and the model corrects itself). With `calls` "required" a turn must not end without
    a call; with "none" none may be made. `one_call`: no more than one. `stop` ends the answer.
    `summary` is how much of the reasoning is repeated as its summary.
    """

    tools: Mapping[str, ToolRule]
    allowed: frozenset[str]
    calls: CallMode = "auto"
    open_calls: bool = True
    one_call: bool = False
    answer: AnswerFormat | None = None
    stop: tuple[str, ...] = ()
    summary: Summary = "off"
