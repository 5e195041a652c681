"""Everything in Postgres: the only code that knows SQLAlchemy, asyncpg and Alembic.

Functions raise `StoreError`, and `StoreUnavailable` while the database is away; docstrings name
other errors that their bodies do not show.
"""
