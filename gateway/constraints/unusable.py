"""Why nothing can be checked."""

from __future__ import annotations


class UnusableSchema(ValueError):
    """Not a schema, or one that cannot be used here. The message is a short clause."""


class UnusableGrammar(ValueError):
    """Not a grammar, or one that cannot be used here. The message is a short clause."""
