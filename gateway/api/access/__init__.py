"""Whether a request may come in: its key, where it comes from, and what its scopes let it do."""
