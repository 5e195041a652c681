"""The token API as vLLM and SGLang speak it: requests as they are read, events as written."""
