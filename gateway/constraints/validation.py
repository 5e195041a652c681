from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.cache import LruCache
from gateway.constraints.output_rules import ToolRule, UnusableGrammar, UnusableSchema
from gateway.constraints.schemas import ANY_OBJECT, patterns_in
from gateway.errors import InvalidRequest
from gateway.generation import SegmentKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.constraints.output_rules import OutputRules
    from gateway.constraints.validators import GrammarValidator, SchemaValidator


CallFields = Callable[[ToolRule, str, str], dict[str, Any]]
"""Tool, name, arguments → fields of a call item; raises `ValueError` for a wrong shape."""

_FAULT_CHARS_MAX: Final = 300


WORK_MAX: Final = 50_000
"""Applications of a schema to a value in one check; each takes a few microseconds."""
GRAMMAR_SECONDS_MAX: Final = 1.0
PATTERNS_MAX: Final = 512
"""In all schemas of one response."""


class SchemaCache:
    """Compiled schemas, shared by threads.

    Each is kept for one scope, because what a schema costs must not depend on what another tenant
    sent. Schemas with patterns are not kept: they may take megabytes.
    """

    def __init__(self, *, json_bytes_max: int = 1 << 20) -> None:
        # A compiled schema takes about thirty times the memory of its JSON.
        self._by_digest: LruCache[bytes, SchemaValidator] = LruCache(size_max=json_bytes_max)

    def get(self, scope: bytes, schema: dict[str, Any]) -> SchemaValidator | None:
        return self._by_digest.get(_digest(scope, orjson.dumps(schema)))

    def put(self, scope: bytes, schema: dict[str, Any], validator: SchemaValidator) -> None:
        if not validator.has_patterns:
            spelled = orjson.dumps(schema)
            self._by_digest.put(_digest(scope, spelled), validator, size=len(spelled))


def _digest(scope: bytes, spelled: bytes) -> bytes:
    return sha256(b"%d:%b%b" % (len(scope), scope, spelled)).digest()


_NO_PATHS: Final[Mapping[str, str]] = MappingProxyType({})


class Checker:
    """Checks of one response. A compiled one may be used by several threads at once."""

    def __init__(
        self,
        rules: OutputRules,
        call_fields: CallFields,
        *,
        cache: SchemaCache | None = None,
        scope: bytes = b"",
        paths: Mapping[str, str] = _NO_PATHS,
    ) -> None:
        self._rules = rules
        self._call_fields = call_fields
        self._cache = cache
        self._scope = scope
        self._paths = paths
        self._answer: SchemaValidator | None = None
        self._calls: dict[str, SchemaValidator | GrammarValidator] = {}
        self.has_patterns = False
        """If True, the schemas' memory does not follow from their length."""
        self.is_compiled = False

    def compile(self) -> None:
        """Compile schemas and grammars. CPU work, for a thread.

        Raises `InvalidRequest` if one cannot be used.
        """
        if self.is_compiled:
            return
        self._bound_patterns()
        self._answer_validator()
        for name, tool in self._rules.tools.items():
            if tool.is_checked:
                self._call_check(name, tool)
        self.is_compiled = True

    def _bound_patterns(self) -> None:
        tools = self._rules.tools.values()
        schemas = [
            tool.schema
            for tool in tools
            if tool.is_checked and not tool.is_hosted and tool.schema is not None
        ]
        if self._rules.answer is not None:
            schemas.append(self._rules.answer.demand)
        patterns = sum(len(patterns_in(schema)) for schema in schemas)
        self.has_patterns = patterns > 0
        if patterns > PATTERNS_MAX:
            raise InvalidRequest(
                f"The schemas of this request have {patterns} patterns. Expected at most "
                f"{PATTERNS_MAX}.",
                code="invalid_value",
                param="tools",
            )

    def answer_fault(self, text: str) -> str | None:
        validator = self._answer_validator()
        return None if validator is None else _short(validator.fault(text))

    def call_fault(self, name: str, arguments: str) -> str | None:
        """Return what is wrong with the arguments. An undeclared tool takes any."""
        tool = self._rules.tools.get(name)
        if tool is None:
            return None
        if tool.is_checked:
            check = self._call_check(name, tool)
            checked = arguments
            if tool.grammar is not None:
                checked = str(self._call_fields(tool, name, arguments)["input"])
            if tool.is_hosted and not arguments.strip():
                checked = "{}"  # nothing at all stands for no arguments
            if fault := check.fault(checked):
                return _short(fault)
        return self._shape_fault(tool, name, arguments)

    def _shape_fault(self, tool: ToolRule, name: str, arguments: str) -> str | None:
        if tool.kind is SegmentKind.FUNCTION_CALL or tool.is_hosted:
            return None
        try:
            self._call_fields(tool, name, arguments)
        except ValueError as error:
            return _short(str(error))
        return None

    def _answer_validator(self) -> SchemaValidator | None:
        if self._answer is None and self._rules.answer is not None:
            try:
                self._answer = self._schema_validator(self._rules.answer.demand)
            except UnusableSchema as error:
                what, param = "schema of the answer", "text.format.schema"
                raise _invalid(what, error, "invalid_json_schema", param) from None
        return self._answer

    def _call_check(self, name: str, tool: ToolRule) -> SchemaValidator | GrammarValidator:
        if name not in self._calls:
            try:
                self._calls[name] = self._compiled(tool)
            except (UnusableSchema, UnusableGrammar) as error:
                raise self._unusable(name, tool, error) from None
        return self._calls[name]

    def _unusable(self, name: str, tool: ToolRule, error: ValueError) -> InvalidRequest:
        what, code, place = "schema", "invalid_function_parameters", "parameters"
        if tool.grammar is not None:
            what, code, place = "grammar", "invalid_value", "format.definition"
        param = f"{self._paths[name]}.{place}" if name in self._paths else "tools"
        return _invalid(f"{what} of the tool '{name}'", error, code, param)

    def _compiled(self, tool: ToolRule) -> SchemaValidator | GrammarValidator:
        if tool.grammar is not None:
            from gateway.constraints.validators import GrammarValidator

            return GrammarValidator(tool.grammar, seconds_max=GRAMMAR_SECONDS_MAX)
        if tool.is_hosted:
            return self._hosted_validator(tool.schema or ANY_OBJECT)
        return self._schema_validator(tool.schema or {})

    def _hosted_validator(self, schema: dict[str, object]) -> SchemaValidator:
        # The caller did not write this schema: one that is unusable or has patterns is left to the
        # tool.
        if patterns_in(schema):
            return self._schema_validator(ANY_OBJECT)
        try:
            return self._schema_validator(schema)
        except UnusableSchema:
            return self._schema_validator(ANY_OBJECT)

    def _schema_validator(self, schema: dict[str, object]) -> SchemaValidator:
        from gateway.constraints.validators import SchemaValidator

        validator = self._cache.get(self._scope, schema) if self._cache is not None else None
        if validator is None:
            validator = SchemaValidator(schema, work_max=WORK_MAX)
            if self._cache is not None:
                self._cache.put(self._scope, schema, validator)
        return validator


def _invalid(what: str, error: ValueError, code: str, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"The {what} cannot be used: {_short(str(error))}.", code=code, param=param
    )


def _short(fault: str | None) -> str | None:
    if fault is None:
        return None
    line = " ".join(fault.split())
    return line if len(line) <= _FAULT_CHARS_MAX else line[: _FAULT_CHARS_MAX - 1] + "…"
