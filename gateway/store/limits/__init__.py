"""Limits, budgets, prices, and their use."""
