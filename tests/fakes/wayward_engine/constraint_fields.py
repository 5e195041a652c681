"""The fields of a request that constrain the shape of the output, by engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import orjson
from llguidance import LLMatcher

from gateway.simulator.completion_wire import SimulatedError, bad_request
from tests.fakes.wayward_engine.engine_errors import StreamedError
from tests.fakes.wayward_engine.lark_grammars import BadGrammar, BadTag, lark_of_ebnf, lark_of_tag

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gateway.simulator.completion_wire import SimulatorOptions
    from tests.fakes.wayward_engine.strict_requests import Fields

KINDS: Final = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""The members of `structured_outputs`, of which one may be given."""

_STRUCTURED_SINCE: Final = (0, 11)
"""The vLLM that knows `structured_outputs`; an older one ignores it."""
_FIRST_ID_SINCE: Final = (0, 27)
"""The vLLM that holds gpt-oss to a grammar from the first id on, not only in the answer's body."""
_SGLANG_TAGS_SINCE: Final = (0, 5, 12)
"""The SGLang that knows tags made of token ids."""

_KEPT_MAX: Final = 128
_KEPT_BYTES_MAX: Final = 65_536
"""So many grammars are kept compiled, of those that are no longer than this as JSON."""


@dataclass(frozen=True, slots=True)
class OutputConstraint:
    """Constraint of all ids by `grammar`, or with `answer_only` of the answer's body."""

    kind: str
    value: Any = field(hash=False)
    grammar: str
    answer_only: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the entry of the ledger, with a structural tag as a document."""
        value = self.value
        return {"kind": self.kind, "value": orjson.loads(value) if _is_document(self) else value}


def _is_document(constraint: OutputConstraint) -> bool:
    return constraint.kind == "structural_tag" and isinstance(constraint.value, str)


def constraint_of(fields: Fields, options: SimulatorOptions) -> OutputConstraint | None:
    """Return the constraint of a request.

    vLLM's front end cannot read EBNF, so the engine refuses it when a stream has begun.
    """
    try:
        return read_constraint(
            fields.mapping("structured_outputs"), fields.mapping("response_format"), options
        )
    except BadGrammar as error:
        if fields.flag("stream", default=False):
            message = "Invalid grammar specification."
            raise StreamedError(400, message) from error
        raise SimulatedError(500, "Internal server error") from error


def read_constraint(
    structured: Mapping[str, Any], response_format: Mapping[str, Any], options: SimulatorOptions
) -> OutputConstraint | None:
    """Return the constraint of the output; None if there is none or this engine supports none.

    Raises `SimulatedError` (400) in the words of vLLM 0.32, but `BadGrammar` for an invalid EBNF
    grammar, which vLLM detects later than all other errors.
    """
    if options.engine == "sglang":
        return _of_format(response_format) if options.release >= _SGLANG_TAGS_SINCE else None
    if options.release < _STRUCTURED_SINCE:
        return None
    constraint = _of_structured(structured) or _of_format(response_format)
    if constraint is None or options.release >= _FIRST_ID_SINCE:
        return constraint
    return OutputConstraint(constraint.kind, constraint.value, constraint.grammar, answer_only=True)


def _of_structured(structured: Mapping[str, Any]) -> OutputConstraint | None:
    given = [kind for kind in KINDS if structured.get(kind) not in (None, False)]
    if not given:
        return None
    if len(given) > 1:
        raise bad_request(
            "You can only use one kind of constraints for structured outputs ('json', 'regex' or "
            "'choice'). (parameter=structured_outputs)",
            "structured_outputs",
        )
    return _constraint(given[0], structured[given[0]])


def _of_format(response_format: Mapping[str, Any]) -> OutputConstraint | None:
    match response_format.get("type"):
        case "structural_tag":
            return _constraint("structural_tag", dict(response_format))
        case "json_object":
            return _constraint("json_object", value=True)
        case "json_schema":
            wrapped = response_format.get("json_schema")
            schema = wrapped.get("schema") if isinstance(wrapped, dict) else None
            return _constraint("json", schema)
        case _:
            return None


def _constraint(kind: str, value: Any) -> OutputConstraint:
    try:
        return OutputConstraint(kind, value, _grammar(kind, value))
    except (BadTag, BadGrammar) as error:
        if kind == "grammar" and isinstance(error, BadGrammar):
            raise
        message = f"Invalid structured_outputs {kind} specification."
        raise bad_request(
            f"{message} (parameter=structured_outputs)", "structured_outputs"
        ) from error


def _grammar(kind: str, value: Any) -> str:
    # Cached for the next requests with the same constraint.
    spelled = orjson.dumps(value)
    if len(spelled) > _KEPT_BYTES_MAX:
        return _GRAMMARS[kind](value)
    return _kept_grammar(kind, spelled)


@lru_cache(_KEPT_MAX)
def _kept_grammar(kind: str, spelled: bytes) -> str:
    return _GRAMMARS[kind](orjson.loads(spelled))


def _tag(value: Any) -> str:
    try:
        return lark_of_tag(orjson.loads(value) if isinstance(value, str) else value)
    except orjson.JSONDecodeError as error:
        raise BadTag("not JSON") from error


def _schema(value: Any) -> str:
    try:
        return LLMatcher.grammar_from_json_schema(value, overrides={"lenient": True})
    except (TypeError, ValueError) as error:
        raise BadTag("not a schema") from error


def _choice(value: Any) -> str:
    if not isinstance(value, list):
        raise BadTag("choices are a list")
    elements = [{"type": "const_string", "value": one} for one in value]
    return lark_of_tag({"type": "structural_tag", "format": {"type": "or", "elements": elements}})


def _ebnf(value: Any) -> str:
    return lark_of_ebnf(_text(value))


def _regex(value: Any) -> str:
    return LLMatcher.grammar_from_regex(_text(value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise BadTag("text is missing")
    return value


_GRAMMARS: Final[Mapping[str, Callable[[Any], str]]] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _ebnf,
    "json_object": lambda _: _schema({"type": "object"}),
    "structural_tag": _tag,
}
