"""A conversation that the client carries, its reasoning sealed, is the one that the store keeps.

What is not sealed comes back as text, so this holds for messages and calls that the model spells as
openai-harmony does.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.conversation.assembly import assemble
from gateway.conversation.unsealing import unseal
from gateway.generation import PREAMBLE
from gateway.harmony.framing import OPENING
from gateway.harmony.rendering import Renderer
from gateway.harmony.vocabulary import CHANNEL, END, MESSAGE
from gateway.sealing import Binding, Sealer, SealingSecret, Unsealed
from tests.fakes.contexts import from_wire, options
from tests.fakes.create_bodies import parse
from tests.fakes.harmony_oracle import vocabulary

if TYPE_CHECKING:
    from gateway.protocol.context import ContextItem

TENANT, MODEL = UUID(int=1), "gpt-oss-20b"
SEALER = Sealer([SealingSecret("k", b"sixteen bytes or more")])
BINDING = Binding(TENANT, MODEL, "k")
RENDERER = Renderer(vocabulary())
SHELL_OUTPUT = {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}

Wire = dict[str, Any]


def function(call_id: str) -> tuple[Wire, Wire]:
    call = {"type": "function_call", "name": "f", "namespace": "n", "arguments": "{}"}
    return call, {"type": "function_call_output", "output": f"of {call_id}"}


def custom(call_id: str) -> tuple[Wire, Wire]:
    call = {"type": "custom_tool_call", "name": "patch", "input": '*** "é"\n'}
    return call, {"type": "custom_tool_call_output", "output": f"of {call_id}"}


def local_shell(call_id: str) -> tuple[Wire, Wire]:
    call = {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"]}}
    return call, {"type": "local_shell_call_output", "output": f"of {call_id}"}


def shell(_call_id: str) -> tuple[Wire, Wire]:
    call = {"type": "shell_call", "action": {"commands": ["ls"], "timeout_ms": 5}}
    return call, {"type": "shell_call_output", "output": [SHELL_OUTPUT]}


def patch(_call_id: str) -> tuple[Wire, Wire]:
    operation = {"type": "create_file", "path": "a", "diff": "+a"}
    call = {"type": "apply_patch_call", "operation": operation}
    return call, {"type": "apply_patch_call_output", "status": "failed"}


@dataclass
class Conversation:
    """The same turns twice: as the store has them, and as the client does."""

    stored: tuple[ContextItem, ...] = ()
    carried: list[Wire] = field(default_factory=list)
    number: int = 0

    def ask(self, *new: Wire) -> None:
        """A request in both ways; the prompts are the same."""
        self.carried += new
        context = self._assembled(self.stored, list(new))
        prompt = RENDERER.render(context.items, options())
        alone = self._assembled((), self.carried)
        assert RENDERER.render(alone.items, options()).ids == prompt.ids
        spans = {span.source: span for span in prompt.spans if span.source != PREAMBLE}
        self.stored = tuple(
            item.with_ids(array("I", prompt.ids[spans[index].start : spans[index].end]))
            if index in spans
            else item
            for index, item in enumerate(context.items)
        )

    def _assembled(self, history: tuple[ContextItem, ...], new: list[Wire]) -> Any:
        items = parse(input=new).input
        unsealed = unseal(items, SEALER, tenant=TENANT, model=MODEL)
        return assemble(
            history, items, stored={}, unsealed=unsealed, response=UUID(int=self.number)
        )

    def think(self, text: str, ids: tuple[int, ...] | None, *, with_content: bool) -> None:
        """Reasoning of the model: `ids` are what it said, None where a rule had a part in it."""
        self.number += 1
        content = [{"type": "reasoning_text", "text": text}]
        item: Wire = {"type": "reasoning", "id": f"rs_{self.number}", "summary": []}
        stored = from_wire({**item, "content": content})
        exact = RENDERER.render_item(stored) if ids is None else ids
        self.stored = (*self.stored, stored.with_ids(array("I", exact)))
        said = Unsealed(ids=ids) if ids is not None else Unsealed(text=text)
        item["encrypted_content"] = SEALER.seal(BINDING, said.content)
        self.carried.append({**item, "content": content} if with_content else item)

    def say(self, item: Wire) -> None:
        """A message or a call of the model."""
        self.number += 1
        item = {"id": f"item_{self.number}", **item}
        stored = from_wire(item)
        self.stored = (*self.stored, stored.with_ids(array("I", RENDERER.render_item(stored))))
        self.carried.append(item)


@st.composite
def thoughts(draw: st.DrawFn) -> tuple[str, tuple[int, ...] | None]:
    """Reasoning, and perhaps ids that spell it in an unusual way."""
    text = draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12))
    if draw(st.booleans()):
        return text, None
    body = [token for character in text for token in vocabulary().encode(character)]
    header = [CHANNEL, *vocabulary().encode("analysis"), MESSAGE]
    return text, (*OPENING, *header, *body, END)


calls = st.sampled_from([function, custom, local_shell, shell, patch])
rounds = st.lists(st.tuples(thoughts(), calls), max_size=3)
turns = st.lists(st.tuples(rounds, thoughts(), st.booleans()), min_size=1, max_size=3)


@settings(deadline=None, max_examples=40)
@given(turns, st.booleans())
def test_a_carried_conversation_has_the_prompts_of_a_stored_one_id_for_id(
    conversation_turns: list[Any], with_content: bool
) -> None:
    both = Conversation()
    for tool_rounds, last_thought, is_answered in conversation_turns:
        both.ask({"role": "user", "content": "go on"})
        for (text, ids), make in tool_rounds:
            both.think(text, ids, with_content=with_content)
            call_id = f"call_{both.number}"
            called, answered = make(call_id)
            both.say({**called, "call_id": call_id})
            both.ask({**answered, "call_id": call_id})
        both.think(*last_thought, with_content=with_content)
        if is_answered:
            part = {"type": "output_text", "text": "so be it", "annotations": []}
            both.say({"type": "message", "role": "assistant", "content": [part]})
    both.ask({"role": "user", "content": "and then?"})
