"""Scripted stand-in for a gpt-oss server, for the demo and machines without a GPU.

Its output is a pure function of the conversation and of the format that it is to have. Grammars
have no effect, and requests are read leniently; the server of the tests
(`tests/fakes/wayward_engine`) obeys grammars, checks requests as vLLM does, and misbehaves.
"""
