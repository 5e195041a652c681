"""The OpenAI Responses API in front of a fleet of gpt-oss servers."""

__version__ = "0.1.0"
