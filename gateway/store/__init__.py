"""Everything in Postgres: the only code that knows SQLAlchemy, asyncpg and Alembic.

What uses the database raises `StoreError`, and `StoreUnavailable` while it is away, here and in
what calls this package; docstrings name what else is raised.
"""
