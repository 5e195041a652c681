"""Routing: a request goes to the member that is expected to bring its first token at least cost.

Nothing here does I/O, and everything takes the time as an argument. `router.py` is the interface
for the pool; `costs.py` decides; `prefix_index.py` knows who holds which prompts.
"""
