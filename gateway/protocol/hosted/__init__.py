"""Hosted tools on the wire: what a request asks for, what it was granted, what is kept of it."""
