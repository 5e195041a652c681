"""The markers of a syntax in a vocabulary: those that are one id, and how to find the others."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from gateway.models.chat.syntax.deepseek import full_width

if TYPE_CHECKING:
    from gateway.models.chat.syntax.contract import Syntax
    from gateway.models.chat.vocabulary import Vocabulary

TURN_ENDS: Final = (
    *("<|im_end|>", "<|im_start|>", "<|endoftext|>"),
    *("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|start_header_id|>", "<|begin_of_text|>"),
    *("<|eot|>", "<|eom|>", "<|header_start|>"),
    *("</s>", "<s>", "[INST]", "[AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[SYSTEM_PROMPT]"),
    *map(full_width, ("end_of_sentence", "begin_of_sentence", "User", "Assistant")),
    *map(full_width, ("tool_outputs_begin", "tool_output_begin")),
    *("<|user|>", "<|assistant|>", "<|system|>", "<|observation|>", "[gMASK]", "<sop>"),
)  # fmt: skip
"""Added tokens that end a turn, or begin that of somebody else."""
LEXICONS_KEPT: Final = 64


class Matcher:
    """Finder of some markers in text, and of what may be the beginning of one at its end."""

    __slots__ = ("_pattern", "_texts", "firsts")

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._texts = texts
        longest_first = sorted(texts, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        self.firsts = tuple(sorted({text[0] for text in texts}))
        """What they begin with."""

    def may_be_in(self, text: str) -> bool:
        return any(first in text for first in self.firsts)

    def find(self, text: str) -> re.Match[str] | None:
        return self._pattern.search(text) if self._texts else None

    def held(self, text: str) -> int:
        """Count the characters at the end that may be the beginning of a marker."""
        longest = 0
        for marker in self._texts:
            for size in range(min(len(marker) - 1, len(text)), longest, -1):
                if text.endswith(marker[:size]):
                    longest = size
                    break
        return longest


class PlainTexts(dict[int, str]):
    """Texts of ids that are nothing but text, by id: whole characters, nothing of a marker, and no
    white space at the end. Empty for any other id.
    """

    __slots__ = ("_markers", "_spelled", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, markers: frozenset[int], spelled: Matcher) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self._markers = markers
        self._spelled = spelled

    def __missing__(self, token: int) -> str:
        """Ask for it. What is no id is not kept: there is no end of such numbers."""
        piece = b"" if token in self._markers else self._vocabulary.pieces[token]
        try:
            text = piece.decode()
        except UnicodeDecodeError:
            text = ""
        if text[-1:].isspace() or self._spelled.may_be_in(text):
            text = ""
        if 0 <= token < self._vocabulary.size:
            self[token] = text
        return text


class Lexicon:
    """Markers of one syntax in one vocabulary."""

    def __init__(self, vocabulary: Vocabulary, syntax: Syntax) -> None:
        named = {text: vocabulary.special(text) for text in dict.fromkeys(syntax.markers)}
        self.ids = {text: token for text, token in named.items() if token is not None}
        """Of the markers that are one id."""
        self.texts = {token: text for text, token in self.ids.items()}
        ends = (vocabulary.special(text) for text in TURN_ENDS if text not in named)
        self.ends = frozenset(token for token in ends if token is not None)
        """What no turn goes on behind."""
        self.markers = frozenset({*self.texts, *self.ends})
        added = (vocabulary.special(text) for text in vocabulary.added())
        silent = {token for token in added if token is not None and not vocabulary.piece(token)}
        self.no_text = tuple(sorted(self.markers | silent))
        """What text is not spelled with: markers, and added tokens that say nothing."""
        self._matchers: dict[tuple[str, ...], Matcher] = {}
        self.plain = PlainTexts(vocabulary, self.markers, self.matcher(syntax.markers))

    def matcher(self, markers: tuple[str, ...]) -> Matcher:
        """Return a matcher of those of the markers that are spelled in letters."""
        if markers not in self._matchers:
            self._matchers[markers] = Matcher(tuple(m for m in markers if m not in self.ids))
        return self._matchers[markers]


@lru_cache(maxsize=LEXICONS_KEPT)
def lexicon_of(vocabulary: Vocabulary, syntax: Syntax) -> Lexicon:
    return Lexicon(vocabulary, syntax)
