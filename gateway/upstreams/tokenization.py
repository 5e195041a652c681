"""Conversations rendered by a server that serves the model: messages in, token ids out.

One engine renders as long as it has a member: engines render one conversation to different ids, and
its beginning should stay. `POST /tokenize` (vLLM) and `POST /v1/tokenize` (SGLang) take 3 to 17 ms.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import orjson

from gateway.errors import NoUpstreamAvailable, UpstreamUnavailable
from gateway.upstreams.pool import candidates
from gateway.upstreams.probe import answer
from gateway.upstreams.problems import message_of_body

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.upstreams.backend import Backend
    from gateway.upstreams.http.client import Client
    from gateway.upstreams.member import Member
    from gateway.upstreams.pool import Pool

    Rendering: TypeAlias = array[int] | str
    """Ids, or why the template refuses the conversation."""

_REFUSED: Final = frozenset({400, 422})
_BYTES_OF_ID: Final = 8
TIMEOUT_S: Final = 10.0
IDS_MAX: Final = 4 * 1024 * 1024
"""More than any window: a context that is too long is counted, too."""


class _TokenizeAnswer(msgspec.Struct, gc=False):
    """The decoder skips other fields, up to millions of values."""

    tokens: list[int]


_decode: Final = msgspec.json.Decoder(_TokenizeAnswer).decode


class Tokenization:
    """Asks members of the pool; all questions of one call go to one, unless it fails."""

    def __init__(self, pool: Pool, *, attempts_max: int, timeout_s: float = TIMEOUT_S) -> None:
        # `timeout_s` is for each member.
        self._pool = pool
        self._client = pool.client
        self._timeout_s = timeout_s
        self._attempts_max = attempts_max
        self._turn = 0

    async def render(self, model: str, questions: Sequence[bytes]) -> dict[bytes, Rendering]:
        """Return the rendering of each question, a JSON object without the model's name.

        Raises `ModelNotFound`, and `NoUpstreamAvailable` when no member answers.
        """
        members = self._members(model)
        answers: dict[bytes, Rendering] = {}
        reasons: dict[str, str] = {}
        for question in questions:
            while question not in answers:
                if not members or len(reasons) >= self._attempts_max:
                    raise NoUpstreamAvailable(model, _failure(reasons))
                try:
                    answers[question] = await self._ask(members[0], model, question)
                except UpstreamUnavailable as why:
                    reasons[members[0].name] = why.reason
                    members = members[1:]
        return answers

    def _members(self, model: str) -> list[Member]:
        # Backends of the best candidate's engine take turns; the others come after them.
        serving = self._pool.serving(model)
        best = candidates(serving)
        kind = type(best[0].engine)
        alike = [member for member in best if type(member.engine) is kind]
        others = [member for member in serving if member not in alike]
        self._turn += 1
        first = self._turn % len(alike)
        return [*alike[first:], *alike[:first], *others]

    async def _ask(self, member: Member, model: str, question: bytes) -> Rendering:
        name = member.name_of(model)
        return await render(
            self._client,
            member.backend,
            member.tokenize_path,
            name,
            question,
            timeout_s=self._timeout_s,
        )


async def render(
    client: Client, backend: Backend, path: str, model: str, question: bytes, *, timeout_s: float
) -> Rendering:
    """Return one backend's rendering; `model` is its name there. Raises `UpstreamUnavailable`."""
    request = client.build_request(
        "POST",
        backend.url(path),
        headers={**backend.headers(), "content-type": "application/json"},
        content=b'{"model":%b,%b' % (orjson.dumps(model), question[1:]),
    )
    status, body = await answer(client, backend, request, timeout_s, IDS_MAX * _BYTES_OF_ID)
    if status in _REFUSED:
        return message_of_body(body)
    if status != 200:
        why = f"answered {status}: {message_of_body(body)}"
        raise UpstreamUnavailable(why, upstream=backend.name)
    try:
        return ids_of(body)
    except (ValueError, RecursionError, OverflowError) as error:
        raise UpstreamUnavailable("it answered no token ids", upstream=backend.name) from error


def ids_of(body: bytes) -> array[int]:
    # Raises `ValueError`, `RecursionError` or `OverflowError`.
    return array("I", _decode(body).tokens)


def _failure(reasons: dict[str, str]) -> str:
    each = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    return f"no backend renders its chat template ({each})"
