"""Everything in Postgres: the only code that knows SQLAlchemy, asyncpg and Alembic."""
