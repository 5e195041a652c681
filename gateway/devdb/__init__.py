"""An embedded PostgreSQL for development."""
