"""Connections, transactions, statements and their errors."""
