"""Scripted stand-in for a gpt-oss server.

Its output is a pure function of the conversation and of the format that it is to have. Grammars
have no effect, and requests are read leniently; `tests/fakes/wayward_engine` obeys grammars, checks
requests as vLLM does, and misbehaves.
"""
