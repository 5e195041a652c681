"""Constraints on output: their notation for engines, and checks."""
