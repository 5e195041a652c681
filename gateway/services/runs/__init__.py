"""Turn a request into the spec of its run: history, prompt, grants, sampling."""
