"""Properties of a model's chat template, learned from a server that renders a few conversations.

The gateway does not run templates. It cuts the ids that a run needs between two turns out of
rendered conversations, so the turn after a hosted tool has exactly the ids before it that a new
prompt would have.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.constraints.output_rules import OutputRules, ToolRule
from gateway.generation import FinishReason, SegmentEnded, SegmentKind, SegmentStarted
from gateway.models.chat.call_syntax import Rule
from gateway.models.chat.chat_messages import ANY, Habits, call_id_of, question

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gateway.generation import TokenParser
    from gateway.models.chat.tokenizer import Vocabulary
    from gateway.models.format import Rendering


_TOOL: Final = "probe_weather"
_RESULT: Final = 'Oslo has "7" degrees'
_IN_JSON: Final = orjson.dumps(_RESULT)[1:-1]
_LATE: Final = "Answer in verse"
_CHANGES: Final = "what stands before a result changes with it"
_USER: Final = {"role": "user", "content": "Is it cold in Oslo?"}
_CALL: Final = {
    "id": call_id_of(_TOOL),
    "type": "function",
    "function": {"name": _TOOL, "arguments": '{"city": "Oslo"}'},
}
_OTHER: Final = "Bergen"
_OTHER_CALL: Final = {
    "id": call_id_of(_OTHER),
    "type": "function",
    "function": {"name": _TOOL, "arguments": f'{{"city": "{_OTHER}"}}'},
}
_CALLS: Final = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_SEVERAL_CALLS: Final = {"role": "assistant", "content": "", "tool_calls": [_CALL, _OTHER_CALL]}
_ANSWER: Final = {
    "role": "tool",
    "tool_call_id": call_id_of(_TOOL),
    "name": _TOOL,
    "content": _RESULT,
}
_OTHER_ANSWER: Final = {**_ANSWER, "tool_call_id": call_id_of(_OTHER)}
_FUNCTION: Final = {
    "name": _TOOL,
    "description": "Tells the weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
_TOOLS: Final = [{"type": "function", "function": _FUNCTION}]
RULES: Final = OutputRules(
    tools={_TOOL: ToolRule(_TOOL, SegmentKind.FUNCTION_CALL, _TOOL)}, allowed=frozenset({_TOOL})
)


@dataclass(frozen=True, slots=True)
class Probes:
    """Conversations that are rendered, as questions."""

    plain: bytes
    opened: bytes
    unthinking: bytes
    tools: bytes
    called: bytes
    answered: bytes
    reopened: bytes
    system: bytes
    late_system: bytes
    repeated_user: bytes
    user_behind_result: bytes
    several_calls: bytes

    @classmethod
    def with_kwargs(cls, thinking: dict[str, Any], unthinking: dict[str, Any]) -> Probes:
        def probe(*messages: dict[str, Any], tools: bool = False, opens: bool = False) -> bytes:
            return question(messages, _TOOLS if tools else (), thinking, opens_turn=opens)

        late = {"role": "system", "content": _LATE}
        answer = {"role": "assistant", "content": "It is."}
        return cls(
            plain=probe(_USER),
            opened=probe(_USER, opens=True),
            unthinking=opened_turn(unthinking),
            tools=probe(_USER, tools=True),
            called=probe(_USER, _CALLS, tools=True),
            answered=probe(_USER, _CALLS, _ANSWER, tools=True),
            reopened=probe(_USER, _CALLS, _ANSWER, tools=True, opens=True),
            system=probe(late, _USER, opens=True),
            late_system=probe(_USER, answer, late, _USER, opens=True),
            repeated_user=probe(_USER, _USER, opens=True),
            user_behind_result=probe(_USER, _CALLS, _ANSWER, _USER, tools=True, opens=True),
            several_calls=probe(
                _USER, _SEVERAL_CALLS, _ANSWER, _OTHER_ANSWER, tools=True, opens=True
            ),
        )

    @property
    def questions(self) -> tuple[bytes, ...]:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)


def opened_turn(template_kwargs: dict[str, Any]) -> bytes:
    return question((_USER,), (), template_kwargs)


@dataclass(frozen=True, slots=True)
class ResultFrame:
    """Ids around the result of a tool. `call_end` stands behind the last id of the call, `front`
    and `behind` around the text. `is_json`: the text is the inside of a JSON string.
    """

    call_end: tuple[int, ...]
    front: tuple[int, ...]
    behind: tuple[int, ...]
    is_json: bool = False


@dataclass(frozen=True, slots=True)
class Template:
    """Facts learned about a template. `opening` are the ids that open a turn; some have none.
    `result` is None where hosted tools cannot be used, for one of the `faults`.
    """

    habits: Habits = ANY
    opening: tuple[int, ...] = ()
    result: ResultFrame | None = None
    takes_tools: bool = False
    faults: tuple[str, ...] = ()

    @property
    def template_state(self) -> bytes:
        if self.result is None:
            return b""
        return orjson.dumps({"opening": self.opening, **asdict(self.result)})

    @classmethod
    def from_state(cls, template_state: bytes) -> Template:
        """Read a template from its state. Raises `ValueError` for an invalid one."""
        try:
            fields = orjson.loads(template_state)
            opening, call_end, front, behind = (
                tuple(map(int, fields[name])) for name in ("opening", "call_end", "front", "behind")
            )
        except (KeyError, TypeError) as error:
            raise ValueError("not what was learned of a template") from error
        frame = ResultFrame(call_end, front, behind, is_json=fields.get("is_json") is True)
        return cls(opening=opening, result=frame, takes_tools=True)


class TemplateReader:
    """Reader of the answers to all probes. `faults` say what does not fit."""

    def __init__(
        self,
        probes: Probes,
        answers: Mapping[bytes, Rendering],
        vocabulary: Vocabulary,
        new_parser: Callable[[], TokenParser],
        prefill_size: Callable[[Sequence[int]], int],
    ) -> None:
        """`new_parser` reads by `RULES`."""
        self.faults: list[str] = []
        self._probes = probes
        self._answers = answers
        self._vocabulary = vocabulary
        self._new_parser = new_parser
        self._prefill_size = prefill_size

    def template(self) -> Template:
        opening = self.opening()
        result = None if opening is None else self.result_frame(opening)
        return Template(
            habits=self.habits(),
            opening=opening or (),
            result=result,
            takes_tools=self.shows(self._probes.tools, _TOOL.encode()),
            faults=tuple(self.faults),
        )

    def habits(self) -> Habits:
        probes = self._probes
        return Habits(
            system=self.shows(probes.system, _LATE.encode()),
            late_system=self.shows(probes.late_system, _LATE.encode()),
            repeated_user=bool(self._ids(probes.repeated_user)),
            user_behind_result=bool(self._ids(probes.user_behind_result)),
            several_calls=self.shows(probes.several_calls, _OTHER.encode()),
        )

    def shows(self, probe: bytes, text: bytes) -> bool:
        return text in b"".join(map(self._vocabulary.piece, self._ids(probe)))

    def opening(self) -> tuple[int, ...] | None:
        """Return the ids that `add_generation_prompt` adds, without the turn's prefill.

        Empty where the end of the user's message opens the turn, as in Mistral's templates.
        """
        plain, opened = self._ids(self._probes.plain), self._ids(self._probes.opened)
        if not opened or opened[: len(plain)] != plain:
            self._refused(self._probes.opened, "a turn is not opened behind a conversation")
            return None
        return self._unbegun(opened)[len(plain) :]

    def result_frame(self, opening: tuple[int, ...]) -> ResultFrame | None:
        turns = self._calling_turns(opening)
        if turns is None:
            return None
        last_turn, turn = turns
        last_end = self._call_end(last_turn)
        end = None if last_end is None else self._call_end(turn)
        if last_end is None or end is None:
            return None
        call_end = last_turn[last_end:]
        front = end + len(call_end)
        if turn[end:front] != call_end:
            self.faults.append(_CHANGES)
            return None
        bounds = self._place_of_result(turn, front)
        if bounds is None:
            self.faults.append("the text of a result is not between ids of its own")
            return None
        first, last, is_json = bounds
        return ResultFrame(call_end, turn[front:first], turn[last:], is_json=is_json)

    def _calling_turns(
        self, opening: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        # The turns may begin differently: Qwen3's template writes an empty thought before a call
        # that nothing follows.
        probes = self._probes
        begun, called = (*self._ids(probes.tools), *opening), self._ids(probes.called)
        answered, reopened = self._ids(probes.answered), self._ids(probes.reopened)
        if not called or not answered:
            self._refused(probes.answered, "calls and results are refused")
        elif called[: len(begun)] != begun:
            if opening:  # else turns begin in other ways, as those of DeepSeek-V3's template do
                self.faults.append("a call in the history does not begin as a turn does")
        elif answered[: len(begun)] != begun or self._unbegun(reopened) != (*answered, *opening):
            self.faults.append(_CHANGES)
        else:
            return called[len(begun) :], answered[len(begun) :]
        return None

    def _call_end(self, turn: tuple[int, ...]) -> int | None:
        parser, name = self._new_parser(), None
        for event in (*parser.feed(turn), *parser.finish(FinishReason.STOP)):
            if isinstance(event, SegmentStarted):
                name = event.name
            elif isinstance(event, SegmentEnded) and name == _TOOL:
                if Rule.ODD_FRAME in parser.recoveries:
                    break
                return event.end
        text = b"".join(map(self._vocabulary.piece, turn)).decode("utf-8", "replace")
        self.faults.append(f"the model's calls are not read as the template writes them: {text!r}")
        return None

    def _place_of_result(self, ids: tuple[int, ...], start: int) -> tuple[int, int, bool] | None:
        offsets = [*accumulate((len(self._vocabulary.piece(token)) for token in ids), initial=0)]
        data = b"".join(map(self._vocabulary.piece, ids))
        for text, is_json in ((_RESULT.encode(), False), (_IN_JSON, True)):
            at = data.find(text, offsets[start])
            if at < 0:
                continue
            # Ids without text may stand on either side.
            first = bisect_right(offsets, at) - 1
            last = bisect_left(offsets, at + len(text))
            if offsets[first] == at and offsets[last] == at + len(text):
                return first, last, is_json
        return None

    def _unbegun(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        return prompt[: len(prompt) - self._prefill_size(prompt)]

    def _ids(self, probe: bytes) -> tuple[int, ...]:
        # Empty where the template refuses the conversation.
        answer = self._answers[probe]
        return () if isinstance(answer, str) else tuple(answer)

    def _refused(self, probe: bytes, why: str) -> None:
        answer = self._answers[probe]
        self.faults.append(f"{why}: {answer}" if isinstance(answer, str) else why)
