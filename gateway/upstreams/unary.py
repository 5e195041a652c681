"""Requests that a backend answers with one body, such as embeddings: no stream, no queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from gateway.errors import NoUpstreamAvailable, UpstreamLost, UpstreamUnavailable
from gateway.upstreams.pool import candidates, round_robin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.upstreams.pool import Pool

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of one answer, such as embeddings of many texts."""


class UnaryClient:
    """Asks one member after the other until one answers."""

    def __init__(
        self,
        pool: Pool,
        *,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
        attempts_max: int = 3,
        losses_max: int = 2,
    ) -> None:
        # `attempts_max` and `losses_max` are as those of `PoolPolicy`.
        self._pool = pool
        self._answer_bytes_max = answer_bytes_max
        self._attempts_max = attempts_max
        self._losses_max = losses_max
        self._turn = 0

    async def post(self, model: str, path: str, fields: Mapping[str, object]) -> tuple[str, bytes]:
        """Return the name of the backend, and the body of its 200.

        In place of `model`, its public id, the backend reads its own name of it. Raises what
        `Pool.generate` does before a first chunk, and `UpstreamFailed` for an answer that is longer
        than `answer_bytes_max`.
        """
        self._turn += 1
        turn, losses = self._turn, 0
        reasons: dict[str, str] = {}
        retry_after_s: list[float] = []
        while len(reasons) < self._attempts_max:
            left = candidates(self._pool.serving(model), tried=reasons)
            if not left:
                break
            member = round_robin(left, turn)
            try:
                body = orjson.dumps({**fields, "model": member.served_as(model)})
                answer = await member.ask(path, model, body, bytes_max=self._answer_bytes_max)
            except UpstreamUnavailable as error:
                reasons[member.name] = str(error)
                retry_after_s += self._pool.note_unavailable(error)
                losses += isinstance(error, UpstreamLost)
                if losses >= self._losses_max:
                    raise
            else:
                return member.name, answer
        raise NoUpstreamAvailable(
            model,
            "; ".join(reasons.values()),
            retry_after_s=min(retry_after_s, default=self._pool.retry_after_s(model)),
        )
