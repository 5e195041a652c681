"""An embedded PostgreSQL for development: its programs, its process, its data folder."""
