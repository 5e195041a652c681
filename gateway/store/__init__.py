"""Everything in Postgres: the only code that knows SQLAlchemy, asyncpg and Alembic.

Functions raise `StoreError`, and `StoreUnavailable` while the database is away; docstrings name
what else is raised.
"""
