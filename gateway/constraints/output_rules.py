from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from gateway.constraints.schemas import ANY_OBJECT, object_schema
from gateway.generation import HOSTED_KINDS, SegmentKind

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

T = TypeVar("T")

CallMode = Literal["none", "auto", "required"]
Summary = Literal["off", "concise", "detailed"]
WHOLE_KINDS: Final = frozenset(
    {
        SegmentKind.LOCAL_SHELL_CALL,
        SegmentKind.SHELL_CALL,
        SegmentKind.APPLY_PATCH_CALL,
        SegmentKind.TOOL_SEARCH_CALL,
        SegmentKind.MCP_APPROVAL_REQUEST,
    }
)
"""Calls that do not stream, and whose arguments must have a fixed shape."""
INPUT_OBJECT: Final = object_schema({"input": {"type": "string"}}, "input")
"""Arguments of a custom tool."""
_CODE_OBJECT: Final = object_schema({"code": {"type": "string"}}, "code")
_MCP_KINDS: Final = frozenset({SegmentKind.MCP_CALL, SegmentKind.MCP_APPROVAL_REQUEST})


@dataclass(frozen=True, slots=True)
class TextGrammar:
    syntax: Literal["lark", "regex"]
    definition: str


@dataclass(frozen=True, slots=True)
class ToolRule:
    """Tool that the model knows as `name`, and the client as `namespace` and `shown_name`.

    `schema` binds the arguments; None if not strict. Browser and Python report errors to the model
    themselves: their `schema` is for the grammar only. `declared` is the schema that the model was
    shown (None: `schema`), for the types of arguments that it writes without any. `namespace` is
    the server label of an MCP tool.
    """

    name: str
    kind: SegmentKind
    shown_name: str
    namespace: str | None = None
    schema: dict[str, Any] | None = field(default=None, hash=False)
    grammar: TextGrammar | None = None
    declared: dict[str, Any] | None = field(default=None, hash=False)

    @property
    def is_hosted(self) -> bool:
        return self.kind in HOSTED_KINDS or self.kind is SegmentKind.MCP_APPROVAL_REQUEST

    @property
    def is_checked(self) -> bool:
        """Return True if arguments are checked; a call with wrong ones is not shown."""
        if self.is_hosted:
            return self.kind in _MCP_KINDS
        is_bound = self.schema is not None or self.grammar is not None
        return is_bound or self.kind in WHOLE_KINDS

    @property
    def takes_any_object(self) -> bool:
        return self.schema is None and self.grammar is None and self.arguments is ANY_OBJECT

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments of a tool without a grammar."""
        if self.schema is not None:
            return self.schema
        if self.kind is SegmentKind.CODE_INTERPRETER_CALL:
            return _CODE_OBJECT
        return INPUT_OBJECT if self.kind is SegmentKind.CUSTOM_CALL else ANY_OBJECT


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Format of a JSON answer. Unless `strict`, `schema` is only shown to the model."""

    kind: Literal["json_object", "json_schema"]
    schema: dict[str, Any] = field(hash=False)
    name: str = ""
    description: str = ""
    strict: bool = False

    @property
    def demand(self) -> dict[str, Any]:
        if self.kind == "json_schema" and self.strict:
            return self.schema
        is_object = self.kind == "json_object" or self.schema.get("type") == "object"
        return ANY_OBJECT if is_object else {}


@dataclass(frozen=True)
class OutputRules:
    """Demands of a request on its output.

    `tools` are the tools in the prompt, by their names there; only `allowed` may be called, with
    `open_calls` also unknown names (clients answer "no such tool", and the model corrects itself).
    `stop` ends the answer.
    """

    tools: Mapping[str, ToolRule]
    allowed: frozenset[str]
    calls: CallMode = "auto"
    open_calls: bool = True
    one_call: bool = False
    answer: AnswerFormat | None = None
    stop: tuple[str, ...] = ()
    summary: Summary = "off"

    @cached_property
    def checks_calls(self) -> bool:
        return any(tool.is_checked for tool in self.tools.values())

    @cached_property
    def binds_messages(self) -> bool:
        # True if more than the format of the answer is bound.
        return (
            self.calls == "required"
            or (self.calls == "none" and bool(self.tools))
            or self.allowed != self.tools.keys()
            or self.checks_calls
        )

    @cached_property
    def is_binding(self) -> bool:
        # True even if the model may think without bounds before.
        return self.answer is not None or self.binds_messages

    @cached_property
    def is_screened(self) -> bool:
        # They leave anything for `eventlog.fold.screen` to do.
        return (
            self.calls != "auto"
            or not self.open_calls
            or self.one_call
            or self.answer is not None
            or bool(self.stop)
            or not self.allowed.issuperset(self.tools)
            or not self.calls_functions
        )

    @cached_property
    def hosted(self) -> frozenset[str]:
        return frozenset(name for name, tool in self.tools.items() if tool.is_hosted)

    @cached_property
    def calls_functions(self) -> bool:
        kinds = {tool.kind for tool in self.tools.values()}
        return not self.checks_calls and kinds <= {SegmentKind.FUNCTION_CALL}

    @cached_property
    def grammars(self) -> frozenset[TextGrammar]:
        every = (tool.grammar for tool in self.tools.values())
        return frozenset(grammar for grammar in every if grammar is not None)

    @cached_property
    def derived(self) -> dict[Hashable, Any]:
        # A cache for all requests with these rules, shared between threads.
        return {}

    def derive(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the cached value of `key`. Two threads that need it first may get one each."""
        if key not in self.derived:
            self.derived[key] = make()
        made: T = self.derived[key]
        return made


class UnusableSchema(ValueError):
    """Refusal of a schema, as a short clause."""


class UnusableGrammar(ValueError):
    """Refusal of a grammar, as a short clause."""
