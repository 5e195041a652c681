"""A conversation that the client carries, its reasoning sealed, is the one that the store keeps.

The model says it in ids. What is not sealed comes back as text, so this holds for text in its usual
ids; and for calls of tools that are no functions, whose arguments come back as fields, where these
were written as compact JSON (the last test shows what happens where they were not).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.constraints.output_rules import OutputRules, ToolRule
from gateway.context.assembly import assemble, unseal
from gateway.engine.row_mapping import output_context
from gateway.entries import Finished, Tokens, TurnEnded, TurnStarted
from gateway.eventlog.fold.fold import Fold
from gateway.generation import PREAMBLE, FinishReason, Framing, SegmentKind
from gateway.models.harmony.message_headers import NO_MARKER, header_forms
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.rendering import Renderer
from gateway.models.harmony.tokenizer import CALL, CHANNEL, END, MESSAGE, OPENING, RETURN
from gateway.sealing import Binding, Sealer, SealingSecret
from tests.fakes.cases import each
from tests.fakes.contexts import options
from tests.fakes.create_bodies import parse
from tests.fakes.examples import examples
from tests.fakes.fold_formats import parsed_by
from tests.fakes.harmony_oracle import spelled, vocabulary
from tests.fakes.response_heads import response_head

if TYPE_CHECKING:
    from gateway.entries import Entry
    from gateway.protocol.context_item import ContextItem

TENANT, MODEL = UUID(int=1), "gpt-oss-20b"
SEALER = Sealer([SealingSecret("k", b"sixteen bytes or more")])
BINDING = Binding(TENANT, MODEL, "k")
RENDERER = Renderer(vocabulary())
FRAMING = Framing(OPENING, RETURN, END)
_RULES: Final = (
    ToolRule("f", SegmentKind.FUNCTION_CALL, "f"),
    ToolRule("n.f-2", SegmentKind.FUNCTION_CALL, "f-2", "n"),
    ToolRule("patch", SegmentKind.CUSTOM_CALL, "patch"),
    ToolRule("n.say", SegmentKind.CUSTOM_CALL, "say", "n"),
    ToolRule("local_shell", SegmentKind.LOCAL_SHELL_CALL, "local_shell"),
    ToolRule("shell", SegmentKind.SHELL_CALL, "shell"),
    ToolRule("apply_patch", SegmentKind.APPLY_PATCH_CALL, "apply_patch"),
)
TOOLS: Final = {rule.name: rule for rule in _RULES}
STOP: Final = "\x00stop"
SHELL_OUTPUT = {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
ANSWERS: Final[dict[str, dict[str, Any]]] = {
    "function_call": {"output": "of f"},
    "custom_tool_call": {"output": "of patch"},
    "local_shell_call": {"output": "of local_shell"},
    "shell_call": {"output": [SHELL_OUTPUT]},
    "apply_patch_call": {"status": "failed"},
}

Wire = dict[str, Any]
Ids = list[int]


def header(form: int, channel: str, recipient: str | None = None) -> Ids:
    """What stands between `<|start|>assistant` and the body."""
    ids = []
    for part in tuple(header_forms(channel, recipient))[form]:
        ids += [] if part.marker == NO_MARKER else [part.marker]
        ids += vocabulary().encode(part.text)
    return [*ids, MESSAGE]


def called(name: str, arguments: str, form: int) -> Ids:
    opened = header(form, "commentary", f"functions.{name}")
    return [*opened, *vocabulary().encode(arguments), CALL]


def spoken(text: str, form: int, *, channel: str = "final") -> Ids:
    end = RETURN if channel == "final" else END
    return [*header(form, channel), *vocabulary().encode(text), end]


@dataclass
class Conversation:
    """The same turns twice: as the store has them, and as the client does."""

    stored: tuple[ContextItem, ...] = ()
    carried: list[Wire] = field(default_factory=list)
    waiting: list[Wire] = field(default_factory=list)
    """Outputs of the calls of the last turn."""
    number: int = 0

    def ask(self, *new: Wire) -> tuple[Ids, Ids]:
        """The prompts of a request in both ways: continued, and carried."""
        new, self.waiting = (*self.waiting, *new), []
        self.carried += new
        context = self._assembled(self.stored, list(new))
        prompt = RENDERER.render(context.items, options())
        alone = self._assembled((), self.carried)
        spans = {span.source: span for span in prompt.spans if span.source != PREAMBLE}
        self.stored = tuple(
            item.with_ids(array("I", prompt.ids[spans[index].start : spans[index].end]))
            if index in spans
            else item
            for index, item in enumerate(context.items)
        )
        return list(prompt.ids), list(RENDERER.render(alone.items, options()).ids)

    def hear(self, messages: list[Ids], *, size: int = 3, with_content: bool = False) -> None:
        """The model says these messages, each without `<|start|>assistant`, in one turn."""
        self.number += 1
        first, *more = messages
        ids = (*first, *chain.from_iterable((*OPENING, *message) for message in more))
        fold = _fold(UUID(int=self.number << 64), ids, size)
        for rendered in fold.items():
            item = output_context(rendered)
            if item.ids is None:
                item = item.with_ids(array("I", RENDERER.render_item(item)))
            self.stored = (*self.stored, item)
        output = orjson.loads(orjson.dumps(fold.response()["output"]))
        for item in output:
            if item["type"] == "reasoning" and not with_content:
                item["content"] = []
            if (kind := item["type"]) in ANSWERS:
                about = {"type": f"{kind}_output", "call_id": item["call_id"]}
                self.waiting.append({**about, **ANSWERS[kind]})
        self.carried += output

    def _assembled(self, history: tuple[ContextItem, ...], new: list[Wire]) -> Any:
        items = parse(input=new).input
        unsealed = unseal(items, SEALER, tenant=TENANT, models=(MODEL,))
        return assemble(
            history, items, stored={}, unsealed=unsealed, response=UUID(int=self.number)
        )


def _fold(uuid: UUID, ids: tuple[int, ...], size: int) -> Fold:
    fold = Fold(
        replace(response_head(), uuid=uuid),
        parsed_by(lambda trace: Parser(vocabulary(), frozenset(TOOLS), trace=trace), FRAMING),
        OutputRules(TOOLS, frozenset(TOOLS), stop=(STOP,)),
        lambda content: SEALER.seal(BINDING, content),
    )
    chunks = [Tokens(ids[at : at + size]) for at in range(0, len(ids), size)]
    log: list[Entry] = [TurnStarted(9), *chunks, TurnEnded(FinishReason.STOP)]
    for entry in (*log, Finished("completed", 9)):
        fold.apply(entry)
    return fold


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@st.composite
def thoughts(draw: st.DrawFn) -> Ids:
    """Reasoning, perhaps spelled in an unusual way, or under a header that needs a rule."""
    text = draw(words)
    opened = draw(st.sampled_from(["analysis", "analysis to=assistant", "analysis code"]))
    pieces = list(text) if draw(st.booleans()) else [text]
    body = [token for piece in pieces for token in vocabulary().encode(piece)]
    return [CHANNEL, *vocabulary().encode(opened), MESSAGE, *body, END]


def compact(value: object) -> str:
    return orjson.dumps(value).decode()


functions = st.tuples(
    st.sampled_from(["f", "n.f-2", "unknown"]),
    st.sampled_from(["{}", '{"a": [1, 2.50]}', ' {"é":"\\u00e9"}\n', "{}{}", "not JSON", ""]),
)
customs = st.tuples(
    st.sampled_from(["patch", "n.say"]),
    words.map(lambda text: compact({"input": text})) | st.sampled_from(["*** raw", '{"input":""}']),
)
local_shells = words.map(lambda word: ("local_shell", compact({"command": ["ls", word]})))
shells = words.map(lambda word: ("shell", compact({"commands": [word], "timeout_ms": 5})))
patches = words.map(
    lambda path: ("apply_patch", compact({"operation": {"type": "delete_file", "path": path}}))
)
calls = st.tuples(functions | customs | local_shells | shells | patches, st.integers(0, 7)).map(
    lambda drawn: called(*drawn[0], drawn[1])
)
preambles = st.builds(spoken, words, st.integers(0, 3), channel=st.just("commentary"))
answers = st.builds(spoken, words, st.integers(0, 3))
beginnings = st.lists(thoughts() | preambles, max_size=2)
turns = st.builds(lambda begin, end: [*begin, end], beginnings, calls | answers)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(60))
@given(st.lists(turns, min_size=1, max_size=5), st.booleans(), st.integers(1, 40))
def test_a_carried_conversation_has_the_prompts_of_a_stored_one_id_for_id(
    conversation_turns: list[list[Ids]], with_content: bool, size: int
) -> None:
    both = Conversation()
    for messages in conversation_turns:
        new = () if both.waiting else ({"role": "user", "content": "go on"},)
        continued, carried = both.ask(*new)
        assert carried == continued
        both.hear(messages, size=size, with_content=with_content)
    continued, carried = both.ask({"role": "user", "content": "and then?"})
    assert carried == continued


@each("form", range(8))
@each("name", sorted(TOOLS))
def test_a_call_comes_back_in_the_form_in_which_the_model_made_it(name: str, form: int) -> None:
    arguments = {
        SegmentKind.FUNCTION_CALL: '{ "a": 1 }',
        SegmentKind.CUSTOM_CALL: '{"input":"*** \\"é\\"\\n"}',
        SegmentKind.LOCAL_SHELL_CALL: '{"command":["ls"]}',
        SegmentKind.SHELL_CALL: '{"commands":["ls"]}',
        SegmentKind.APPLY_PATCH_CALL: '{"operation":{"type":"create_file","path":"a","diff":"+a"}}',
    }[TOOLS[name].kind]
    said = called(name, arguments, form)
    both = Conversation()
    both.ask({"role": "user", "content": "go"})
    both.hear([said])
    continued, carried = both.ask()
    assert carried == continued
    assert spelled([*OPENING, *said]) in spelled(carried)


@pytest.mark.parametrize("form", range(4))
def test_an_answer_ends_before_its_stop_string_in_both(form: int) -> None:
    both = Conversation()
    both.ask({"role": "user", "content": "go"})
    both.hear([spoken(f"shown{STOP} not shown", form)])
    continued, carried = both.ask({"role": "user", "content": "and then?"})
    assert carried == continued
    assert "not shown" not in spelled(continued)


@pytest.mark.parametrize(
    ("name", "arguments", "again"),
    [
        ("patch", '{"input": "a"}', '{"input":"a"}'),
        ("patch", '{"input":"\\u0061"}', '{"input":"a"}'),
        ("shell", '{"commands": ["ls"]}', '{"commands":["ls"]}'),
        ("local_shell", '{"timeout_ms":5,"command":["ls"]}', '{"command":["ls"],"timeout_ms":5}'),
    ],
)
def test_arguments_that_come_back_as_fields_are_written_as_compact_json(
    name: str, arguments: str, again: str
) -> None:
    both = Conversation()
    both.ask({"role": "user", "content": "go"})
    both.hear([called(name, arguments, 4)])
    continued, carried = both.ask()
    assert arguments in spelled(continued)
    assert spelled(carried) == spelled(continued).replace(arguments, again)
