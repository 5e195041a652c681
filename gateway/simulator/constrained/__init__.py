"""Constrained decoding: of what the script would say, what a grammar or schema allows."""
