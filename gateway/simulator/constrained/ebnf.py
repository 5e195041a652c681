"""Translates grammars from the engines' EBNF (GBNF) into the notation of the matcher, Lark."""

from __future__ import annotations

import re
from typing import Final

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from gateway.errors import GatewayError

_UNICODE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|\\)")
_EMPTY_RULE: Final = re.compile(r"::=\s*(?:\Z|[\w-]+\s*::=)")
_OPTIONS: Final = "%llguidance {}"
_ASCII_END: Final = 0x80


class BadGrammar(GatewayError):
    """A grammar that the matcher does not take; the message says why."""


def lark_of_ebnf(ebnf: str) -> str:
    """The rules of a grammar whose first rule is `root`, as a Lark grammar that begins at `start`.

    A grammar that never refers back to itself becomes one token, which the matcher follows exactly;
    otherwise it cuts the text into the longest literals and classes that fit. Raises `BadGrammar`.
    """
    if _EMPTY_RULE.search(ebnf):
        raise BadGrammar("a rule without a body")
    try:  # what is no grammar makes the translator raise whatever comes, a bare Exception too
        rules = gbnf_to_lark(_UNICODE.sub(_character, ebnf)).replace(_OPTIONS, "")
    except Exception as error:
        raise BadGrammar(str(error)) from error
    whole = "start: START\n" + rules.replace("\nstart:", "\nSTART:", 1)
    if not LLMatcher.validate_grammar(whole):
        return whole
    if message := LLMatcher.validate_grammar(rules):
        raise BadGrammar(message)
    return rules


def _character(escape: re.Match[str]) -> str:
    if escape[0] == r"\\":
        return escape[0]
    code = int(escape[1] or escape[2], 16)
    return f"\\x{code:02x}" if code < _ASCII_END else chr(code)
