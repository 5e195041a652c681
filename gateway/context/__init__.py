"""History and input → the one ordered list of items that a prompt is rendered from."""
