"""However the model writes its headers, a conversation has one prompt: stored, or carried along."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gateway.models.harmony.tokenizer import CALL, CONSTRAIN, OPENING
from tests.fakes.controlled import site
from tests.fakes.harmony_script import script_ids
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.fakes.controlled import Site
    from tests.fakes.postgres import PostgresServer

Json = dict[str, Any]

THOUGHT = "<|channel|>analysis<|message|>Well, then.<|end|><|start|>assistant"
CONTENT_TYPES = ["", " json", " <|constrain|>json", "<|constrain|>json"]
ARGUMENTS = {
    "now": '{ "zone": "Oslo" }',
    "agents.ask": '{"who": "all"}',
    "note": '{"input":"*** \\"\\u001b é\\"\\n"}',
    "shell": '{"commands":["ls"],"timeout_ms":5}',
    "apply_patch": '{"operation":{"type":"delete_file","path":"a"}}',
}
COMMAND: Json = {"stdout": "x", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
OUTPUTS: dict[str, Json] = {
    "function_call": {"output": "done"},
    "custom_tool_call": {"output": "done"},
    "shell_call": {"output": [COMMAND]},
    "apply_patch_call": {"status": "completed"},
}
FUNCTION: Json = {"type": "function", "parameters": {"type": "object", "properties": {}}}
TOOLS: list[Json] = [
    {**FUNCTION, "name": "now"},
    {"type": "namespace", "name": "agents", "tools": [{**FUNCTION, "name": "ask"}]},
    {"type": "custom", "name": "note"},
    {"type": "shell"},
    {"type": "apply_patch"},
]


def calls_of(name: str) -> dict[str, str]:
    """The call in every form there is, by the name of its script."""
    to = f" to=functions.{name}"
    fronts = [f"{to}<|channel|>commentary", f"<|channel|>commentary{to}"]
    headers = [front + content_type for front in fronts for content_type in CONTENT_TYPES]
    body = f"<|message|>{ARGUMENTS[name]}<|call|>"
    tag = name.replace(".", "_")
    return {f"{tag}{at}": THOUGHT + header + body for at, header in enumerate(headers)}


ANSWERS = {
    f"answer{at}": f'{THOUGHT}<|channel|>final{content_type}<|message|>{{"n": {at}}}<|return|>'
    for at, content_type in enumerate(CONTENT_TYPES)
}
REFUSAL = {"no": "<|channel|>final <|constrain|>json<|message|>I'm sorry, no.<|return|>"}
SCRIPTS = {**ANSWERS, **REFUSAL, **{k: v for name in ARGUMENTS for k, v in calls_of(name).items()}}


@pytest.fixture(scope="module")
async def where(
    postgres: PostgresServer, template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    """A backend that holds no grammars, and says what is in `SCRIPTS`."""
    path = tmp_path_factory.mktemp("forms") / "corpus.jsonl"
    lines = [
        json.dumps({"id": name, "ids": script_ids(script), "finish": "stop"})
        for name, script in SCRIPTS.items()
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    silent = WaywardOptions(version="0.10.2", corpus_path=path)
    async with site(postgres, template, silent) as running:
        yield running


def answered(response: Json) -> list[Json]:
    """What a client answers the calls of a response with."""
    return [
        {"type": f"{kind}_output", "call_id": item["call_id"], **OUTPUTS[kind]}
        for item in response["output"]
        if (kind := item["type"]) in OUTPUTS
    ]


def sealed(item: Json) -> Json:
    """As a client keeps it that has no use for the reasoning but to send it back."""
    return {**item, "summary": [], "content": []} if item["type"] == "reasoning" else item


def without_id(item: Json) -> Json:
    return {key: value for key, value in sealed(item).items() if key != "id"}


class Talk:
    """One conversation in two ways, each turn in both."""

    def __init__(self, where: Site, keep: Callable[[Json], Json], **body: Any) -> None:
        self._where = where
        self._keep = keep
        self._body = body
        self._stored: Json = {}
        self._loose: Json = {}
        self._history: list[Json] = []

    async def say(self, *items: Json) -> tuple[list[int], list[int]]:
        """The prompts of the next request, which brings these items or else the outputs."""
        self._history += [*(items or answered(self._loose))]
        self._loose = await self._where.post(
            input=self._history, store=False, include=["reasoning.encrypted_content"], **self._body
        )
        self._stored = await self._where.post(
            input=[*(items or answered(self._stored))],
            previous_response_id=self._stored.get("id"),
            **self._body,
        )
        self._history += map(self._keep, self._loose["output"])
        return await self._prompt(self._stored), await self._prompt(self._loose)

    async def ask(self, text: str) -> tuple[list[int], list[int]]:
        return await self.say({"role": "user", "content": text})

    async def _prompt(self, response: Json) -> list[int]:
        assert response["status"] == "completed"
        ids: list[int] = (await self._where.backends.of_response(response["id"]))[0]["prompt_ids"]
        return ids


@pytest.mark.slow
@pytest.mark.parametrize("name", ARGUMENTS)
async def test_calls_come_back_as_the_model_wrote_them(where: Site, name: str) -> None:
    talk = Talk(where, without_id, tools=TOOLS)
    for tag, script in calls_of(name).items():
        await talk.ask(f"corpus:{tag}")
        stored, loose = await talk.say()
        assert loose == stored
        said = script_ids(script.removeprefix(THOUGHT))
        assert said[-1] == CALL
        assert _contains(loose, [*OPENING, *said])
    stored, loose = await talk.ask("Well?")
    assert loose == stored


@pytest.mark.slow
async def test_answers_in_a_format_come_back_as_the_model_wrote_them(where: Site) -> None:
    talk = Talk(where, sealed, text={"format": {"type": "json_object"}})
    for tag in (*ANSWERS, *REFUSAL):
        stored, loose = await talk.ask(f"In JSON: corpus:{tag}")
        assert loose == stored
    stored, loose = await talk.ask("Well? corpus:answer0")
    assert loose == stored
    assert loose.count(CONSTRAIN) == 3


async def test_without_its_id_an_answer_comes_back_without_its_content_type(where: Site) -> None:
    talk = Talk(where, without_id, text={"format": {"type": "json_object"}})
    await talk.ask("In JSON: corpus:answer2")
    stored, loose = await talk.ask("Well? corpus:answer0")
    (at,) = [at for at, one in enumerate(stored) if one == CONSTRAIN]
    assert stored[: at - 1] + stored[at + 2 :] == loose


@pytest.mark.slow
@pytest.mark.parametrize("tag", ["now7", "note5", "shell6", "answer2"])
async def test_streams_and_replays_tell_the_same_ids(where: Site, tag: str) -> None:
    shown = await where.everywhere(input=f"corpus:{tag}", tools=TOOLS)
    assert shown.response["output"][-1]["status"] == "completed"


def _contains(ids: list[int], some: list[int]) -> bool:
    return any(ids[at : at + len(some)] == some for at in range(len(ids)))
