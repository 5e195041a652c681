"""One ordered list of items, from history and input, that a prompt is rendered from."""
