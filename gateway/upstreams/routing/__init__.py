"""Where a request goes: to the member that is expected to bring its first token at the least cost.

Nothing here does I/O, and time is given to everything as an argument. `router.py` is what the pool
asks; `policy.py` is how it decides; the rest is what it knows.
"""
