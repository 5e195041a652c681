"""Telemetry for operators: log events and metrics, without content of requests."""
