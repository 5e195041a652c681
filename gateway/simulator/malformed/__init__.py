"""Malformed outputs: hostile turns, and recorded output of real models."""
