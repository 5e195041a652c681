"""Hosted tools."""
