"""Lines of usage, and what they add up to without any table of sums."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from gateway import ids
from gateway.generation import TokenUsage
from gateway.metering import Metering
from gateway.store.usage_lines import Metered, UsageLine
from gateway.tenancy import ProjectId

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

NOON: Final = datetime(2026, 11, 22, 12, tzinfo=UTC)
KEYS: Final = (UUID(int=1), UUID(int=2), UUID(int=3))
PROJECTS: Final = (None, ProjectId(UUID(int=77)))
MODELS: Final = ("gpt-oss-20b", "gpt-oss-120b")


def line(at: datetime = NOON, **fields: object) -> UsageLine:
    """A line of one request with 10 tokens in, of which 4 were cached, and 5 out."""
    given: dict[str, object] = {
        "response": ids.new_uuid(),
        "key_id": KEYS[0],
        "model": MODELS[0],
        "at": at,
        "tokens": TokenUsage(input_tokens=10, cached_tokens=4, output_tokens=5),
    }
    return UsageLine(**(given | fields))  # type: ignore[arg-type] # a test's own choice of fields


def random_line(
    chance: random.Random, *, start: datetime = NOON, span_s: int = 86_400
) -> UsageLine:
    """Any line at all."""
    input_tokens = chance.randrange(1, 5_000)
    return line(
        start + timedelta(seconds=chance.randrange(span_s)),
        key_id=chance.choice(KEYS),
        project_id=chance.choice(PROJECTS),
        model=chance.choice(MODELS),
        background=chance.random() < 0.2,
        status=chance.choice(("completed", "incomplete", "cancelled")),
        tokens=TokenUsage(
            input_tokens=input_tokens,
            cached_tokens=chance.randrange(input_tokens),
            output_tokens=chance.randrange(900),
            voided_tokens=chance.randrange(3),
            web_searches=chance.randrange(2),
        ),
        metered=Metered(
            service_tier=chance.choice(("default", "priority")),
            who=Metering(chance.choice((None, b"one", b"two")), {"team": chance.choice("ab")}),
            tools=chance.choice(({}, {"code_interpreter": 2})),
        ),
    )


def added_up(lines: Iterable[UsageLine]) -> Counter[str]:
    """What the lines come to, by the names of `schema.SUMS` as far as they are not 0."""
    sums: Counter[str] = Counter()
    for one in lines:
        tokens = one.tokens
        sums += Counter(
            requests=1,
            input_tokens=tokens.input_tokens,
            cached_tokens=tokens.cached_tokens,
            output_tokens=tokens.output_tokens,
            voided_tokens=tokens.voided_tokens,
            web_searches=tokens.web_searches,
            code_sessions=int("code_interpreter" in one.metered.tools),
        )
    return sums
