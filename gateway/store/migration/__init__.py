"""The schema as migrations make it, and whether a database has it."""
