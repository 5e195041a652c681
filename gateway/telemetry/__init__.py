"""Telemetry for operators: log events and metrics, and nothing of what users say."""
