"""From a request to the spec of its run: history, prompt, grants, sampling."""
