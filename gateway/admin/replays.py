"""`/admin/v1/responses/{id}/replay`, `/prompt` and `/corpus`: why a revealed response came out as
it did.

Its prompt is rebuilt from its stored context (`services.runs.rebuilding`). A replay has a backend
go on from one of its tokens, and says where the result differs. Only an audit entry is stored.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import orjson
from pydantic import Field

from gateway import ids
from gateway.admin.responses import ONE, place_of
from gateway.admin.routes import AdminRoute
from gateway.api.client_connection import CancelOnDisconnect, connection_of
from gateway.api.query import integer
from gateway.engine.run_spec import head_of
from gateway.errors import InvalidRequest, RateLimited
from gateway.generation import (
    CALL_KINDS,
    HOSTED_KINDS,
    FinishReason,
    SegmentEnded,
    SegmentKind,
    SegmentStarted,
)
from gateway.protocol.base import WireModel
from gateway.protocol.responses.create_request import SEED_MAX
from gateway.services.runs.regeneration import FORCED_CHARS_MAX, TOKENS_MAX, Variation
from gateway.services.token_view import LogView
from gateway.text_ids import prompt_tokens, unpacked_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gateway.admin.responses import StoredResponses
    from gateway.admin.routes import AdminCall
    from gateway.audit import Author
    from gateway.engine.run_spec import RunSpec
    from gateway.eventlog.fold.fold import Fold
    from gateway.generation import TokenParser
    from gateway.models.format import ModelFormat, TokenPiece
    from gateway.protocol.admin_bodies import Json
    from gateway.protocol.responses.response_object import ResponseHead
    from gateway.services.executor import ThreadExecutor
    from gateway.services.runs.rebuilding import Rebuilder
    from gateway.services.runs.regeneration import Continuation, Regenerator
    from gateway.services.token_view import Branch, TokenView
    from gateway.store.responses import StoredResponse
    from gateway.tenancy import TenantId
    from gateway.upstreams.pool import Pool

CONTINUED: Final = "harmony.response.continued_by_operator"
MESSAGES_DEFAULT: Final = 20
MESSAGES_MAX: Final = 100
MESSAGE_CHARS_MAX: Final = 16_384
LABEL_CHARS_MAX: Final = 60
_NO_HEADER: Final = frozenset({"marker", "body", "between"})
_part: Final = attrgetter("part")
BEFORE_SHOWN: Final = 64
"""Tokens before those of a replay."""
TURN_MAX: Final = 10_000
BACKEND_CHARS_MAX: Final = 256
TOKEN_BYTES: Final = 4
"""Bytes of text that take about as long to read as a token takes to spell."""


class Replay(WireModel):
    """`POST …/replay`: the token to go on from, and what is to be different from the run."""

    at: Annotated[int, Field(ge=0)] = 0
    backend: Annotated[str, Field(max_length=BACKEND_CHARS_MAX)] | None = None
    text: Annotated[str, Field(max_length=FORCED_CHARS_MAX)] = ""
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    seed: Annotated[int, Field(ge=-SEED_MAX - 1, le=SEED_MAX)] | None = None


def routes(replays: Replays) -> list[AdminRoute]:
    reads_content: Final = "content.read"

    async def replay(call: AdminCall) -> Json:
        body = await call.body(Replay)
        with CancelOnDisconnect(connection_of(call.request.scope)):
            return await replays.replay(call.author, call.path["response_id"], body)

    async def prompt(call: AdminCall) -> Json:
        bounds = place_of(call.request.query_params, MESSAGES_DEFAULT, MESSAGES_MAX)
        return await replays.prompt(call.author, call.path["response_id"], **bounds)

    async def corpus(call: AdminCall) -> Json:
        turn = integer(call.request.query_params, "turn", minimum=0, maximum=TURN_MAX) or 0
        return await replays.corpus(call.author, call.path["response_id"], turn=turn)

    return [
        AdminRoute("POST", f"{ONE}/replay", reads_content, replay, Replay),
        AdminRoute("GET", f"{ONE}/prompt", reads_content, prompt, query=("after", "limit")),
        AdminRoute("GET", f"{ONE}/corpus", reads_content, corpus, query=("turn",)),
    ]


class Replays:
    def __init__(
        self,
        stored: StoredResponses,
        rebuilder: Rebuilder,
        regenerator: Regenerator,
        *,
        pool: Pool,
        new_fold_for: Callable[[ResponseHead], Callable[[], Fold]],
        executor: ThreadExecutor,
    ) -> None:
        self._stored = stored
        self._rebuilder = rebuilder
        self._regenerator = regenerator
        self._pool = pool
        self._new_fold_for = new_fold_for
        self._executor = executor
        self._busy: set[str | None] = set()
        """Keys of operators with a replay that runs here."""

    def backends(self, model: str) -> list[str]:
        return [
            one.name
            for one in self._pool.members()
            if model in one.models and one.listed is not None and not one.is_drained
        ]

    async def prompt(
        self, author: Author, response_id: str, *, after: int = -1, limit: int = MESSAGES_DEFAULT
    ) -> Json:
        tenant_id, stored, view = await self._ended(author, response_id)
        spec = await self._rebuilder.rebuild(tenant_id, stored)
        format_ = self._regenerator.format_of(spec)
        facts = _prompt_facts(spec, stored, view, format_)
        read = partial(_messages, spec, format_, after, limit, cached=facts["cached_tokens"] or 0)
        count, messages = await self._executor.run(
            read, size_bytes=len(spec.prompt_ids) * TOKEN_BYTES
        )
        return {
            "id": response_id,
            "object": "response.prompt",
            **facts,
            "count": count,
            "data": messages,
            "has_more": after + 1 + limit < count,
        }

    async def replay(self, author: Author, response_id: str, body: Replay) -> Json:
        """Have a backend go on from a token of the response, and compare."""
        key = author.actor.key_id
        if key in self._busy:
            raise RateLimited(
                "A replay of yours is running. Wait for its end, or leave its page.",
                code="rate_limit_exceeded",
            )
        self._busy.add(key)
        try:
            return await self._replay(author, response_id, body)
        finally:
            self._busy.discard(key)

    async def _replay(self, author: Author, response_id: str, body: Replay) -> Json:
        tenant_id, stored, view = await self._ended(author, response_id)
        serving = self.backends(stored.model)
        if body.backend is not None and body.backend not in serving:
            raise InvalidRequest(
                f"This backend does not serve the model now. Choose one of: {', '.join(serving)}.",
                code="invalid_value",
                param="backend",
            )
        spec = await self._rebuilder.rebuild(tenant_id, stored)
        format_ = self._regenerator.format_of(spec)
        original = _original(view, stored, body.at)
        branch = original.branch
        fold = view.fold if isinstance(view, LogView) else None
        prefix = await self._regenerator.prefix(spec, branch, fold, result=original.result)
        await self._note(author, stored, body)
        variation = Variation(body.backend, body.text, body.temperature, body.seed)
        made = await self._regenerator.generate(spec, prefix, variation, beside=len(branch.rest))
        grown = view.grown(branch, made.forced, made.ids)
        replayed = grown.runs(range(len(grown)))
        for run in replayed:
            run["first"] += branch.at
        return {
            "id": response_id,
            "object": "response.replay",
            "backend": made.backend,
            "at": branch.at,
            "turn": branch.turn,
            "prompt": _prompt_facts(spec, stored, view, format_),
            "source": original.source,
            "ending": made.ending,
            "is_constrained": made.is_constrained,
            "cached_tokens": made.cached_tokens,
            "before": view.runs(range(max(0, branch.at - BEFORE_SHOWN), branch.at)),
            "original": view.runs(branch.rest[:TOKENS_MAX]),
            "replayed": replayed,
            "first_difference": _first_difference(original, [*made.forced, *made.ids], made),
        }

    async def corpus(self, author: Author, response_id: str, *, turn: int = 0) -> Json:
        """Return a turn as a line of the corpus of model outputs.

        `desired` and `recovery_flags` are what the parser makes of the ids: nobody says there what
        is wanted.
        """
        _, stored, view = await self._ended(author, response_id)
        head = head_of(stored)
        parser = self._new_fold_for(head)().new_parser()
        line: Json = {"source": f"{stored.model}, {ids.response_id(stored.uuid)}"}
        finish = FinishReason.STOP
        if isinstance(view, LogView) and view.fold.turns:
            if turn >= len(view.fold.turns):
                raise InvalidRequest(
                    f"It has {len(view.fold.turns)} turns.", code="invalid_value", param="turn"
                )
            one = view.fold.turns[turn]
            tokens = [*one.prefill, *one.output_ids]
            finish = one.finish or FinishReason.LENGTH
            taken_back = view.taken_back(turn)
            line |= {"prefill": len(one.prefill)} if one.prefill else {}
            line |= {"taken_back": taken_back} if taken_back else {}
        else:
            if turn:
                raise InvalidRequest(
                    "It has no log, and its items do not tell its turns apart: all are in turn 0.",
                    code="invalid_value",
                    param="turn",
                )
            tokens = _original(view, stored, 0).ids
            line["source"] += ", from its items"
        text, desired = await self._executor.run(
            lambda: (_spelled(view.format.anatomy(tokens)), list(_parsed(parser, tokens, finish))),
            size_bytes=len(tokens) * TOKEN_BYTES,
        )
        return {
            "id": f"{response_id}-{turn}",
            **line,
            "text": text,
            "tokens": tokens,
            "finish": finish.value,
            "observed_harmony_0_0_8": None,
            "desired": desired,
            "recovery_flags": sorted(parser.recoveries),
        }

    async def _ended(
        self, author: Author, response_id: str
    ) -> tuple[TenantId, StoredResponse, TokenView]:
        tenant_id, stored = await self._stored.open(author, response_id)
        if not stored.is_terminal:
            raise InvalidRequest("The response is still generated. Wait until it has ended.")
        return tenant_id, stored, await self._stored.view(tenant_id, stored)

    async def _note(self, author: Author, stored: StoredResponse, body: Replay) -> None:
        # What the operator wrote may quote the response.
        data = body.model_dump(exclude={"text"}, exclude_none=True)
        data["text_characters"] = len(body.text)
        await self._stored.note(author, ids.response_id(stored.uuid), CONTINUED, data)


class _Original(NamedTuple):
    """Ids that a replay is compared with. `source`: the log, the items (what the next prompt
    repeats), or nothing. `result` is that of the call that the user approved, before them.
    """

    branch: Branch
    ids: list[int]
    source: str
    result: Sequence[int] = ()


def _original(view: TokenView, stored: StoredResponse, at: int) -> _Original:
    # Raises `InvalidRequest` if there is no token `at`.
    is_log, framing = isinstance(view, LogView), view.format.framing
    before = [] if is_log else _items_before(view, stored)
    front = len(before)
    if not is_log and tuple(view.ids[front : front + len(framing.opening)]) == framing.opening:
        front += len(framing.opening)  # the prompt ends with it
    try:
        branch = view.branch(max(at, front))
    except IndexError:
        raise InvalidRequest(
            f"The response has {len(view)} tokens.", code="invalid_value", param="at"
        ) from None
    rest = view.ids[branch.rest.start : branch.rest.stop].tolist()
    if isinstance(view, LogView):
        return _Original(branch, rest, "log", view.fold.approved_result)
    if rest[-1:] == [framing.message_end]:
        rest[-1] = framing.turn_end
    source = "items" if len(view) else "nothing"
    result = before if _is_approved(stored) else ()
    return _Original(branch._replace(kept=branch.kept[front:]), rest, source, result)


def _items_before(view: TokenView, stored: StoredResponse) -> list[int]:
    # The ids of an item that was there before the first turn: a summary, or the result of a call
    # that the user approved.
    output = orjson.loads(stored.body)["output"] if stored.body is not None else []
    is_summarised = bool(output) and output[0]["type"] == "compaction"
    return view.first_item if len(view) and (is_summarised or _is_approved(stored)) else []


def _is_approved(stored: StoredResponse) -> bool:
    grants = head_of(stored).grants
    return grants is not None and grants.approved is not None


def _first_difference(
    original: _Original, replayed: Sequence[int], made: Continuation
) -> int | None:
    # Position of the first token that differs, behind that of the branch; None: none does.
    if original.source == "nothing":
        return None
    for at, (one, other) in enumerate(zip(original.ids, replayed, strict=False)):
        if one != other:
            return at
    # Items go on behind the end of a turn, and a bound may end a replay before its turn is over.
    ends_early = len(replayed) < len(original.ids)
    if ends_early and (original.source == "items" or made.ending != "stop"):
        return None
    return None if len(replayed) == len(original.ids) else min(len(replayed), len(original.ids))


def _prompt_facts(
    spec: RunSpec, stored: StoredResponse, view: TokenView, format_: ModelFormat
) -> Json:
    # How many tokens the prompt has now, how many the model had then (None: nothing tells), and how
    # many of those its backend had cached.
    prompt = spec.prompt_ids
    expected = cached = None
    if isinstance(view, LogView):
        if view.fold.approved_result:
            prompt = format_.with_result(prompt, view.fold.approved_result)
        if view.fold.turns:
            expected, cached = view.fold.turns[0].input_tokens, view.cached_tokens
    elif stored.body is not None and not spec.is_text:
        body = orjson.loads(stored.body)
        usage, output = body["usage"], body["output"]
        is_first = not any(item["type"] == "compaction" for item in output)
        # The results of tools are input of the turns behind them.
        if usage and is_first and "tool_output_tokens" not in usage["output_tokens_details"]:
            expected = usage["input_tokens"]
            cached = usage["input_tokens_details"]["cached_tokens"]
    tokens = prompt_tokens(prompt) if spec.is_text else len(prompt)
    return {"tokens": tokens, "expected_tokens": expected, "cached_tokens": cached}


def _bounds(spec: RunSpec, format_: ModelFormat) -> Iterator[tuple[int, int]]:
    # A message begins with the marker that opens the model's own, where the format has one.
    if spec.is_text:
        yield from ((at, at + 1) for at in range(len(unpacked_lines(spec.prompt_ids))))
        return
    opening = format_.framing.opening[:1]
    is_marked = any(piece.part == "marker" for piece in format_.anatomy(opening))
    begin = 0
    for at, token in enumerate(spec.prompt_ids):
        if is_marked and at > begin and token == opening[0]:
            yield begin, at
            begin = at
    yield begin, len(spec.prompt_ids)


def _messages(
    spec: RunSpec, format_: ModelFormat, after: int, limit: int, *, cached: int
) -> tuple[int, list[Json]]:
    bounds = list(_bounds(spec, format_))
    shown = bounds[after + 1 : after + 1 + limit]
    return len(bounds), [
        {"index": at, **_message(spec, format_, *one, cached=cached)}
        for at, one in enumerate(shown, after + 1)
    ]


def _message(spec: RunSpec, format_: ModelFormat, begin: int, end: int, *, cached: int) -> Json:
    if spec.is_text:
        line = unpacked_lines(spec.prompt_ids)[begin]
        text = line.decode("utf-8", "replace").rstrip()
        return {"first": None, "tokens": None, "cached": 0, **_cut(text, text)}
    pieces = format_.anatomy(spec.prompt_ids[begin:end])
    text = _spelled(pieces)
    header = (_spelled(run) for part, run in groupby(pieces, _part) if part not in _NO_HEADER)
    return {
        "first": begin,
        "tokens": end - begin,
        "cached": min(end, max(begin, cached)) - begin,
        **_cut(" ".join(map(str.strip, header)) or text.strip(), text),
    }


def _spelled(pieces: Iterable[TokenPiece]) -> str:
    return b"".join(piece.spelling for piece in pieces).decode("utf-8", "replace")


def _cut(label: str, text: str) -> Json:
    # The first line names a message whose format has no header.
    first_line = label.partition("\n")[0][:LABEL_CHARS_MAX]
    left = max(0, len(text) - MESSAGE_CHARS_MAX)
    return {"label": first_line, "text": text[:MESSAGE_CHARS_MAX], "characters_left": left}


def _parsed(
    parser: TokenParser, tokens: Sequence[int], finish: FinishReason
) -> Iterator[dict[str, Any]]:
    begun, texts = SegmentStarted(SegmentKind.REASONING), [""]
    for event in (*parser.feed(tokens), *parser.finish(finish)):
        if isinstance(event, SegmentStarted):
            begun, texts = event, []
        elif isinstance(event, SegmentEnded):
            yield _item(begun, "".join(texts), is_complete=event.complete)
        else:
            texts.append(event.text)


def _item(begun: SegmentStarted, text: str, *, is_complete: bool) -> dict[str, Any]:
    if begun.kind is SegmentKind.REASONING:
        return {"type": "reasoning", "text": text}
    status = "completed" if is_complete else "incomplete"
    if begun.kind in CALL_KINDS | HOSTED_KINDS:
        return {"type": "function_call", "name": begun.name, "arguments": text, "status": status}
    return {"type": "message", "channel": begun.kind.value, "text": text, "status": status}
