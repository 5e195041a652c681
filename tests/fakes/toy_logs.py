"""Logs in the language of `toy_parser`, and their fold."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hypothesis import strategies as st

from gateway.constraints.output_rules import AnswerFormat, OutputRules, TextGrammar, ToolRule
from gateway.entries import (
    Alive,
    Compacted,
    Entry,
    Finished,
    Hold,
    Hop,
    Queued,
    Repair,
    Tokens,
    TurnEnded,
    TurnStarted,
)
from gateway.eventlog.fold.fold import Fold
from gateway.generation import FinishReason, Framing, SegmentKind, TokenLogprob
from tests.fakes.fold_formats import parsed_by
from tests.fakes.response_heads import NO_RULES, response_head
from tests.fakes.toy_parser import (
    END,
    PIECES,
    RETURN,
    SAYING,
    SAYINGS,
    TEXT,
    TOOL_CALL,
    TOOLS,
    ToyParser,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.protocol.grants import Grants
    from gateway.protocol.stream_events import Event

FRAMING: Final = Framing(opening=(1001, 1002), turn_end=RETURN, message_end=1003)
ENDINGS: Final = (
    Finished("completed", 1_795_000_009),
    Finished("incomplete", 1_795_000_009, reason="max_output_tokens"),
    Finished("failed", 1_795_000_009, code="server_error", message="The server broke off."),
    Finished("cancelled", 1_795_000_009),
)

COMPACTED: Final = Compacted((1004, 1005), "sealed", 50, 20, 12, 4)

_TOOL_RULES: Final = (
    ToolRule("f", SegmentKind.FUNCTION_CALL, "f"),
    ToolRule("strict", SegmentKind.FUNCTION_CALL, "strict", "ns", schema={"type": "object"}),
    ToolRule("custom", SegmentKind.CUSTOM_CALL, "patch", grammar=TextGrammar("regex", "a*")),
    ToolRule("local_shell", SegmentKind.LOCAL_SHELL_CALL, "local_shell"),
    ToolRule("shell", SegmentKind.SHELL_CALL, "shell"),
    ToolRule("apply_patch", SegmentKind.APPLY_PATCH_CALL, "apply_patch"),
    ToolRule("tool_search", SegmentKind.TOOL_SEARCH_CALL, "tool_search"),
    ToolRule("barred", SegmentKind.FUNCTION_CALL, "barred"),
)
TOOL_RULES: Final = {rule.name: rule for rule in _TOOL_RULES}
ALLOWED: Final = frozenset(TOOL_RULES) - {"barred"}
ANSWER: Final = AnswerFormat("json_object", {"type": "object"})
RULES: Final = (
    NO_RULES,
    OutputRules(TOOL_RULES, ALLOWED, summary="detailed"),
    OutputRules(TOOL_RULES, ALLOWED, answer=ANSWER, summary="concise"),
    OutputRules(TOOL_RULES, ALLOWED, calls="required", open_calls=False),
    OutputRules(TOOL_RULES, ALLOWED, one_call=True, stop=("stop", "to", "op\n\n")),
    OutputRules(TOOL_RULES, ALLOWED, answer=ANSWER, stop=("op",)),
    OutputRules({}, frozenset(), calls="none"),
)
"""Demands of every sort."""

CODES: Final = range(TEXT + len(PIECES), TEXT + len(PIECES) + 7)
BREAK, ALIVE, HOP, STOP, LENGTH, HOLD, REPAIR = CODES
RARE: Final = (
    *(TOOL_CALL + index for index in range(len(TOOLS))),
    *(SAYING + index for index in range(len(SAYINGS))),
)


def logs(*, background: bool = False) -> st.SearchStrategy[list[Entry]]:
    """Whole logs: perhaps a compaction, any number of turns, the last of which may be broken off,
    and an end.

    Drawn as flat lists of small numbers, which is many times faster than nested strategies.
    """
    said = st.builds(_write_log, codes_of(st.integers(0, LENGTH)), st.sampled_from(ENDINGS))
    written = st.builds(
        lambda log, before: [*before, *log], said, st.sampled_from([[], [COMPACTED]])
    )
    return written.map(lambda log: [Queued(), *log]) if background else written


def steered_logs() -> st.SearchStrategy[tuple[OutputRules, list[Entry]]]:
    """Rules, and a log under them with holds, repairs and logprobs as well."""
    return st.builds(
        lambda codes, ending, rules, tells: (
            rules,
            _write_log(codes, ending, rules, tells_logprobs=tells),
        ),
        codes_of(st.integers(0, REPAIR) | st.sampled_from(RARE)),
        st.sampled_from(ENDINGS),
        st.sampled_from(RULES),
        st.booleans(),
    )


def codes_of(code: st.SearchStrategy[int]) -> st.SearchStrategy[list[int]]:
    # The average list is little longer than its minimum.
    codes = st.lists(code, min_size=20, max_size=60).map(lambda said: [BREAK, *said])
    return codes | st.lists(code, max_size=8)


class Writer:
    """Writes a log, and folds it at the same time to see what may be taken back."""

    def __init__(
        self, rules: OutputRules, grants: Grants | None = None, *, tells_logprobs: bool
    ) -> None:
        self.log: list[Entry] = []
        self.fold = new_fold(rules=rules, grants=grants)
        self._tells_logprobs = tells_logprobs

    def add(self, entry: Entry) -> None:
        self.fold.apply(entry)
        self.log.append(entry)

    def say(self, ids: list[int]) -> None:
        logprobs = tuple(map(logprob_of, ids)) if self._tells_logprobs else ()
        self.add(Tokens(tuple(ids), logprobs))

    def take_back(self, *, all_but: int) -> None:
        """As many ids as anybody may, or a few less."""
        turn = self.fold.open_turn
        assert turn is not None
        unseen = len(turn.prefill) + len(turn.output_ids) - self.fold.seen
        self.add(Repair(max(0, min(len(turn.output_ids), unseen) - all_but), "toy_repair"))


def _write_log(
    codes: list[int],
    ending: Finished,
    rules: OutputRules = NO_RULES,
    *,
    tells_logprobs: bool = False,
) -> list[Entry]:
    """Outside of a turn ids are its prefill, and a break starts it; inside, it cuts entries."""
    writer = Writer(rules, tells_logprobs=tells_logprobs)
    ids: list[int] = []
    in_turn = False
    for code in codes:
        if code not in CODES:
            ids.append(code)
        elif code == ALIVE:
            writer.add(Alive())
        elif code == HOP and writer.log:
            writer.add(Hop("backend" if in_turn else "replica", 7))
        elif not in_turn:
            writer.add(TurnStarted(4 * len(ids), tuple(ids)))
            ids, in_turn = [], True
        else:
            writer.say(ids)
            in_turn = steer(writer, code, len(ids))
            ids = []
    return [*writer.log, ending]


def steer(writer: Writer, code: int, size: int) -> bool:
    """What follows some ids; whether the turn goes on."""
    if code == HOLD:
        writer.add(Hold())
    elif code == REPAIR:
        writer.take_back(all_but=size % 3)
        if size % 2:
            writer.add(TurnEnded(FinishReason.CUT))
            return False
    elif code != BREAK:
        finish = FinishReason.STOP if code == STOP else FinishReason.LENGTH
        writer.add(TurnEnded(finish, cached_tokens=5))
        return False
    return True


def logprob_of(token: int) -> TokenLogprob:
    """What the toy backend tells of an id: a number that has no exact packed form."""
    return TokenLogprob(-token / 7, ((token, -token / 7), (END, -3.3)))


def new_fold(
    *, background: bool = False, rules: OutputRules = NO_RULES, grants: Grants | None = None
) -> Fold:
    """A fold that has seen nothing. Its reasoning is sealed by showing it in hexadecimal."""
    head = replace(response_head(background=background), grants=grants)
    return Fold(head, parsed_by(ToyParser, FRAMING), rules, bytes.hex)


def apply_all(fold: Fold, entries: Iterable[Entry]) -> list[Event]:
    """The events of all the entries."""
    return [event for entry in entries for event in fold.apply(entry)]
