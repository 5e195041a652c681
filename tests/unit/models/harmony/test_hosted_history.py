"""Items of hosted tools in a history, as the model is shown them."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gateway.context.assembly import assemble
from gateway.generation import PREAMBLE
from gateway.models.harmony.rendering import Renderer
from gateway.protocol.call_items import IMAGE_NOTE, NO_RESULT, NOT_APPROVED, UNKNOWN_RESULT
from gateway.protocol.items import AnyInputItem, InputItem
from tests.fakes.cases import each
from tests.fakes.contexts import (
    answer,
    answering,
    asking,
    call,
    computed,
    from_wire,
    options,
    output,
    searched,
    served,
    thought,
    user,
)
from tests.fakes.harmony_oracle import library_prompt, spelled, vocabulary, well_formed
from tests.fakes.harmony_reference import prompt_messages

if TYPE_CHECKING:
    from gateway.protocol.context_item import ContextItem

Json = dict[str, Any]

_INPUT: TypeAdapter[InputItem] = TypeAdapter(AnyInputItem)
RENDERER = Renderer(vocabulary())
CALL = (
    "<|start|>assistant to=functions.crm.add<|channel|>commentary <|constrain|>json<|message|>"
    '{"a": 1}<|call|>'
)
RESULT = "<|start|>functions.crm.add to=assistant<|channel|>commentary<|message|>"
UNKNOWN = f"{RESULT}{UNKNOWN_RESULT}<|end|>"
REFUSED = f"{RESULT}{NOT_APPROVED}<|end|>"
HI = "<|start|>user<|message|>hi<|end|>"
HELLO = "<|start|>assistant<|channel|>final<|message|>hello<|end|>"


def told(*items: ContextItem, approved: str | None = None) -> str:
    chosen = replace(options(), approved=approved)
    prompt = RENDERER.render(items, chosen)
    behind = prompt.ids[prompt.spans[0].end :]
    assert list(prompt.ids) == library_prompt(prompt_messages(items, chosen))
    return spelled(behind).removesuffix("<|start|>assistant")


@each(
    ("items", "text"),
    [
        ([user(), served(), answer()], HI + CALL + f"{RESULT}ok<|end|>" + HELLO),
        ([user(), asking()], HI + CALL + REFUSED),
        ([user(), asking(), user()], HI + CALL + REFUSED + HI),
        ([asking(), user(), answering(approve=False)], CALL + REFUSED + HI),
        (
            [asking(), answering(approve=False, reason="no"), user()],
            f"{CALL}{RESULT}{NOT_APPROVED} What they say: no<|end|>{HI}",
        ),
        ([user(), asking(), answering(approve=True)], HI + CALL + UNKNOWN),
        ([asking(), answering(approve=True), user()], CALL + UNKNOWN + HI),
        (
            [asking(), answering(approve=False), user(), answering(approve=True)],
            CALL + REFUSED + HI,
        ),
        (
            [asking(), answering(approve=True), user(), served("1", "mcpr_1"), answer()],
            f"{HI}{CALL}{RESULT}1<|end|>{HELLO}",
        ),
        ([user(), answering(approve=True)], HI),
        ([user(), served("1", "mcpr_1")], f"{HI}{CALL}{RESULT}1<|end|>"),
        (
            [asking(), served("1", "mcpr_1"), served("2", "mcpr_1")],
            f"{CALL}{RESULT}1<|end|>{CALL}{RESULT}2<|end|>",
        ),
    ],
)
def test_a_call_that_has_to_be_approved_stands_before_its_result(
    items: list[ContextItem], text: str
) -> None:
    assert told(*items) == text


def test_the_result_of_a_call_whose_request_is_gone_stands_behind_the_call() -> None:
    made = replace(served("1", "mcpr_1"), ids=array("I", vocabulary().encode("the result alone")))
    assert told(user(), made) == f"{HI}{CALL}{RESULT}1<|end|>"


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([user(), asking(), answering(approve=True)], HI + CALL),
        ([asking(), answering(approve=True), user()], HI + CALL),
        ([asking("a"), asking(), answering(approve=True), user()], CALL + REFUSED + HI + CALL),
        ([asking(), user(), served("1", "mcpr_1")], f"{HI}{CALL}{RESULT}1<|end|>"),
        ([user()], HI),
    ],
)
def test_the_call_that_is_made_now_stands_at_the_end(items: list[ContextItem], text: str) -> None:
    assert told(*items, approved="mcpr_1") == text


def test_an_answer_to_what_nobody_asked_is_told_as_it_is() -> None:
    text = told(user(), answering(approve=False, reason="no"))
    assert text.endswith(
        'to=assistant<|channel|>commentary<|message|>{"approve":false,"reason":"no"}<|end|>'
    )


def test_what_cannot_be_the_name_of_a_tool_is_told_in_words() -> None:
    odd = from_wire(
        {
            "type": "mcp_approval_request",
            "id": "mcpr_1",
            "server_label": "to=system",
            "name": "x",
            "arguments": "{}",
        }
    )
    text = told(odd, answering(approve=True))
    assert text == (
        "<|start|>assistant to=functions.mcp<|channel|>commentary <|constrain|>json<|message|>"
        '{"server_label":"to=system","name":"x","arguments":"{}"}<|call|>'
        "<|start|>functions.mcp to=assistant<|channel|>commentary<|message|>"
        f"{UNKNOWN_RESULT}<|end|>"
    )


PROGRAM = {"type": "program", "id": "prog_1", "call_id": "p1", "code": "await tools.f()"}
RAN = {"type": "program_output", "id": "po_1", "call_id": "p1", "result": "42"}
PROGRAM_CALL = (
    "<|start|>assistant to=functions.program<|channel|>commentary <|constrain|>json<|message|>"
    '{"code":"await tools.f()"}<|call|>'
)


def of_program(text: str) -> str:
    return f"<|start|>functions.program to=assistant<|channel|>commentary<|message|>{text}<|end|>"


def taken(*raw: Json) -> list[ContextItem]:
    new = [_INPUT.validate_python(item) for item in raw]
    context = assemble((), new, stored={}, unsealed={}, response=UUID(int=7))
    return list(context.items)


def test_a_program_is_shown_as_a_call_and_what_it_returned_behind_it() -> None:
    question = {"role": "user", "content": "q"}
    asked = "<|start|>user<|message|>q<|end|>"
    returned = of_program('{"result":"42"}')
    assert told(*taken(PROGRAM, question, RAN)) == PROGRAM_CALL + returned + asked
    assert told(*taken(PROGRAM, question)) == PROGRAM_CALL + UNKNOWN_PROGRAM + asked
    assert told(*taken(RAN, PROGRAM)) == returned + PROGRAM_CALL + UNKNOWN_PROGRAM


UNKNOWN_PROGRAM = of_program(f'{{"result":"{NO_RESULT}"}}')


def test_a_call_that_ran_elsewhere_is_shown_with_what_it_returned() -> None:
    found = {"type": "file_search_call", "queries": ["q"], "results": [{"text": "t"}]}
    assert told(*taken(found)) == (
        "<|start|>assistant to=functions.file_search<|channel|>commentary <|constrain|>json"
        '<|message|>{"queries":["q"]}<|call|>'
        "<|start|>functions.file_search to=assistant<|channel|>commentary<|message|>"
        '{"results":[{"text":"t"}]}<|end|>'
    )
    seen = taken(
        {"type": "computer_call", "call_id": "c", "action": {"type": "wait"}},
        {"type": "computer_call_output", "call_id": "c", "output": {"image_url": "https://x"}},
    )
    assert told(*seen) == (
        "<|start|>assistant to=functions.computer<|channel|>commentary <|constrain|>json"
        '<|message|>{"action":{"type":"wait"}}<|call|>'
        "<|start|>functions.computer to=assistant<|channel|>commentary<|message|>"
        f'{{"output":"{IMAGE_NOTE}"}}<|end|>'
    )


def test_what_the_model_did_while_it_thought_goes_with_its_thoughts() -> None:
    items = [user(), thought(), searched(), computed(), served(), answer(), user()]
    kept = RENDERER.render(items, options())
    assert [span.source for span in kept.spans] == [PREAMBLE, 0, 4, 5, 6]
    unfinished = [user(), thought(), searched(), computed(), call(), output()]
    kept = RENDERER.render(unfinished, options())
    assert [span.source for span in kept.spans] == [PREAMBLE, 0, 1, 2, 3, 4, 5]
    commented = [searched(), answer(phase="commentary")]
    assert [span.source for span in RENDERER.render(commented, options()).spans] == [PREAMBLE, 0, 1]


@pytest.mark.parametrize("ids", [None, [7, 8, 9]])
def test_ids_of_a_search_are_repeated_only_in_its_own_turn(ids: list[int] | None) -> None:
    own = replace(searched(), ids=None if ids is None else array("I", ids))
    found = RENDERER.render([user(), own], options()).ids.tolist()
    gone = RENDERER.render([user(), own, answer()], options()).ids.tolist()
    assert gone == RENDERER.render([user(), answer()], options()).ids.tolist()
    if ids is not None:
        assert found[-5:-2] == ids


def test_an_approval_keeps_its_place_though_only_ids_are_known() -> None:
    """As the store has them: the JSON of what was rendered is not read again."""

    def stored(item: ContextItem, *ids: int) -> ContextItem:
        return replace(item, json=b"", parsed=None, ids=array("I", ids))

    request, made = stored(asking(), 1, 2), stored(served("1", "mcpr_1"), 3)
    refused = stored(answering(approve=False), 4)
    yes = answering(approve=True)

    def ids(*items: ContextItem, approved: str | None = None) -> list[int]:
        prompt = RENDERER.render(items, replace(options(), approved=approved))
        return prompt.ids[prompt.spans[0].end : -2].tolist()

    question = ids(user())
    assert ids(request, yes, user(), made) == [*question, 1, 2, 3]
    assert ids(request, yes, user(), approved="mcpr_1") == [*question, 1, 2]
    assert ids(request, user(), refused) == [1, 2, 4, *question]


def test_what_was_answered_by_nobody_is_no_item() -> None:
    prompt = RENDERER.render([asking(), user()], options())
    assert [span.source for span in prompt.spans] == [PREAMBLE, 0, PREAMBLE, 1]


def test_a_compaction_hides_what_was_asked_before_it_unless_it_is_made_now() -> None:
    summary = replace(
        from_wire({"type": "compaction", "id": "cmp_1", "encrypted_content": "x"}),
        parsed=user("summary").parsed,
    )
    told_of = [
        [
            span.source
            for span in RENDERER.render(items, replace(options(), approved=approved)).spans
        ]
        for items, approved in (
            ([asking(), answering(approve=False), summary], None),
            ([asking(), summary, answering(approve=True)], "mcpr_1"),
            ([asking(), answering(approve=True), summary, served("1", "mcpr_1")], None),
        )
    ]
    assert told_of == [[PREAMBLE, 2], [PREAMBLE, 1, 0], [PREAMBLE, 2, 0, 3]]


REQUESTS = ["mcpr_1", "mcpr_2"]
any_items = st.lists(
    st.one_of(
        st.sampled_from([user(), answer(), thought(), searched(), served()]),
        st.builds(served, st.just("x"), st.sampled_from(REQUESTS)),
        st.builds(
            lambda request, approve: answering(request, approve=approve),
            st.sampled_from(REQUESTS),
            st.booleans(),
        ),
    ),
    max_size=8,
)


@pytest.mark.slow
@given(
    any_items,
    any_items,
    st.lists(st.sampled_from(REQUESTS), unique=True),
    st.sampled_from([None, *REQUESTS]),
)
def test_every_call_is_answered_but_the_one_that_is_made_now(
    before: list[ContextItem], behind: list[ContextItem], requests: list[str], approved: str | None
) -> None:
    items = [*before, *map(asking, requests), *behind]
    chosen = replace(options(), approved=approved)
    ids = RENDERER.render(items, chosen).ids.tolist()
    assert ids == library_prompt(prompt_messages(items, chosen))
    assert well_formed(ids) >= 1
    made = {item.call_id for item in items if item.kind == "mcp_call"}
    is_pending = approved in requests and approved not in made
    parts = spelled(ids).split(CALL)
    assert all(part.startswith(RESULT) for part in parts[1 : len(parts) - is_pending])
    if is_pending:
        assert parts[-1] == "<|start|>assistant"
