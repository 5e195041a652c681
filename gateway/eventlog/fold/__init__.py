"""Segments to items and stream events, and the fold of a log. No I/O, no clock, no chance."""
