"""Connections, transactions and statements: how SQL gets to the server, and its errors back."""
