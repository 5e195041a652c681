"""Telemetry for operators, without content of requests."""
