"""Limits, budgets and prices of tenants, projects and keys: rules and numbers without I/O."""
