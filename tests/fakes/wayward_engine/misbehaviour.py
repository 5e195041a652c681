"""What no server of a well-behaved model does, in directives of its own.

| key | value | effect |
|---|---|---|
| `drift` | `prose`, `types`, `truncated`, `extra`, `refusal` | JSON that is not as asked for |
| `attack` | see below | what no well-meant script says |
| `steps` | see `steps` | what the model does, one step a turn |
| `grammar_ids` | `none` or n | grammars bind not at all, or only the first n ids of a body |

`times` and `only` bound these as they bound faults, and a plan of an instance may have them.

Drifts: words instead of JSON, values of wrong types, JSON that breaks off, text behind it, or a
refusal instead of an answer or a call.

Attacks: `call:NAME` calls what the request may not even have; `twice` makes two calls in one turn;
`analysis_call` calls from the analysis channel; `markers` spells Harmony's markers in its text and
`marker_ids` says their ids in it; `header` says nonsense in its header, `long_header` hundreds of
ids of it; `endless` thinks and never ends; `loop:P` and `think_loop:P` repeat the same P ids (1 to
8) in the answer or the reasoning for ever; `silent` only thinks; `mute` thinks, and leaves answers
and calls empty.

Attacks on tools that a gateway hosts, at the step that is due: `hosted_bad_json`, `hosted_no_args`
(an empty body), `hosted_functions_prefix` and `hosted_commentary` in its header, `hosted_two_calls`
in one turn, `hosted_wrapped_code` (JSON around code), `hosted_huge_args`;
`hosted_not_offered:RECIPIENT` calls that first. Of answers that cite: `marker_split` says each
character of a marker in an event of its own, `marker_unknown` cites what nobody was shown,
`marker_open_at_end` is cut within a marker. `tool_result_forged` writes a tool's message itself.

Where a grammar is in force, the engine holds drift and attacks to it, as it would a model. So
one that drifts heeds no schema unless a grammar binds it, also in the middle of JSON.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override

from gateway.generation import FinishReason
from gateway.models.harmony.tokenizer import RETURN, STOP_IDS
from gateway.simulator.completion_wire import Ending, reply_to
from tests.fakes.wayward_engine.directives import Directives, FaultPlan, Faults, Syntax, values_of
from tests.fakes.wayward_engine.steps import read_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gateway.simulator.completion_wire import CompletionRequest
    from tests.fakes.wayward_engine.steps import Step

DRIFTS: Final = ("prose", "types", "truncated", "extra", "refusal")
_ATTACK: Final = re.compile(
    r"call:[^\s:]+|twice|analysis_call|markers|marker_ids|header|long_header|endless|silent|mute"
    r"|(?:think_)?loop:[1-8]|hosted_(?:bad_json|no_args|functions_prefix|commentary|two_calls"
    r"|wrapped_code|huge_args|not_offered:[^\s:]+)|marker_(?:split|unknown|open_at_end)"
    r"|tool_result_forged"
)


NOT_HELD: Final = -1
"""The `Malformed.grammar_ids` of an engine that ignores grammars."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """Misbehaviour of the model. Grammars are ignored from id `grammar_ids` of a body on."""

    drift: str | None = None
    attack: str | None = None
    grammar_ids: int | None = None

    def __bool__(self) -> bool:
        return self != _WELL_BEHAVED


_WELL_BEHAVED: Final = Malformed()


@dataclass(frozen=True, slots=True)
class WaywardContinuation:
    """Rest of a turn; `turn_start` is an index of the prompt. `finish` None: a stop id ends it.

    `others` is what could be said instead, for an engine that may not say `ids`; best first.
    """

    ids: list[int]
    turn_start: int
    finish: FinishReason | None = None
    directives: Directives = field(default_factory=Directives, kw_only=True)
    others: Callable[[], Iterable[list[int]]] = field(default=tuple, kw_only=True)

    def reply_to(self, request: CompletionRequest) -> tuple[list[int], Ending]:
        """Return what is said, and its ending. A `finish` goes over stop ids."""
        if self.finish is None:
            return reply_to(request, self.ids)
        if len(self.ids) > request.max_tokens:
            return self.ids[: request.max_tokens], Ending(FinishReason.LENGTH.value)
        last = self.ids[-1] if self.ids else RETURN
        named = {*STOP_IDS, *request.stop_ids} - {RETURN}
        is_named = self.finish is FinishReason.STOP and last in named
        return self.ids, Ending(self.finish.value, last if is_named else None)


@dataclass(frozen=True, slots=True)
class WaywardDirectives(Directives):
    """All directives of one text."""

    malformed: Malformed = Malformed()
    steps: tuple[Step, ...] | None = None


def _drift(text: str) -> str:
    if text not in DRIFTS:
        raise ValueError(text)
    return text


def _attack(text: str) -> str:
    if not _ATTACK.fullmatch(text):
        raise ValueError(text)
    return text


def _grammar_ids(text: str) -> int:
    return NOT_HELD if text == "none" else int(text)


class WaywardSyntax(Syntax):
    """The keys of directives, those of misbehaviour among them."""

    readers: ClassVar = {
        **Syntax.readers,
        "drift": _drift,
        "attack": _attack,
        "grammar_ids": _grammar_ids,
        "steps": read_steps,
    }
    long_keys = (*Syntax.long_keys, "steps")

    @override
    def directives(self, values: dict[str, Any]) -> WaywardDirectives:
        if values.get("attack") == "marker_split":
            values = {"ids_per_event": 1} | values
        usual = super().directives(values)
        malformed = Malformed(**values_of(Malformed, values))
        steps = values.get("steps")
        return WaywardDirectives(usual.wishes, usual.pace, usual.faults, malformed, steps)


SYNTAX: Final = WaywardSyntax()


def malformed_of(directives: Directives) -> Malformed:
    assert isinstance(directives, WaywardDirectives)
    return directives.malformed


def steps_of(directives: Directives) -> tuple[Step, ...] | None:
    assert isinstance(directives, WaywardDirectives)
    return directives.steps


class WaywardPlan(FaultPlan):
    """The faults and the misbehaviour of one instance."""

    @override
    def in_force(self, asked: Directives, turn_prompt: Sequence[int]) -> Directives:
        asked = (
            asked
            if isinstance(asked, WaywardDirectives)
            else WaywardDirectives(asked.wishes, asked.pace, asked.faults)
        )
        wrong = asked if asked.faults else self.standing
        odd = asked if asked.malformed else self.standing
        both = ((wrong, wrong.faults), (odd, malformed_of(odd)))
        terms = [one.faults for one, what in both if what]
        is_counted = any(one.times is not None and self._is_for_here(one) for one in terms)
        attempt = self._count(turn_prompt) if is_counted else 1
        return replace(
            asked,
            faults=wrong.faults if self._applies(wrong.faults, attempt) else Faults(),
            malformed=malformed_of(odd) if self._applies(odd.faults, attempt) else _WELL_BEHAVED,
        )
