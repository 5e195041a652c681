"""Send a request to the member that is expected to bring its first token at least cost.

No I/O here; the time is an argument.
"""
