"""Rows by which replicas know of each other: drains, placements, notifications."""
