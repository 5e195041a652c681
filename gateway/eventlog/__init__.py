"""The log of a response: written, committed in groups, folded for readers here and elsewhere."""
